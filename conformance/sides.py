"""The two sides of a comparison: a private server, and a respool before another one like it, or before several."""

import importlib.util
import os
import pathlib
import socket

ROOT = pathlib.Path(__file__).resolve().parents[1]


def _load_servers():
    # How servers and a respool are found, started and stopped is written once, beside the first tests that
    # needed it.
    spec = importlib.util.spec_from_file_location("respool_servers", ROOT / "tests/redis_py/servers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


servers = _load_servers()

# What may stand behind respool; one server is what all the others are compared with.
KINDS = ["server", "sentinel", "sharded", "cluster"]
SERVERS = {"redis-6.2": "redis-6.2", "redis-7.0": "redis-server", "redis-8.2": "redis-8.2", "valkey-9.1": "valkey-9.1"}


def server_program(name):
    """The binary of a server by its short name, or an error that says what is missing."""
    program, missing = servers.server_program(SERVERS[name])
    if program is None:
        raise FileNotFoundError(f"{name}: {missing}")
    return program


def server_args(name):
    """What every server of a comparison is started with, beside a port of its own."""
    # Suites use DEBUG, which newer servers allow by this option alone and older ones do not know.
    return [] if name == "redis-6.2" else ["--enable-debug-command", "yes"]


class Side:
    """One of the two, as a context: `port` is where the suite under test is to connect."""

    def __init__(self, name, server, respool_args, starts=True, kind="server"):
        """`kind` is what stands behind respool, or is asked directly."""
        self.name = name
        self.kind = kind
        self.starts = starts
        self.server_name = server
        self.respool_args = respool_args
        self.trouble = ""

    def __enter__(self):
        # Some suites start servers of their own, and are only told which.
        self.server = self.respool = self.port = None
        if not self.starts:
            return self
        args = server_args(self.server_name)
        if self.kind != "server":
            self.server = servers.Several(self.kind, self.server_name, *args)
            # Clients that know several servers need one of them to find the others.
            self.port = int(self.server.addresses[0].rsplit(":", 1)[1])
        else:
            self.port = free_port()
            args += ["--port", str(self.port), "--bind", "127.0.0.1"]
            self.server = servers.Server(server_program(self.server_name), *args)
        if self.name == "proxied":
            try:
                self.respool = servers.Respool(self.server, *self.respool_args)
            except BaseException:
                self.server.close()
                raise
            self.port = self.respool.port
        return self

    def __exit__(self, *_):
        try:
            if self.respool:
                self.respool.close()
        except Exception as error:  # noqa: BLE001: whatever it is, it is said in the report
            self.trouble = str(error)
        finally:
            if self.server:
                self.server.close()


def free_port():
    """A port that nobody listens on. Somebody might take it before we do: then the server does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def use_respool(path):
    """Names the respool under test for both sides and for what they start."""
    if path:
        os.environ["RESPOOL"] = str(pathlib.Path(path).resolve())
    program = servers.respool_program()
    if not os.access(program, os.X_OK):
        raise FileNotFoundError(f"{program}: there is no such respool")
    return program
