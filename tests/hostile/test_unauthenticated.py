"""Clients before their login must not use up resources of other clients."""

import time
import unittest

from harness import Client, ErrorReply, HostileTest, MIB, encode, on_every_server, seconds_of, wait_until

HALF_SENT = {
    "arguments": b"*10\r\n" + (b"$16000\r\n" + b"x" * 16000 + b"\r\n") * 9,
    "one argument": b"*2\r\n$3\r\nGET\r\n$250000\r\n" + b"x" * 150_000,
    "auth": b"*3\r\n$4\r\nAUTH\r\n$1\r\na\r\n$250000\r\n" + b"x" * 150_000,
    "line": b"x" * 60_000,
    "header": b"*1000000\r\n" + b"$1\r\na\r\n" * 20_000,
}


class HalfSentRequests(HostileTest):
    """Requests that never end, of clients without a password."""

    def attack(self, half_sent, newcomers, bound, *options):
        server = self.server(password="right")
        control = self.client(server)
        size = 6 * MIB
        control.ask("SET", "big", b"x" * size)
        args = ["--worker-memory-bytes-max", str(bound)] if bound else []
        respool = self.respool(*args, *options, backend=f"redis://{server.address}")
        # The first link of each kind takes a moment, which must not help the attackers.
        self.client(respool, "right").ask("GET", "big")
        held = []
        for _ in range(newcomers):
            newcomer = self.client(respool, timeout=10)
            held.append(newcomer)
            try:
                newcomer.raw(half_sent)
            except OSError:
                pass
        cut = []
        for number in range(20):
            reader = Client(respool.port, timeout=10, receive_buffer=65536)
            try:
                reader.raw(encode("AUTH", "right") + encode("GET", "big"))
                if (reply := reader.reply()) != "OK":
                    cut.append(f"{number}: {reply}")
                    continue
                # The first bytes of the value may have come with the answer to AUTH.
                got = len(reader.buffer)
                while got < size:
                    data = reader.socket.recv(65536)
                    if not data:
                        cut.append(f"{number}: closed after {got}")
                        break
                    got += len(data)
                    time.sleep(0.0002)
            except OSError as error:
                cut.append(f"{number}: {error!r}")
            finally:
                reader.close()
        self.assertEqual(cut, [], "clients with the password get all of their value")
        return respool, held

    def test_half_sent_requests_push_no_client_out(self):
        """If memory is short, clients with a password get their whole values."""
        self.attack(HALF_SENT["arguments"], 500, 64 * MIB)

    def test_half_sent_single_argument(self):
        """The same with one long argument each."""
        self.attack(HALF_SENT["one argument"], 500, 64 * MIB)

    def test_half_sent_passwords(self):
        """The same with AUTH that never ends."""
        self.attack(HALF_SENT["auth"], 500, 64 * MIB)

    def test_half_sent_lines_and_headers(self):
        """The same with lines and headers that never end."""
        self.attack(HALF_SENT["line"], 1000, 32 * MIB)

    def test_clients_before_login_hold_little(self):
        """Before its login a client holds a bounded part of a request, and all such clients hold little."""
        server = self.server(password="right")
        respool = self.respool(backend=f"redis://{server.address}")
        login = ("right",)
        respool.counter("held_bytes", *login)
        before = respool.rss()
        for _ in range(1500):
            newcomer = self.client(respool, timeout=10)
            try:
                newcomer.raw(HALF_SENT["arguments"])
            except OSError:
                pass
        time.sleep(1)
        grown = respool.rss() - before
        self.assertLess(grown, 100 * MIB, "1,500 clients with 144 KB each")

    def test_login_has_a_time_limit(self):
        """A client that sends half a login and waits is closed in bounded time."""
        server = self.server(password="right")
        respool = self.respool(backend=f"redis://{server.address}")
        newcomer = self.client(respool)
        newcomer.raw(b"*2\r\n$4\r\nAUTH\r\n$100\r\nx")
        self.assertTrue(newcomer.is_closed(90), "half of a login, for 90 s")

    def test_login_of_own_users_has_a_time_limit(self):
        """The same with respool's own users."""
        respool = self.respool("--password", "right", backend=self.server().backend)
        newcomer = self.client(respool)
        newcomer.raw(b"*2\r\n$4\r\nAUTH\r\n$100\r\nx")
        self.assertTrue(newcomer.is_closed(90), "half of a login, for 90 s")
        client = self.client(respool, "right")
        self.assertEqual(client.ask("PING"), "PONG")

    def test_slow_login_within_the_limit(self):
        """A client that needs a second for its login is let in."""
        server = self.server(password="right")
        respool = self.respool(backend=f"redis://{server.address}")
        client = self.client(respool)
        for byte in encode("AUTH", "right"):
            client.raw(bytes([byte]))
            time.sleep(0.05)
        self.assertEqual(client.reply(), "OK")
        time.sleep(3)
        self.assertEqual(client.ask("PING"), "PONG")


class Places(HostileTest):
    """Clients before their login that take the places of sessions."""

    def check(self, data, respool, every=2.0):
        held = []
        for _ in range(50):
            try:
                held.append(self.client(respool, timeout=5, source="127.0.0.2"))
            except OSError:
                break

        def speak():
            for number, each in enumerate(held):
                try:
                    each.raw(data)
                except OSError:
                    # A client that was closed connects again.
                    each.close()
                    try:
                        held[number] = Client(respool.port, timeout=5, source="127.0.0.2")
                    except OSError:
                        pass

        self.background(speak, pause=every)
        end = time.monotonic() + 100
        while time.monotonic() < end:
            try:
                with Client(respool.port, timeout=10) as client:
                    if client.ask("AUTH", "right") == "OK" and client.ask("PING") == "PONG":
                        for each in held:
                            each.close()
                        return
            except OSError:
                pass
            time.sleep(0.2)
        self.fail("no client with a password was let in for 100 s")

    def test_silent_clients(self):
        """Clients that send nothing do not hold all places of sessions-max for ever."""
        self.check(b"", self.respool("--password", "right", "--sessions-max", "50", backend=self.server().backend), 60)

    def test_clients_that_ping(self):
        """Clients that send PING now and then, and are refused, do not hold the places."""
        respool = self.respool("--password", "right", "--sessions-max", "50", backend=self.server().backend)
        self.check(encode("PING"), respool)

    def test_clients_that_dribble(self):
        """Clients that send a byte now and then do not hold the places."""
        server = self.server(password="right")
        self.check(b"x", self.respool("--sessions-max", "50", backend=f"redis://{server.address}"))


class BytesOneAtATime(HostileTest):
    """A request that comes byte by byte is scanned once, not once for each byte."""

    COUNT = 12_000
    # A client that has not authenticated may send 36 KiB.
    refused_from = 36 << 10

    def cpu_per_byte(self, prefix, byte, login=(), number=None):
        """CPU microseconds of respool for each single byte, behind a prefix sent at once."""
        number = number or self.COUNT
        client = self.client(self.respool_before, *login)
        if prefix:
            client.raw(prefix)
            time.sleep(0.3)
        before = self.respool_before.cpu_seconds()
        for at in range(number):
            try:
                client.raw(byte[at % len(byte) :][:1])
            except OSError:
                # A refusal is cheap, but respool must not refuse a request that is valid so far.
                self.assertGreaterEqual(at + len(prefix), self.refused_from)
                return 0
        time.sleep(0.3)
        spent = self.respool_before.cpu_seconds() - before
        client.close()
        return spent / number * 1e6

    def check(self, prefix, byte, *args, login=()):
        self.respool_before = self.respool(*args, backend=self.server().backend)
        # Short lines, byte by byte: the cost of reading a byte from a socket.
        base = max(self.cpu_per_byte(b"", b"PING\r\n", login), 2)
        long = self.cpu_per_byte(prefix, byte, login)
        self.assertLess(long, 2.5 * base + 2, f"{long:.1f} us for a byte; short requests: {base:.1f}")

    def test_long_line(self):
        """A byte of a line of 48 KB costs as much as a byte of a short line."""
        self.check(b"x" * 36_000, b"x")

    def test_long_line_before_login(self):
        """The same before the login."""
        self.respool_before = self.respool("--password", "right", backend=self.server().backend)
        base = max(self.cpu_per_byte(b"", b"PING\r\n"), 2)
        long = self.cpu_per_byte(b"x" * 36_000, b"x")
        self.assertLess(long, 2.5 * base + 2)

    def test_many_quoted_words(self):
        """The same with a line of many words in quotes."""
        self.check(b'"a" ' * 9_000, b'"a" ')

    def test_many_arguments(self):
        """A byte of a request with thousands of arguments costs as much as one of a short one."""
        self.check(b"*60000\r\n$4\r\nMGET\r\n" + b"$1\r\na\r\n" * 20_000, b"$1\r\na\r\n")

    def test_many_arguments_in_transaction(self):
        """The same between MULTI and EXEC."""
        request = b"*60000\r\n$4\r\nMGET\r\n" + b"$1\r\na\r\n" * 20_000
        self.check(encode("MULTI") + request, b"$1\r\na\r\n")

    def test_many_arguments_of_subscriber(self):
        """The same of a client that subscribes."""
        request = b"*30000\r\n$9\r\nSUBSCRIBE\r\n" + b"$1\r\na\r\n" * 20_000
        self.check(encode("SUBSCRIBE", "ch") + request, b"$1\r\na\r\n")

    def test_long_argument(self):
        """The same with one long argument."""
        self.check(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$250000\r\n" + b"x" * 200_000, b"x")

    def test_large_request_streams(self):
        """The same with a request that is cut through to the server."""
        self.check(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$9000000\r\n" + b"x" * 600_000, b"x")

    def test_long_number_of_arguments(self):
        """A number of arguments that never ends is refused, or costs as little."""
        self.refused_from = 0
        self.check(b"*" + b"0" * 36_000, b"0")

    def test_long_length_of_an_argument(self):
        """The same with the length of an argument."""
        self.refused_from = 0
        self.check(b"*3\r\n$" + b"0" * 36_000, b"0")

    def test_long_length_behind_others(self):
        """The same behind other arguments, and with spaces."""
        self.refused_from = 0
        self.check(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$" + b" " * 36_000, b" ")

    def test_long_line_of_carriage_returns(self):
        """The same with a line in which every byte might be its end."""
        self.refused_from = 0
        self.check(b"\r" * 36_000, b"\r")

    def test_whole_requests_byte_by_byte(self):
        """Short requests in the form of arrays cost as much as inline ones."""
        self.check(b"", b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n")

    def test_behind_a_blocked_request(self):
        """The same behind a request that waits at the server."""
        self.check(encode("BLPOP", "none", "0") + b"x" * 36_000, b"x")


class UnauthenticatedRequests(HostileTest):
    """Requests of clients before their login."""

    @on_every_server
    def test_large_request_before_login(self):
        """A large request before the login is refused, and is not streamed to the server."""
        server = self.server(password="right")
        for respool in (
            self.respool(backend=f"redis://{server.address}"),
            self.respool("--password", "right", backend=server.backend),
        ):
            # Once the first link is up, respool knows that the server wants a password.
            wait_until(lambda: str(respool.ask("PING")).startswith("NOAUTH"), "respool asks for a password")
            with respool.client(timeout=10) as client:
                took, reply = seconds_of(lambda: self.large(client))
                self.assertTrue(reply is None or isinstance(reply, ErrorReply), reply)
                self.assertLess(took, 8)
            self.assertEqual(respool.counter("streamed_requests", "right"), 0)
            self.assertIsNone(self.client(server).ask("GET", "a"))

    @staticmethod
    def large(client):
        try:
            client.raw(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2000000\r\n" + b"x" * 2_000_000 + b"\r\n")
            return client.reply()
        except OSError:
            return None

    def test_connections_without_a_word(self):
        """Connections that send nothing cost little memory."""
        respool = self.respool("--password", "right", backend=self.server().backend)
        before = respool.rss()
        held = [self.client(respool) for _ in range(2000)]
        time.sleep(0.5)
        self.assertLess((respool.rss() - before) / len(held), 8192)

    def test_storm_of_connections_leaves_nothing(self):
        """After many thousand short connections, descriptors and memory have not grown."""
        respool = self.respool("--password", "right", backend=self.server().backend)

        def storm():
            for number in range(2000):
                newcomer = Client(respool.port)
                newcomer.raw(b"*2\r\n$4\r\nAUTH\r\n$5\r\nw" if number % 2 else encode("PING"))
                newcomer.reset()

        storm()
        time.sleep(0.5)
        descriptors, memory = respool.descriptors(), respool.rss()
        for _ in range(3):
            storm()
        time.sleep(1)
        self.assertLessEqual(respool.descriptors(), descriptors + 4)
        self.assertLess(respool.rss(), memory + 8 * MIB)


class SharedPool(HostileTest):
    """Two addresses that hold half-sent requests in a process with the smallest memory."""

    def test_authenticated_half_sent_goes_before_output(self):
        """An old, half-sent request is closed before a reader that takes its replies."""
        server = self.server()
        control = self.client(server)
        size = 3 * MIB
        control.ask("SET", "big", b"x" * size)
        bounds = ("--worker-memory-bytes-max", "16MiB", "--session-output-hard-bytes", "4MiB")
        respool = self.respool(*bounds, backend=server.backend)
        held = [self.client(respool, timeout=10) for _ in range(200)]
        for each in held:
            try:
                each.raw(HALF_SENT["arguments"])
            except OSError:
                pass
        time.sleep(0.3)
        cut = 0
        for _ in range(15):
            with Client(respool.port, timeout=10, receive_buffer=65536) as reader:
                try:
                    cut += len(reader.ask("GET", "big")) != size
                except (OSError, TypeError):
                    cut += 1
        self.assertEqual(cut, 0, "readers that were cut")


if __name__ == "__main__":
    unittest.main()
