"""Clients that read their replies slowly, or request large replies, beside polite clients."""

import threading
import time
import unittest

from harness import ATTACK_SECONDS, Client, ErrorReply, HostileTest, MIB, encode, seconds_of

LONGEST_WAIT_SECONDS = 2.5


class PoliteClients:
    """Clients that count in a loop; each keeps its longest wait and its errors."""

    def __init__(self, test, port, number, pause=0.005):
        self.port, self.errors, self.answered, self.longest = port, [], 0, 0
        self.clients = [test.keep(Client(port, timeout=20)) for _ in range(number)]
        self.counts = [0] * number
        self.works = [test.background(lambda at=at: self._step(at), pause) for at in range(number)]

    def _step(self, at):
        try:
            took, reply = seconds_of(lambda: self.clients[at].ask("INCR", f"polite{at}"))
            self.longest = max(self.longest, took)
            if isinstance(reply, ErrorReply):
                self.errors.append(str(reply)[:80])
                time.sleep(0.01)
            else:
                self.answered += 1
        except OSError as error:
            self.errors.append(repr(error))
            self.clients[at].close()
            self.clients[at] = Client(self.port, timeout=20)

    def stop(self):
        for each in self.works:
            each.stopping.set()
        for each in self.works:
            each.close()
        for each in self.clients:
            each.close()

    def error_rate(self):
        return len(self.errors) / max(1, len(self.errors) + self.answered)


def unread(port, data, receive_buffer=4096):
    """A client that sends requests and reads nothing."""
    client = Client(port, receive_buffer=receive_buffer, timeout=5)
    try:
        client.raw(data)
    except OSError:
        pass
    return client


class ReadNothing(HostileTest):
    """Clients that read nothing of large replies."""

    def attack(self, request, count=1, every=0.3, args=(), prepare=None, threads="1", links=None):
        server = self.server()
        with server.client() as client:
            for number in range(4):
                client.ask("SET", f"big{number}", b"x" * (3 * MIB))
            client.ask("RPUSH", "list", *["x" * 100] * 1000)
            if prepare:
                prepare(client)
        respool = self.respool("--threads", threads, *args, backend=links or server.backend)
        polite = PoliteClients(self, respool.port, 20)
        time.sleep(0.5)
        end = time.monotonic() + ATTACK_SECONDS + 4
        held, attacks = [], 0
        while time.monotonic() < end:
            for _ in range(count):
                held.append(unread(respool.port, request))
                attacks += 1
            time.sleep(every)
            while len(held) > 60:
                held.pop(0).close()
        polite.stop()
        for each in held:
            each.close()
        self.assertEqual(polite.errors[:3], [], f"{len(polite.errors)} errors of {polite.answered}, {attacks} attacks")
        self.assertLess(polite.longest, LONGEST_WAIT_SECONDS, f"the longest wait, {attacks} attacks")
        return respool

    def test_values_of_megabytes(self):
        """20 unread replies of 3 MiB for each client, again and again from new clients."""
        self.attack(encode("GET", "big0") * 20)

    def test_values_with_writes_between(self):
        """The same with writes between the reads, so that respool cannot repeat the requests."""
        request = (encode("GET", "big0") + encode("INCR", "evil")) * 20
        self.attack(request)

    def test_many_at_once(self):
        """The same by ten new clients at a time."""
        self.attack(encode("GET", "big0") * 20, count=10, every=1)

    def test_one_that_comes_again(self):
        """The same ten times a second: 600 MB/s, half of a server's maximum."""
        self.attack(encode("GET", "big1") * 20 + encode("SET", "evil", "1"), every=0.1)

    def test_mget_and_eval(self):
        """Large replies of MGET, EVAL and LRANGE."""
        request = encode("MGET", "big0", "big1", "big2", "big3") * 3
        request += encode("EVAL", "return redis.call('GET', 'big0')", 0) * 3 + encode("LRANGE", "list", 0, -1) * 300
        self.attack(request)

    def test_transaction(self):
        """Large replies of EXEC."""
        self.attack((encode("MULTI") + encode("GET", "big0") * 5 + encode("EXEC")) * 4)

    def test_slow_instead_of_dead(self):
        """A client that reads a few bytes now and then, so that no idle timeout ends."""
        server = self.server()
        with server.client() as client:
            client.ask("SET", "big0", b"x" * (3 * MIB))
        respool = self.respool(backend=server.backend)
        polite = PoliteClients(self, respool.port, 20)
        time.sleep(0.5)
        held = [unread(respool.port, (encode("GET", "big0") + encode("INCR", "evil")) * 20) for _ in range(8)]
        end = time.monotonic() + ATTACK_SECONDS + 4
        while time.monotonic() < end:
            for number, each in enumerate(held):
                try:
                    each.socket.settimeout(0.01)
                    each.socket.recv(2048)
                except TimeoutError:
                    pass
                except OSError:
                    held[number] = unread(respool.port, (encode("GET", "big0") + encode("INCR", "evil")) * 20)
            time.sleep(0.05)
        polite.stop()
        for each in held:
            each.close()
        self.assertEqual(polite.errors[:3], [], f"{len(polite.errors)} of {polite.answered}")
        self.assertLess(polite.longest, LONGEST_WAIT_SECONDS)

    def test_before_shards(self):
        """The same before sharded servers."""
        servers = [self.server() for _ in range(2)]
        for server in servers:
            with server.client() as client:
                client.ask("SET", "big0", b"x" * (3 * MIB))
        backend = "redis-sharded://" + ",".join(each.address for each in servers)
        self.attack((encode("GET", "big0") + encode("INCR", "evil")) * 20, links=backend)

    def test_subscriber_that_reads_nothing(self):
        """Subscribers that read nothing do not hold up publishers or other subscribers."""
        server = self.server()
        respool = self.respool(backend=server.backend)
        listener, publisher = self.client(respool), self.client(respool)
        listener.ask("SUBSCRIBE", "news")
        deaf = []
        for _ in range(20):
            client = unread(respool.port, encode("SUBSCRIBE", "news"))
            client.reply()
            deaf.append(client)
        longest, message = 0, b"x" * 200_000
        for _ in range(300):
            took, _ = seconds_of(lambda: (publisher.ask("PUBLISH", "news", message), listener.reply()))
            longest = max(longest, took)
        for each in deaf:
            each.close()
        self.assertLess(longest, LONGEST_WAIT_SECONDS)


class AskMuch(HostileTest):
    """Clients that read all replies and request many at once."""

    def compare(self, request, replies, count=1):
        """The longest wait of polite clients beside a pipeline, directly and through respool."""
        server = self.server()
        with server.client() as client:
            client.ask("RPUSH", "list", *["x" * 50] * 1000)
            client.ask("SET", "value", "x" * 100_000)
        respool = self.respool(backend=server.backend)
        waits, served = [], []
        for port in (server.port, respool.port):
            polite = PoliteClients(self, port, 49, pause=0.01)
            greedy = [self.keep(Client(port)) for _ in range(count)]

            def ask(client):
                client.raw(request)
                client.replies(replies)

            works = [self.background(lambda c=client: ask(c)) for client in greedy]
            time.sleep(ATTACK_SECONDS)
            polite.stop()
            for each in works:
                each.close()
                self.assertEqual(each.errors, [])
            self.assertEqual(polite.errors, [])
            waits.append(polite.longest)
            served.append(polite.answered)
        self.assertLess(waits[1], max(1.5, 4 * waits[0]), f"longest wait; directly {waits[0]:.2f} s")
        # Counts requests instead of times: polite clients get a similar share as directly.
        self.assertGreater(served[1], served[0] * 0.4, f"polite requests; directly {served[0]}")

    def test_pipelined_lranges(self):
        """A pipeline of LRANGE of 1,000 elements beside 49 polite clients."""
        self.compare(encode("LRANGE", "list", 0, -1) * 100, 100)

    def test_pipelined_values(self):
        """A pipeline of values of 100 KB."""
        self.compare(encode("GET", "value") * 200, 200)

    def test_pipelined_small(self):
        """A deep pipeline of small requests."""
        self.compare(encode("INCR", "greedy") * 4000, 4000)


class ServerBoundsOutput(HostileTest):
    """The server closes a client that reads too little: here this client is a link."""

    def attack(self, *conf):
        server = self.server(*conf)
        with server.client() as client:
            for number in range(4):
                client.ask("SET", f"big{number}", b"x" * (4 * MIB))
        respool = self.respool(backend=server.backend)
        polite = PoliteClients(self, respool.port, 20, pause=0.01)
        time.sleep(1)
        downs, held = respool.counter("links_lost"), []
        end = time.monotonic() + 10
        while time.monotonic() < end:
            held.append(unread(respool.port, encode("GET", "big0") * 20))
            time.sleep(0.5)
            held.pop(0).close()
        polite.stop()
        self.assertLess(polite.error_rate(), 0.1, f"{len(polite.errors)} errors, {polite.answered} answered: {polite.errors[:2]}")
        self.assertLess(respool.counter("links_lost") - downs, 100)

    def test_output_buffer_limit(self):
        """client-output-buffer-limit: most polite requests are answered."""
        self.attack("--client-output-buffer-limit", "normal 8mb 8mb 1")

    def test_maxmemory_clients(self):
        """maxmemory-clients: most polite requests are answered."""
        self.attack("--maxmemory-clients", "20mb")

    def readers(self, *conf, count):
        """As many clients as `count` read 1 MiB each at once, twice, while 30 others increment."""
        server = self.server(*conf)
        with server.client() as client:
            for number in range(20):
                client.ask("SET", f"big{number}", b"x" * MIB)
        respool = self.respool(backend=server.backend)
        polite = PoliteClients(self, respool.port, 30, pause=0.02)
        time.sleep(1)
        barrier, errors = threading.Barrier(count), []

        def read(number):
            try:
                with Client(respool.port, timeout=40) as client:
                    barrier.wait(20)
                    for _ in range(2):
                        reply = client.ask("GET", f"big{number % 20}")
                        if len(reply) != MIB or isinstance(reply, ErrorReply):
                            errors.append(str(reply)[:80])
            except (OSError, threading.BrokenBarrierError) as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=read, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        polite.stop()
        self.assertEqual((errors, polite.errors), ([], []))
        self.assertEqual(respool.counter("links_lost"), 0)
        self.assertGreater(respool.counter("output_limit_waits"), 0)

    def test_many_readers_within_the_output_buffer_limit(self):
        """400 readers of 1 MiB under 256 MiB: all of them and 30 others are answered."""
        self.readers("--client-output-buffer-limit", "normal 256mb 0 0", count=400)

    def test_many_readers_within_a_low_output_buffer_limit(self):
        """200 readers of 1 MiB under 32 MiB: all of them and 30 others are answered."""
        self.readers("--client-output-buffer-limit", "normal 32mb 0 0", count=200)

    def test_many_readers_within_maxmemory_clients(self):
        """The same under maxmemory-clients of 64 MiB."""
        self.readers("--maxmemory-clients", "64mb", count=200)

    def test_timeout_of_the_server(self):
        """A server that closes idle links causes no errors."""
        server = self.server("--timeout", "1")
        respool = self.respool(backend=server.backend)
        client = self.client(respool)
        for _ in range(4):
            self.assertNotIsInstance(client.ask("GET", "a"), ErrorReply)
            time.sleep(2.2)

    def test_server_that_kills_links(self):
        """CLIENT KILL at the server, once a second, causes few errors."""
        server = self.server()
        respool = self.respool(backend=server.backend)
        polite = PoliteClients(self, respool.port, 20, pause=0.01)
        control = self.client(server)
        for _ in range(6):
            time.sleep(1)
            control.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(1)
        polite.stop()
        self.assertLess(polite.error_rate(), 0.2, f"{len(polite.errors)} of {polite.answered}: {polite.errors[:2]}")


if __name__ == "__main__":
    unittest.main()
