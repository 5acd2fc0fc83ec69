"""A careless operator: restarts, signals, blocked logs, wrong settings, and pools side by side."""

import ctypes
import os
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from harness import (
    PATIENCE_SECONDS,
    ROOT,
    Client,
    ErrorReply,
    HostileTest,
    MIB,
    encode,
    free_port,
    respool_program,
    seconds_of,
    wait_until,
)

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
AUDIT_ARCH_X86_64 = 0xC000003E
SYSCALLS = {"epoll_create1": 291, "clone3": 435, "clone": 56, "eventfd2": 290, "socket": 41, "signalfd4": 289, "timerfd_create": 283, "prlimit64": 302}
EPERM = 1


def forbid(*names):
    """From this call on, some system calls of this process fail with EPERM."""
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, AUDIT_ARCH_X86_64), (0x06, 0, 0, 0x7FFF0000), (0x20, 0, 0, 0)]
    for name in names:
        code += [(0x15, 0, 1, SYSCALLS[name]), (0x06, 0, 0, 0x00050000 | EPERM)]
    code.append((0x06, 0, 0, 0x7FFF0000))
    bytes_ = b"".join(struct.pack("HBBI", *each) for each in code)
    held = ctypes.create_string_buffer(bytes_)
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0):
        os._exit(99)


def run(*words, env=None, seconds=10, before=None, limits=()):
    """Exit code and output of `respool WORDS`. After `seconds`, SIGTERM ends it."""

    def in_child():
        for which, value in limits:
            resource.setrlimit(which, (value, value))
        if before:
            before()

    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RESPOOL")}
    child = subprocess.Popen(
        [respool_program(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**inherited, **(env or {})},
        preexec_fn=in_child,
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.terminate()
        output, _ = child.communicate(timeout=PATIENCE_SECONDS)
    return child.returncode, output.decode(errors="replace")


class Folder(HostileTest):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hostile-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, text, mode=0o600):
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)


class RollingRestart(Folder):
    """A second process starts on the socket of a first one that drains."""

    def start(self, server, *args):
        path = str(self.folder / "respool.sock")
        return path, self.respool(*args, backend=server.backend, listen=f"unix:{path}")

    def test_second_process_keeps_its_socket(self):
        """The end of the first process leaves the socket of the second one where it is."""
        server = self.server()
        with server.client() as client:
            client.ask("SET", "big", b"x" * (20 * MIB))
        path, first = self.start(server, "--drain-timeout-ms", "3000")
        slow = self.keep(Client(path=path, receive_buffer=4096))
        slow.send("GET", "big")
        time.sleep(0.3)
        first.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        _, second = self.start(server)
        with Client(path=path) as client:
            self.assertEqual(client.ask("PING"), "PONG")
        first.wait()
        time.sleep(0.2)
        self.assertTrue(os.path.exists(path), "the path is still there")
        with Client(path=path) as client:
            self.assertEqual(client.ask("PING"), "PONG")
        second.stop()
        self.assertFalse(os.path.exists(path), "the last process removes its socket")

    def test_socket_of_a_living_process_is_not_taken(self):
        """A process does not silently take over a socket on which another process serves."""
        server = self.server()
        path, first = self.start(server)
        with Client(path=path) as client:
            inode = os.stat(path).st_ino
            second = self.respool(backend=server.backend, listen=f"unix:{path}", ready=False)
            time.sleep(1)
            self.assertEqual(client.ask("PING"), "PONG")
            if os.path.exists(path) and os.stat(path).st_ino == inode:
                self.assertFalse(second.lives(), "a process that no client can reach")
        first.stop()

    def test_file_at_the_path_is_kept(self):
        """A file that is not a socket is not removed or followed."""
        precious = self.file("precious", "precious")
        link = self.folder / "link.sock"
        link.symlink_to(precious)
        for path in (precious, str(link)):
            code, output = run("serve", "--listen", f"unix:{path}", seconds=2)
            self.assertNotEqual(code, 0, output)
            self.assertEqual(pathlib.Path(precious).read_text(), "precious")
        self.assertTrue(link.is_symlink())

    def test_path_that_is_replaced_by_a_file(self):
        """At its end, respool does not remove a file that has replaced its socket."""
        path, respool = self.start(self.server())
        os.unlink(path)
        pathlib.Path(path).write_text("precious")
        respool.stop()
        self.assertEqual(pathlib.Path(path).read_text(), "precious")


class UnreadLog(HostileTest):
    """Standard error is a full pipe without a reader."""

    def start(self, *args):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 65_536)
        except BlockingIOError:
            pass
        try:
            while True:
                os.write(writer, b"x")
        except BlockingIOError:
            pass
        os.set_blocking(writer, True)
        port = free_port()
        respool = self.respool(*args, backend=self.server().backend, listen=f"127.0.0.1:{port}", ready=False, stderr=writer)
        os.close(writer)
        respool.port = port
        wait_until(lambda: self.answers(port), "respool serves though its log blocks", 15)
        return respool

    @staticmethod
    def answers(port):
        try:
            with Client(port, timeout=2) as client:
                return client.ask("PING") == "PONG"
        except OSError:
            return False

    def test_serves(self):
        """respool starts and serves although it cannot write a log line."""
        respool = self.start()
        for _ in range(50):
            with respool.client() as client:
                client.raw(b"POST / HTTP/1.1\r\n\r\n")
        self.assertEqual(respool.ask("SET", "a", "1"), "OK")

    def test_ends_by_sigterm(self):
        """SIGTERM ends it in time."""
        respool = self.start("--drain-timeout-ms", "1000")
        took, code = seconds_of(lambda: (respool.send_signal(signal.SIGTERM), respool.wait(20))[1])
        self.assertLess(took, 8)
        self.assertEqual(code, 0)

    def test_ends_by_second_sigterm(self):
        """A second SIGTERM ends it at once, while a session keeps the drain waiting."""
        respool = self.start("--drain-timeout-ms", "60s")
        blocked = self.client(respool)
        blocked.send("BLPOP", "none", "0")
        with respool.client() as client:
            client.ask("SET", "big", b"x" * (8 * MIB))
        slow = self.client(respool, receive_buffer=4096)
        slow.send("GET", "big")
        time.sleep(0.5)
        respool.send_signal(signal.SIGTERM)
        time.sleep(1)
        took, code = seconds_of(lambda: (respool.send_signal(signal.SIGTERM), respool.wait(20))[1])
        self.assertLess(took, 5)
        self.assertEqual(code, 1)

    def test_closed_standard_error(self):
        """A standard error whose reader has gone does not end respool or its sessions."""
        reader, writer = os.pipe()
        os.close(reader)
        port = free_port()
        respool = self.respool(backend=self.server().backend, listen=f"127.0.0.1:{port}", ready=False, stderr=writer)
        os.close(writer)
        respool.port = port
        wait_until(lambda: self.answers(port), "respool serves", 15)
        self.assertEqual(respool.stop(), 0)


class Signals(HostileTest):
    """Signals of a terminal, a log rotation or a script."""

    def test_sighup_ends_nothing(self):
        """SIGHUP ends no session and not the process."""
        respool = self.respool(backend=self.server().backend)
        client = self.client(respool)
        for _ in range(3):
            respool.send_signal(signal.SIGHUP)
            time.sleep(0.2)
        self.assertEqual(client.ask("SET", "a", "1"), "OK")
        self.assertEqual(respool.ask("GET", "a"), b"1")
        self.assertEqual(respool.stop(), 0)

    def test_other_signals_end_no_answer(self):
        """Signals of log rotation and of timers are ignored, as the table of signals says."""
        table = (ROOT / "docs" / "operating" / "start.md").read_text()
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM):
            with self.subTest(signal=number.name):
                respool = self.respool(backend=self.server().backend)
                client = self.client(respool)
                client.ask("PING")
                respool.send_signal(number)
                time.sleep(0.5)
                self.assertTrue(respool.lives())
                self.assertEqual(client.ask("PING"), "PONG")
                self.assertIn(number.name, table)

    def test_sighup_while_draining(self):
        """SIGHUP during a drain does not hasten or stop it."""
        respool = self.respool(backend=self.server().backend)
        client = self.client(respool)
        client.send("EVAL", "local t = redis.call('TIME'); local n = t[1] + 1; while tonumber(redis.call('TIME')[1]) <= n do end return 7", 0)
        time.sleep(0.2)
        respool.send_signal(signal.SIGTERM)
        respool.send_signal(signal.SIGHUP)
        self.assertEqual(client.reply(), 7)
        self.assertEqual(respool.wait(), 0)

    def test_storm_of_signals(self):
        """A thousand SIGHUPs beside requests do no harm."""
        respool = self.respool(backend=self.server().backend)
        client = self.client(respool)
        for number in range(1000):
            respool.send_signal(signal.SIGHUP)
            if number % 50 == 0:
                self.assertEqual(client.ask("PING"), "PONG")


class Settings(Folder):
    """Settings that are wrong, also if they look right."""

    def serve(self, *words, **options):
        return run("serve", "--listen", "127.0.0.1:0", *words, **options)

    def test_unknown_variables(self):
        """The log at the start names each unknown variable that begins with RESPOOL_."""
        variables = ["RESPOOL_THREADS", "RESPOOL_PASWORD", "RESPOOL_PASSWORT", "RESPOOL_PASSWORD_", "RESPOOL_X"]
        _, output = self.serve(env={name: "hush-hush" for name in variables}, seconds=1.5)
        named = [re.search(r"environment variable (\S+) is not read", line) for line in output.splitlines()]
        # respool reads RESPOOL_PASSWORD. The log may name it only as a suggestion.
        self.assertEqual(sorted(each[1] for each in named if each), sorted(variables), output)
        self.assertNotIn("hush-hush", output)

    def test_readable_password_file(self):
        """A password file that all users may read causes a warning. A private one does not."""
        for option in ("--password-file", "--backend-password-file"):
            for mode, warned in ((0o644, True), (0o666, True), (0o604, True), (0o600, False), (0o400, False)):
                path = self.file(f"secret{mode:o}{option[2]}", "s3cret\n", mode)
                _, output = self.serve(option, path, seconds=1.5)
                lines = [line for line in output.splitlines() if path in line and "WARN" in line]
                self.assertEqual(bool(lines), warned, f"{option} {mode:o}: {output}")
                self.assertNotIn("s3cret", output)

    def test_readable_configuration_with_passwords(self):
        """A configuration file with passwords that all users may read causes a warning."""
        text = 'listen = ["127.0.0.1:0"]\npassword = "s3cret"\n'
        for mode, warned in ((0o644, True), (0o600, False)):
            path = self.file(f"c{mode:o}.toml", text, mode)
            _, output = run("serve", "--config", path, seconds=1.5)
            lines = [line for line in output.splitlines() if path in line and "WARN" in line]
            self.assertEqual(bool(lines), warned, f"{mode:o}: {output}")

    def test_passwords_are_never_shown(self):
        """Errors and `check --print` show no password, even if other settings are wrong."""
        secret = "topsecret4711"
        wrong = [
            ("serve", "--backend", f"redis://u:{secret}@127.0.0.1:99999/0"),
            ("serve", "--backend", f"redis://u:{secret}@[::1/0"),
            ("serve", "--backend", f"redis://{secret}@@127.0.0.1:1"),
            ("serve", "--backend", f"rediss-x://u:{secret}@127.0.0.1:1"),
            ("serve", "--pool", f"a=127.0.0.1:0=redis://u:{secret}@:0"),
            ("serve", "--pool", f"a=redis://u:{secret}@127.0.0.1:1"),
            ("serve", "--user", secret),
            ("serve", "--password", secret, "--password-file", "/nonexistent"),
            ("check", self.file("a.toml", f'password = "{secret}\n')),
            ("check", self.file("b.toml", f'backend = "redis://u:{secret}@127.0.0.1:99999/0"\n')),
            ("check", self.file("c.toml", f'pasword = "{secret}"\n')),
            ("check", self.file("d.toml", f'user = ["{secret}"]\n')),
            ("check", self.file("e.toml", f'password = ["{secret}"]\n')),
            ("check", self.file("f.toml", f'password = "{secret}"\nuser = ["a:{secret}"]\n'), "--print"),
            ("check", self.file("g.toml", f'[pool.a]\nlisten = ["127.0.0.1:0"]\nbackend = "redis://u:{secret}@h:1"\n'), "--print"),
        ]
        shown = []
        for words in wrong:
            _, output = run(*words, seconds=2)
            if secret in output:
                shown.append(f"{words[0]} {words[1]}: {output.strip()[:200]}")
        self.assertEqual(shown, [])

    def test_strange_files(self):
        """Strange configuration files: exit code 2 and a clear line, in time and bounded memory."""
        paths = ["/nonexistent", str(self.folder), "/dev/zero"]
        paths += [
            self.file("nested", "a = " + "[" * 100_000),
            self.file("tables", "a = " + "{a=" * 50_000),
            self.file("twice", "threads = 1\nthreads = 2\n"),
            self.file("escape", '"\\u001b[2J" = 1\n'),
            self.file("wrong", 'threads = "many"\nmax-delay-us = -1\nsessions-max = 99999999999999999999\n'),
            self.file("long", "# " + "x" * 20_000_000 + "\nthreads = 0\n"),
        ]
        for path in paths:
            took, (code, output) = seconds_of(
                lambda: run("check", path, seconds=15, limits=[(resource.RLIMIT_AS, 2 << 30)])
            )
            with self.subTest(path=path):
                self.assertEqual(code, 2, output[:500])
                self.assertLess(took, 12)
                self.assertNotIn("panicked", output)
                self.assertNotIn("\x1b[2J", output)
                self.assertLess(len(output), 5000)

    def test_strange_password_files(self):
        """The same for password files. Another start may find a right one, so the exit code is 1."""
        for path in ("/nonexistent", "/tmp", "/dev/zero", self.file("empty", "")):
            took, (code, output) = seconds_of(
                lambda: self.serve("--password-file", path, seconds=10, limits=[(resource.RLIMIT_AS, 2 << 30)])
            )
            with self.subTest(path=path):
                self.assertEqual(code, 1, output)
                self.assertLess(took, 8)

    def test_addresses_that_cannot_be_had(self):
        """If respool cannot listen on an address, it names the address and exits with 1."""
        taken = socket.create_server(("127.0.0.1", 0))
        shared = socket.socket()
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind(("127.0.0.1", 0))
        shared.listen()
        self.addCleanup(taken.close)
        self.addCleanup(shared.close)
        ports = [taken.getsockname()[1], shared.getsockname()[1]]
        for threads in ("1", "3"):
            for port in ports:
                code, output = run("serve", "--threads", threads, "--listen", f"127.0.0.1:{port}", seconds=3)
                self.assertEqual(code, 1, f"threads {threads}, shared {port == ports[1]}: {output}")
                self.assertIn(str(port), output)
        code, output = run("serve", "--listen", "8.8.8.8:6380", seconds=3)
        self.assertEqual(code, 1, output)

    def test_forbidden_system_calls(self):
        """If a sandbox forbids a system call, the error names it or the sandbox, not open files."""
        if os.uname().machine != "x86_64":
            self.skipTest("numbers of system calls are those of x86_64")
        for name in ("epoll_create1", "eventfd2", "signalfd4"):
            code, output = self.serve(before=lambda n=name: forbid(n), seconds=2)
            with self.subTest(forbidden=name):
                if code == 0 and "ready" in output:
                    continue
                self.assertEqual(code, 1, output)
                self.assertNotIn("panicked", output)
                self.assertRegex(output, r"not permitted|seccomp|forbid|denied")
                self.assertNotRegex(output, r"ulimit|LimitNOFILE|limit of open files")

    def test_forbidden_threads(self):
        """If respool cannot create a thread, the error says so, and does not blame open files."""
        if os.uname().machine != "x86_64":
            self.skipTest("numbers of system calls are those of x86_64")
        code, output = self.serve("--threads", "4", before=lambda: forbid("clone3", "clone"), seconds=3)
        self.assertEqual(code, 1, output)
        self.assertNotIn("panicked", output)
        self.assertIn("thread", output)
        self.assertNotRegex(output, r"open files|LimitNOFILE|nofile")

    def test_too_many_threads(self):
        """If the memory does not suffice for the threads, the start ends with a clear line."""
        code, output = self.serve("--threads", "100000", seconds=5, limits=[(resource.RLIMIT_AS, 150 << 20)])
        self.assertIn(code, (1, 2), output)
        self.assertNotIn("panicked", output)
        self.assertNotRegex(output, r"open files|LimitNOFILE|nofile")

    def test_backend_is_itself(self):
        """A respool before itself logs it or fails requests, and opens few connections."""
        port = free_port()
        try:
            respool = self.respool(backend=f"redis://127.0.0.1:{port}", listen=f"127.0.0.1:{port}")
        except RuntimeError as error:
            self.assertIn("itself", str(error))
            return
        with respool.client(timeout=5) as client:
            try:
                took, reply = seconds_of(lambda: client.ask("GET", "a"))
                self.assertTrue(reply is None or isinstance(reply, ErrorReply))
            except OSError:
                pass
        time.sleep(2)
        self.assertLess(respool.descriptors(), 1000)
        self.assertLess(respool.rss(), 200 * MIB)


class RefusedCommands(HostileTest):
    """refuse-commands, and attempts to evade it."""

    REFUSED = "flushall,flushdb,keys,config|set,client|kill,debug,shutdown"

    def test_other_spellings(self):
        """No spelling, place or size of a refused command gets past."""
        server = self.server()
        respool = self.respool("--refuse-commands", self.REFUSED, backend=server.backend)
        forms = [
            encode("FLUSHALL"),
            encode("fLuShAlL", "ASYNC"),
            b"FLUSHALL\r\n",
            b"  flushall  \r\n",
            b'"FLUSH\\x41LL"\r\n',
            b"'FLUSHALL'\r\n",
            b"FLUSHALL\n",
            encode("MULTI") + encode("FLUSHALL") + encode("EXEC"),
            encode("WATCH", "a") + encode("MULTI") + encode("FLUSHALL") + encode("EXEC"),
            encode("FLUSHALL", "x" * 300_000),
            b"*1\r\n$300000\r\nFLUSHALL" + b"x" * 299_992 + b"\r\n",
            encode("SUBSCRIBE", "a") + encode("FLUSHALL"),
            encode("HELLO", "3") + encode("SUBSCRIBE", "a") + encode("FLUSHALL"),
            encode("MONITOR") + encode("FLUSHALL"),
            encode("CLIENT", "REPLY", "OFF") + encode("FLUSHALL"),
            encode("CLIENT", "REPLY", "SKIP") + encode("FLUSHALL"),
            encode("ASKING") + encode("FLUSHALL"),
            encode("BLPOP", "none", "0.1") + encode("FLUSHALL"),
            encode("HELLO", "3") + encode("CLIENT", "TRACKING", "ON") + encode("FLUSHALL"),
            encode("SELECT", "0") + encode("FLUSHALL"),
            encode("RESET") + encode("FLUSHALL"),
            encode("FLUSHDB"),
            encode("GET", "a") * 50 + encode("FLUSHALL"),
            b"*2\r\n$8\r\nFLUSHALL\r\n$5\r\nASYNC\r\n",
            b"*1\r\n$08\r\nFLUSHALL\r\n",
            b"*0\r\n*-1\r\n\r\n" + encode("FLUSHALL"),
        ]
        got_past = []
        for form in forms:
            server.ask("SET", "canary", "1")
            with respool.client(timeout=5) as client:
                try:
                    client.raw(form)
                except OSError:
                    pass
                time.sleep(0.05)
                client.socket.settimeout(0.3)
                try:
                    client.socket.recv(65_536)
                except OSError:
                    pass
            if not server.ask("EXISTS", "canary"):
                got_past.append(form[:80])
        self.assertEqual(got_past, [])

    def test_scripts(self):
        """A refused command is refused in scripts too, or the option's text says that it is not."""
        server = self.server()
        respool = self.respool("--refuse-commands", self.REFUSED, backend=server.backend)
        server.ask("SET", "canary", "1")
        respool.ask("EVAL", "return redis.call('FLUSHALL')", 0)
        if server.ask("EXISTS", "canary"):
            return
        _, text = run("serve", "--help")
        about = re.search(r"--refuse-commands(.*?)\n\s*--", text, re.S)
        self.assertIsNotNone(about, "--help tells of the option")
        self.assertRegex(about[1].lower(), r"script|function")


class SeveralPools(Folder):
    """A client of one pool learns nothing of another pool."""

    def start(self):
        self.ours, self.theirs = self.server(), self.server()
        text = 'threads = 2\n'
        for name, server in (("ours", self.ours), ("hiddenpool", self.theirs)):
            text += f'[pool.{name}]\nlisten = ["127.0.0.1:{free_port()}"]\nbackend = "redis://{server.address}"\n'
        path = self.file("pools.toml", text)
        self.text = text
        respool = self.respool("--config", path, listen=None)
        ports = [int(each) for each in re.findall(r'listen = \["127\.0\.0\.1:(\d+)"', text)]
        respool.port = ports[0]
        # The other pool is in use.
        other = self.keep(Client(ports[1]))
        other.ask("CLIENT", "SETNAME", "hiddenclient")
        other.ask("SET", "hiddenkey", "1")
        other.ask("SUBSCRIBE", "hiddenchannel")
        self.secrets = ["hidden", str(self.theirs.port), str(ports[1])]
        return respool

    def test_info_and_lists(self):
        """INFO, CLIENT LIST, CONFIG GET and PUBSUB tell nothing of another pool."""
        respool = self.start()
        client = self.client(respool)
        client.ask("SET", "a", "1")
        asked = [
            ("INFO",),
            ("INFO", "everything"),
            ("INFO", "respool"),
            ("INFO", "all"),
            ("INFO", "servers"),
            ("INFO", "clients"),
            ("CLIENT", "LIST"),
            ("CONFIG", "GET", "respool.*"),
            ("PUBSUB", "CHANNELS"),
            ("PUBSUB", "NUMSUB", "hiddenchannel"[:6] + "channel"),
            ("COMMAND", "COUNT"),
            ("CLUSTER", "SLOTS"),
            ("ROLE",),
            ("CLIENT", "INFO"),
            ("MEMORY", "STATS"),
        ]
        told = []
        for words in asked:
            text = repr(client.ask(*words))
            if words[0] == "PUBSUB" and len(words) > 2:
                self.assertIn(", 0]", text)
                continue
            told += [f"{words}: {secret}" for secret in self.secrets if re.search(rf"(?<!\d){secret}(?!\d)", text)]
        self.assertEqual(told, [])

    def test_errors_and_kills(self):
        """Errors name no server of another pool. CLIENT KILL, PAUSE, UNBLOCK do not affect it."""
        respool = self.start()
        client = self.client(respool)
        other_port = int(self.secrets[2])
        victim = self.keep(Client(other_port))
        number = victim.ask("CLIENT", "ID")
        client.ask("CLIENT", "KILL", "ID", number)
        client.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        client.ask("CLIENT", "PAUSE", "3000", "ALL")
        took, reply = seconds_of(lambda: victim.ask("GET", "hiddenkey"))
        self.assertEqual(reply, b"1")
        self.assertLess(took, 2)
        client.ask("CLIENT", "UNPAUSE")
        self.assertNotIn("hidden", repr(client.ask("CLIENT", "LIST", "ID", number)))

    def test_one_pools_clients_leave_the_other_room(self):
        """Clients of one pool cannot use up the links and places of another pool."""
        respool = self.start()
        held = [self.client(respool) for _ in range(100)]
        for each in held:
            each.send("BLPOP", "none", "0")
        with Client(int(self.secrets[2])) as client:
            took, reply = seconds_of(lambda: client.ask("BLPOP", "q", "0.1"))
            self.assertIsNone(reply)
            self.assertLess(took, 3)


class Names(HostileTest):
    """Host names whose look-ups hang."""

    def test_hanging_name_of_one_pool(self):
        """Look-ups without an answer do not block the look-up of another pool's name."""
        if os.geteuid() != 0:
            self.skipTest("a mount of its own for resolv.conf needs root")
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            names.bind(("127.53.7.11", 53))
        except OSError as error:
            names.close()
            self.skipTest(f"no name server can be played: {error}")
        self.addCleanup(names.close)
        asked = []

        def serve():
            while True:
                try:
                    data, peer = names.recvfrom(1500)
                except OSError:
                    return
                labels, at = [], 12
                while data[at]:
                    labels.append(data[at + 1 : at + 1 + data[at]])
                    at += data[at] + 1
                name, kind = b".".join(labels).decode(), data[at + 1 : at + 3]
                asked.append(name)
                if name.startswith("hang"):
                    continue
                answer = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04\x7f\x00\x00\x01" if kind == b"\x00\x01" else b""
                head = data[:2] + b"\x81\x80\x00\x01" + (b"\x00\x01" if answer else b"\x00\x00") + b"\x00" * 4
                names.sendto(head + data[12 : at + 5] + answer, peer)

        threading.Thread(target=serve, daemon=True).start()
        server = self.server()
        folder = tempfile.TemporaryDirectory(prefix="hostile-")
        self.addCleanup(folder.cleanup)
        resolv = f"{folder.name}/resolv.conf"
        pathlib.Path(resolv).write_text("nameserver 127.53.7.11\noptions timeout:30 attempts:5\n")
        ports = [free_port(), free_port()]
        hanging = ",".join(f"hang{number}.test:{server.port}" for number in range(12))
        path = f"{folder.name}/pools.toml"
        pathlib.Path(path).write_text(
            "threads = 2\n"
            f'[pool.ill]\nlisten = ["127.0.0.1:{ports[0]}"]\nbackend = "redis-sharded://{hanging}"\n'
            f'[pool.well]\nlisten = ["127.0.0.1:{ports[1]}"]\nbackend = "redis://good.test:{server.port}"\n'
        )
        script = 'mount --bind "$1" /etc/resolv.conf && exec "$2" serve --config "$3"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", resolv, respool_program(), path]
        respool = self.respool(listen=None, command=command)
        ill = [self.keep(Client(ports[0])) for _ in range(40)]
        for number, each in enumerate(ill):
            each.send("GET", f"k{number}")
        time.sleep(3)
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for _ in range(5):
            with Client(ports[1]) as client:
                took, _ = seconds_of(lambda: client.ask("PING"))
                took, reply = seconds_of(lambda: client.ask("SET", "a", "1"))
                self.assertEqual(reply, "OK", respool.output()[-800:])
                self.assertLess(took, 5)
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.3)
        replies = [each.reply() for each in ill]
        for reply in replies:
            self.assert_error(reply)
        self.assertTrue(any(re.search("look|name|resol|DNS", str(reply)) for reply in replies), replies[:2])


if __name__ == "__main__":
    unittest.main()
