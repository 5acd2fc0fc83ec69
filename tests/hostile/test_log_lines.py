"""Log lines that clients cause: bounded rates, counts of suppressed lines, no raw client bytes."""

import re
import time
import unittest

from harness import Client, ErrorReply, HostileTest, MIB, encode, wait_until

FLOOD = 1500
LINES_MAX = 60
# The maximum delay of a count of suppressed lines.
SUMMARY_SECONDS = 75


class Floods(HostileTest):
    """Many events of one kind in a few seconds."""

    def flood(self, cause, *args, options=None, respool=None, number=FLOOD):
        """Causes the event many times. The log has few lines of it, and a count of the rest."""
        if respool is None:
            respool = self.respool(*args, backend=self.server().backend, **(options or {}))
            # The line of the first link does not belong to the event.
            wait_until(lambda: "link up" in respool.output(), "the first link is up")
        before = len(respool.output().splitlines())
        for step in range(number):
            cause(respool, step)
        time.sleep(1)
        lines = respool.output().splitlines()[before:]
        self.assertLess(len(lines), LINES_MAX, f"{number} events: {lines[:2]}")

        def told():
            now = respool.output().splitlines()[before:]
            counts = [left_out(line) for line in now]
            written = sum(count is None for count in counts)
            counted = sum(count or 0 for count in counts)
            self.assertLessEqual(counted, number)
            return counted + written >= number

        # An event that makes no line at all needs no count.
        if lines:
            wait_until(told, f"a count of {number} events: {respool.output()[-600:]}", SUMMARY_SECONDS)
        return respool

    @staticmethod
    def say(data):
        def cause(respool, _):
            with Client(respool.port) as client:
                client.raw(data)
                client.is_closed(2)

        return cause

    def test_http(self):
        """POST makes a bounded number of lines."""
        self.flood(self.say(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"))

    def test_http_before_login(self):
        """The same for clients without a password."""
        self.flood(self.say(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"), "--password", "right")

    def test_protocol_errors(self):
        """Protocol errors make a bounded number of lines."""
        forms = [b"*1\r\nx\r\n", b"*-5\r\n$x\r\n", b"*1\r\n$-9\r\n", b"*99999999\r\n", b'"\r\n', b"*1\r\n$999999999999\r\n"]
        respool = self.respool(backend=self.server().backend)
        for step in range(FLOOD):
            with Client(respool.port) as client:
                client.raw(forms[step % len(forms)])
        time.sleep(1)
        self.assertLess(len(respool.output().splitlines()), LINES_MAX)

    def test_client_kill(self):
        """CLIENT KILL makes a bounded number of lines."""
        respool = self.respool(backend=self.server().backend)
        control = self.client(respool)

        def cause(respool, _):
            with Client(respool.port) as victim:
                number = victim.ask("CLIENT", "ID")
                control.ask("CLIENT", "KILL", "ID", number)

        self.flood(cause, respool=respool)

    def test_client_kill_of_oneself(self):
        """A client that kills itself again and again makes few lines."""

        def cause(respool, _):
            with Client(respool.port) as client:
                number = client.ask("CLIENT", "ID")
                client.ask("CLIENT", "KILL", "ID", number, "SKIPME", "no")

        self.flood(cause)

    def test_refused_sessions(self):
        """New clients above sessions-max make a bounded number of lines."""
        respool = self.respool("--sessions-max", "5", backend=self.server().backend)
        held = [self.client(respool) for _ in range(5)]
        for each in held:
            each.ask("PING")
        for _ in range(FLOOD):
            with Client(respool.port) as client:
                client.is_closed(2)
        time.sleep(2)
        self.assertLess(len(respool.output().splitlines()), LINES_MAX)

        def counted():
            lines = respool.output().splitlines()
            told = [re.search(r"clients were refused .*\bclients=(\d+)", line) for line in lines]
            clients = sum(int(match.group(1)) for match in told if match)
            return clients + sum(left_out(line) or 0 for line in lines) == FLOOD

        wait_until(counted, f"a count of {FLOOD} clients: {respool.output()[-600:]}", SUMMARY_SECONDS)

    def test_options_set(self):
        """CONFIG SET of an option in a loop makes a bounded number of lines."""
        respool = self.respool(backend=self.server().backend)
        client = self.client(respool)
        for step in range(FLOOD):
            client.ask("CONFIG", "SET", "respool.fuse", "no" if step % 2 else "yes")
        time.sleep(1)
        self.assertLess(len(respool.output().splitlines()), LINES_MAX * 2)

    def test_wrong_passwords(self):
        """Wrong passwords of the server's users make a bounded number of lines."""
        server = self.server(password="right")
        respool = self.respool(backend=f"redis://{server.address}")
        with Client(respool.port, timeout=5) as client:
            end = time.monotonic() + 5
            try:
                while time.monotonic() < end:
                    client.ask("AUTH", "someone", "wrong")
            except OSError:
                pass
        time.sleep(1)
        self.assertLess(len(respool.output().splitlines()), LINES_MAX)

    def test_unknown_databases_and_users(self):
        """Databases and users that the server does not have make a bounded number of lines."""
        respool = self.respool(backend=self.server().backend)
        client = self.client(respool, timeout=10)
        for step in range(300):
            client.ask("SELECT", 100 + step)
        time.sleep(1)
        self.assertLess(len(respool.output().splitlines()), LINES_MAX)

    def test_slow_readers_that_are_closed(self):
        """Sessions that exceed the bound of their output make a bounded number of lines."""
        args = ("--session-output-soft-bytes", "16KiB", "--session-output-hard-bytes", "64KiB", "--session-stall-ms", "50")
        respool = self.respool(*args, "--head-of-line-stall-ms", "50", backend=self.server().backend)
        with respool.client() as client:
            client.ask("SET", "big", b"x" * MIB)
        for _ in range(8):
            held = []
            for _ in range(25):
                client = Client(respool.port, receive_buffer=4096)
                client.raw(encode("GET", "big") * 8)
                held.append(client)
            time.sleep(0.3)
            for client in held:
                client.close()
        time.sleep(1)
        self.assertLess(len(respool.output().splitlines()), 2 * LINES_MAX)

    def test_links_that_clients_bring_down(self):
        """A client whose dedicated links the server closes makes a bounded number of lines."""
        respool = self.respool(backend=self.server().backend)
        for _ in range(300):
            with Client(respool.port, timeout=5) as client:
                # QUIT of Redis 7 in a MULTI with SELECT goes out on a dedicated link.
                client.raw(encode("WATCH", "a") + encode("MULTI") + encode("SELECT", "1") + encode("EXEC"))
                client.raw(encode("DEBUG", "SLEEP", "0") + encode("MONITOR") + encode("QUIT"))
                client.is_closed(2)
        time.sleep(0.5)
        self.assertLess(len(respool.output().splitlines()), 2 * LINES_MAX)

    def test_lines_go_on_after_a_flood(self):
        """After a flood of one kind, a line of another kind is written at once."""
        respool = self.respool(backend=self.server().backend)
        for _ in range(300):
            with Client(respool.port) as client:
                client.raw(b"POST / HTTP/1.1\r\n\r\n")
                client.is_closed(2)
        self.client(respool).ask("CONFIG", "SET", "respool.fuse", "no")
        wait_until(lambda: respool.lines("options set"), "the line of CONFIG SET", 5)


def left_out(line):
    """The count in a line about suppressed lines; None for any other line."""
    found = re.search(r" lines like these were left out line=\S.* count=(\d+)( about=|$)", line)
    return int(found[1]) if found else None


CONTROL = ["\x1b[2Jcleared", "a\nreport=forged", "a\r\nb", "\x00nul", "tab\there", "\x7fdel", "\x9bcsi", "ü\u202eright", "a b"]


class BytesOfClients(HostileTest):
    """Control characters and line ends in names, users and options."""

    def check_log(self, respool):
        log = open(respool.log, "rb").read()
        bad = [line for line in log.split(b"\n") if re.search(rb"[\x00-\x08\x0b-\x1f\x7f\x9b](?![\x80-\xbf])", line)]
        bad = [line for line in bad if not re.fullmatch(rb"[\x20-\x7e\xc2-\xf4\x80-\xbf]*", line)]
        self.assertEqual(bad, [], "control characters in the log")
        heads = [line for line in log.decode(errors="replace").split("\n") if line and not re.match(r"^\d{4}-|^\{", line)]
        self.assertEqual(heads, [], "lines without a time")

    def test_names_in_client_list(self):
        """CLIENT LIST has one line for each client, for any bytes in the clients' names."""
        respool = self.respool(backend=self.server().backend)
        control = self.client(respool)
        held = []
        for name in CONTROL:
            for words in (
                ("CLIENT", "SETNAME", name),
                ("CLIENT", "SETINFO", "LIB-NAME", name),
                ("CLIENT", "SETINFO", "LIB-VER", name),
                ("HELLO", "3", "SETNAME", name),
            ):
                client = self.client(respool)
                client.ask(*words)
                held.append(client)
        text = control.ask("CLIENT", "LIST").decode("latin1")
        lines = text.rstrip("\n").split("\n")
        self.assertEqual(len(lines), len(held) + 1)
        for line in lines:
            self.assertRegex(line, r"^id=\d+ addr=")
            self.assertNotRegex(line, r"[\x00-\x1f\x7f]")
        control.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.5)
        self.check_log(respool)

    def test_names_are_refused_as_the_server_refuses_them(self):
        """A name is taken or refused in the server's words.

        Servers from 7.2 on look at the bytes before a NUL alone. respool refuses the name: the bytes behind
        it would forge lines of CLIENT LIST.
        """
        server = self.server()
        respool = self.respool(backend=server.backend)
        for name in CONTROL:
            for words in (("CLIENT", "SETNAME", name), ("HELLO", "2", "SETNAME", name)):
                with respool.client() as through, server.client() as direct:
                    there, here = direct.ask(*words), through.ask(*words)
                    if "\0" in name:
                        self.assertIsInstance(here, ErrorReply)
                        continue
                    self.assertEqual(type(here), type(there), (words, here))
                    self.assertEqual(through.ask("CLIENT", "GETNAME"), direct.ask("CLIENT", "GETNAME"))

    def test_users_passwords_and_commands(self):
        """Users, passwords, unknown commands and option names of clients do not reach the log raw."""
        server = self.server(password="right")
        own = self.respool("--password", "right", backend=server.backend)
        theirs = self.respool(backend=f"redis://{server.address}")
        for respool in (own, theirs):
            for text in CONTROL:
                with respool.client(timeout=10) as client:
                    try:
                        client.ask("AUTH", text, text)
                        client.ask(text, text)
                        client.ask("AUTH", "right")
                        client.ask("CONFIG", "SET", "respool." + text, text)
                        client.ask("CONFIG", "SET", "respool.max-delay-us", text)
                        client.ask("SUBSCRIBE", text)
                        client.raw(text.encode() + b"\r\n" + b"*1\r\n" + text.encode())
                    except OSError:
                        pass
            time.sleep(0.3)
            self.check_log(respool)
            self.assertNotIn("forged\n", respool.output().replace("\\n", ""))


if __name__ == "__main__":
    unittest.main()
