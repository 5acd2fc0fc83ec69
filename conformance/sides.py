"""The two sides of a comparison: a private server, and a respool before one or several servers."""

import importlib.util
import os
import pathlib
import socket
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def _load_servers():
    # tests/redis_py/servers.py finds, starts and stops servers and respools for all Python tests.
    spec = importlib.util.spec_from_file_location("respool_servers", ROOT / "tests/redis_py/servers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


servers = _load_servers()

# The kinds of servers behind respool. The kind `server` is one server.
KINDS = ["server", "sentinel", "sharded", "cluster"]
SERVERS = {"redis-6.2": "redis-6.2", "redis-7.0": "redis-server", "redis-8.2": "redis-8.2", "valkey-9.1": "valkey-9.1"}


def server_program(name):
    """The binary of a server by its short name. The error names the missing package."""
    program, missing = servers.server_program(SERVERS[name])
    if program is None:
        raise FileNotFoundError(f"{name}: {missing}")
    return program


def server_args(name):
    """The arguments of every server of a comparison, without its port."""
    # Suites use DEBUG. Servers since Redis 7.0 need this option for it, and Redis 6.2 refuses the
    # option.
    return [] if name == "redis-6.2" else ["--enable-debug-command", "yes"]


class Side:
    """One of the two sides, as a context manager. The suite under test connects to `port`."""

    def __init__(self, name, server, respool_args, starts=True, kind="server", tls=False, library=False):
        """`kind`: the kind of servers behind respool or, on the direct side, of the servers.

        `tls`: clients connect with TLS. The direct side is a server of its own with TLS.
        `library`: the clients are respool's own, so there is no respool on the way.
        """
        self.name = name
        self.library = library
        self.tls = tls
        self.kind = kind
        self.starts = starts
        self.server_name = server
        self.respool_args = respool_args
        self.trouble = ""

    def __enter__(self):
        # Some suites start their own servers, and take only the server's name from here.
        self.server = self.respool = self.port = self.folder = self.ca = None
        if not self.starts:
            return self
        args = server_args(self.server_name)
        respool_args = self.respool_args
        if self.tls:
            self.folder = tempfile.TemporaryDirectory(prefix="respool-")
            self.ca, certificate, key = servers.make_certificate(self.folder.name)
            respool_args = [*respool_args, "--tls-listen=127.0.0.1:0", f"--tls-cert={certificate}", f"--tls-key={key}"]
        if self.kind != "server":
            self.server = servers.Several(self.kind, self.server_name, *args)
            # Clients of several servers find the others through this one.
            self.port = int(self.server.addresses[0].rsplit(":", 1)[1])
        else:
            self.port = free_port()
            args += ["--bind", "127.0.0.1"]
            if self.tls and self.name == "direct":
                args += ["--tls-port", str(self.port), "--tls-auth-clients", "no"]
                args += ["--tls-ca-cert-file", self.ca, "--tls-cert-file", certificate, "--tls-key-file", key]
            else:
                args += ["--port", str(self.port)]
            self.server = servers.Server(server_program(self.server_name), *args)
        if self.name == "proxied" and not self.library:
            try:
                self.respool = servers.Respool(self.server, *respool_args)
            except BaseException:
                self.server.close()
                raise
            self.port = self.respool.tls_port if self.tls else self.respool.port
        return self

    def __exit__(self, *_):
        try:
            if self.respool:
                self.respool.close()
        except Exception as error:  # noqa: BLE001: the report shows any error
            self.trouble = str(error)
        finally:
            if self.server:
                self.server.close()
            if self.folder:
                self.folder.cleanup()


def free_port():
    """A port without a listener. If another process takes it first, the server does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def use_respool(path):
    """Puts the respool under test into the environment of both sides and their processes."""
    if path:
        os.environ["RESPOOL"] = str(pathlib.Path(path).resolve())
    program = servers.respool_program()
    if not os.access(program, os.X_OK):
        raise FileNotFoundError(f"{program}: there is no such respool")
    return program
