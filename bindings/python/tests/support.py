"""Servers for the tests, and the base of their classes."""

import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PATIENCE_SECONDS = 20


def _load_servers():
    # tests/redis_py/servers.py finds, starts and stops servers for all Python tests.
    spec = importlib.util.spec_from_file_location("respool_servers", ROOT / "tests/redis_py/servers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


servers = _load_servers()
make_certificate = servers.make_certificate


class Server(servers.Server):
    """A server on a socket of the file system and on a port."""

    def __init__(self, *args):
        program, missing = servers.server_program("redis-server")
        if program is None:
            raise RuntimeError(missing)
        self.port = free_port()
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        debug = [] if "v=6." in version else ["--enable-debug-command", "yes"]
        super().__init__(program, "--bind", "127.0.0.1", *debug, *args)

    def start(self):
        # The last one counts.
        self.command += ["--port", str(self.port)]
        super().start()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class WithServer(unittest.TestCase):
    """Tests with one server for the class."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)


def run_program(code, *args, timeout=PATIENCE_SECONDS, send=None):
    """Runs a program of Python in a process of its own. `send`: a signal once it has written a line."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            first = ""
            if send is not None:
                first = process.stdout.readline()
                time.sleep(0.2)
                process.send_signal(send)
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return process.returncode, first + out, errors
