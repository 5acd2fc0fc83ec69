"""Attacks on respool's memory: the excess over the bound stays below a quarter of it."""

import time
import unittest

from harness import Client, HostileTest, MIB, encode

BOUND = 64 * MIB
ARGS = ("--threads", "1", "--worker-memory-bytes-max", str(BOUND))


class Bounds(HostileTest):
    """Each attack wants far more memory than the bound allows."""

    def measure(self, attack, *args, backend=None, clients=500, login=(), bound=True):
        """RSS that `attack` adds to a respool with that many sessions, each after one request."""
        respool = self.respool(*(ARGS if bound else ()), *args, backend=backend or self.server().backend)
        held = [self.client(respool, *login, timeout=2, receive_buffer=4096) for _ in range(clients)]
        for each in held:
            each.ask("PING")
        time.sleep(0.5)
        baseline, peak = respool.rss(), 0
        for number, each in enumerate(held):
            try:
                for data in attack(number):
                    each.raw(data)
            except OSError:
                pass
            if number % 20 == 0:
                peak = max(peak, respool.rss())
        for _ in range(10):
            time.sleep(0.2)
            peak = max(peak, respool.rss())
        self.assertLess(peak - baseline, 1.25 * BOUND, f"baseline {baseline >> 20} MiB, peak {peak >> 20} MiB")
        # A new session still gets a reply.
        with respool.client(*login, timeout=30) as client:
            self.assertEqual(client.ask("PING"), "PONG")
        return respool, held

    def test_client_list(self):
        """CLIENT LIST of many clients that do not read its replies."""
        self.measure(lambda _: [encode("CLIENT", "LIST") * 200])

    def test_client_list_with_long_names(self):
        """The same with names of 10 KB."""
        self.measure(lambda _: [encode("CLIENT", "SETNAME", "n" * 10_000), encode("CLIENT", "LIST") * 100], clients=200)

    def test_info(self):
        """INFO in a long pipeline of clients that do not read."""
        self.measure(lambda _: [encode("INFO", "everything") * 500])

    def test_command_docs(self):
        """COMMAND DOCS in a pipeline of clients that do not read.

        Redis 8.2 sends 900 MB, in about six seconds of CPU.
        """
        self.measure(lambda _: [encode("COMMAND", "DOCS") * 20], clients=200)

    def test_errors_here(self):
        """Errors that respool itself makes, with long names of commands in them."""
        self.measure(lambda _: [encode("x" * 2000, "y" * 2000) * 300])

    def test_long_channel_names(self):
        """Channels and patterns with names of 60 KB, different ones for each client."""

        def attack(number):
            for each in range(30):
                yield encode("SUBSCRIBE", f"{number}-{each}-" + "c" * 60_000)

        self.measure(attack, clients=200)

    def test_long_patterns(self):
        """Patterns and sharded channels with long names."""

        def attack(number):
            for each in range(30):
                yield encode("PSUBSCRIBE", f"{number}-{each}-*" + "c" * 30_000)
                yield encode("SSUBSCRIBE", f"{number}-{each}-" + "c" * 30_000)

        self.measure(attack, clients=200)

    def test_many_channels(self):
        """Many short channels for each client."""

        def attack(number):
            for part in range(10):
                yield encode("SUBSCRIBE", *(f"{number}-{part}-{each}" for each in range(400)))

        self.measure(attack, clients=200)

    def test_deaf_subscribers(self):
        """Subscribers that take no messages of a busy channel."""
        server = self.server()
        publisher = self.client(server)

        def attack(number):
            yield encode("SUBSCRIBE", "news")
            if number % 10 == 9:
                for _ in range(10):
                    publisher.ask("PUBLISH", "news", b"x" * 100_000)

        self.measure(attack, backend=server.backend)

    def test_transactions(self):
        """Transactions that are queued and never executed."""
        self.measure(lambda _: [encode("MULTI")] + [encode("SET", "k", "v" * 10_000)] * 100)

    def test_transactions_with_watch(self):
        """The same on dedicated links."""
        self.measure(lambda _: [encode("WATCH", "w"), encode("MULTI")] + [encode("SET", "k", "v" * 10_000)] * 100)

    def test_half_sent(self):
        """Half-sent requests of clients with every right."""
        self.measure(lambda _: [b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$250000\r\n" + b"x" * 240_000])

    def test_half_sent_many_arguments(self):
        """Half-sent requests with very many arguments."""
        self.measure(lambda _: [b"*1000000\r\n" + b"$1\r\na\r\n" * 30_000])

    def test_behind_a_blocked_command(self):
        """Requests behind BLPOP are held until its reply, within the bound."""
        self.measure(lambda _: [encode("BLPOP", "none", "0")] + [encode("SET", "k", "v" * 10_000)] * 24)

    def test_behind_a_pause(self):
        """Requests that wait for the end of CLIENT PAUSE are held within the bound."""
        server = self.server()
        respool_pause = encode("CLIENT", "PAUSE", "8000", "ALL")

        def attack(number):
            if number == 0:
                yield respool_pause
            else:
                yield from [encode("SET", "k", "v" * 10_000)] * 24

        self.measure(attack, backend=server.backend)

    def test_replies_before_their_turn(self):
        """Before sharded servers, replies in the reorder buffer count, too."""
        servers = [self.server() for _ in range(2)]
        for server in servers:
            with server.client() as client:
                for number in range(10):
                    client.ask("SET", f"big{number}", b"x" * MIB)
        backend = "redis-sharded://" + ",".join(each.address for each in servers)
        self.measure(
            lambda _: [b"".join(encode("GET", f"big{number}") for number in range(10)) * 3], backend=backend, clients=100
        )

    def test_mget_over_shards(self):
        """Parts of a divided MGET that wait for each other count, too."""
        servers = [self.server() for _ in range(2)]
        for server in servers:
            with server.client() as client:
                for number in range(10):
                    client.ask("SET", f"big{number}", b"x" * MIB)
        backend = "redis-sharded://" + ",".join(each.address for each in servers)
        keys = [f"big{number}" for number in range(10)]
        self.measure(lambda _: [encode("MGET", *keys) * 3], backend=backend, clients=100)

    def test_exec_replies(self):
        """Replies of EXEC are held whole, and count, too."""
        server = self.server()
        with server.client() as client:
            client.ask("SET", "big", b"x" * MIB)
        request = encode("MULTI") + encode("GET", "big") * 10 + encode("EXEC")
        self.measure(lambda _: [request] * 3, backend=server.backend, clients=100)

    def test_monitors(self):
        """MONITOR of clients that read nothing."""
        server = self.server()

        def attack(number):
            yield encode("MONITOR")
            if number % 20 == 19:
                with server.client() as client:
                    client.raw(encode("ECHO", "x" * 50_000) * 40)
                    client.replies(40)

        self.measure(attack, backend=server.backend, clients=200)

    def test_tracking_of_many_keys(self):
        """CLIENT TRACKING with redirection, and long keys, of clients that read nothing."""

        def attack(number):
            yield encode("HELLO", "3") + encode("CLIENT", "TRACKING", "ON", "BCAST")
            for each in range(20):
                yield encode("SET", f"{number}-{each}-" + "k" * 5_000, "1")

        self.measure(attack, clients=200)

    def test_unknown_commands(self):
        """Names of unknown commands are not kept."""

        def attack(number):
            for each in range(20):
                yield encode(f"nope{number}x{each}" + "n" * 5_000, "k")

        self.measure(attack)

    def test_scripts(self):
        """Scripts that respool remembers for the server are within the bound."""

        def attack(number):
            for each in range(10):
                yield encode("SCRIPT", "LOAD", f"return {number * 100 + each} --" + "x" * 100_000)

        self.measure(attack, clients=200)

    def test_scripts_by_eval(self):
        """The same by EVAL."""

        def attack(number):
            for each in range(10):
                yield encode("EVAL", f"return {number * 100 + each} --" + "x" * 100_000, 0)

        self.measure(attack, clients=200)

    def test_clients_that_are_spared(self):
        """CLIENT NO-EVICT lifts no bound: clients with it cannot hold all memory."""
        request = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$250000\r\n" + b"x" * 240_000
        self.measure(lambda _: [encode("CLIENT", "NO-EVICT", "on"), request])

    def test_spared_transactions(self):
        """The same with transactions that are never executed."""
        queued = [encode("SET", "k", "v" * 10_000)] * 100
        self.measure(lambda _: [encode("CLIENT", "NO-EVICT", "on"), encode("MULTI")] + queued)

    def test_two_workers(self):
        """The bound holds for each worker: two workers hold at most twice as much."""
        request = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$250000\r\n" + b"x" * 240_000
        self.measure(lambda _: [request], "--threads", "2", "--worker-memory-bytes-max", str(BOUND // 2), bound=False)

    def test_client_list_of_two_workers(self):
        """Lists that workers build for each other count, too."""
        args = ("--threads", "2", "--worker-memory-bytes-max", str(BOUND // 2))
        self.measure(lambda _: [encode("CLIENT", "LIST") * 200], *args, bound=False)

    def test_logins_of_own_users(self):
        """Names and passwords that are refused leave nothing while they wait."""
        self.measure(lambda _: [encode("AUTH", "u" * 60_000, "p" * 60_000) * 20], "--password", "right", login=("right",))

    def test_refused_forever(self):
        """Requests for a server that is away leave nothing."""
        server = self.server()
        respool = self.respool(*ARGS, backend=server.backend)
        server.kill()
        held = [self.client(respool, timeout=5, receive_buffer=4096) for _ in range(200)]
        baseline = respool.rss()
        for each in held:
            try:
                each.raw(encode("SET", "k", "v" * 10_000) * 100)
            except OSError:
                pass
        time.sleep(1)
        self.assertLess(respool.rss() - baseline, 1.25 * BOUND)


class KeptForGood(HostileTest):
    """Memory that is free again after its clients have gone."""

    def check(self, attack, *args, backend=None, rounds=3):
        respool = self.respool(*ARGS, *args, backend=backend)
        for number in range(50):
            attack(respool, number)
        time.sleep(0.5)
        before = respool.rss()
        for number in range(rounds * 1000):
            attack(respool, number)
        time.sleep(1)
        self.assertLess(respool.rss() - before, 16 * MIB, "memory that stays")

    def test_rejected_logins(self):
        """Logins with long names and passwords, each refused."""
        server = self.server(password="right")

        def attack(respool, number):
            with Client(respool.port, timeout=1) as client:
                try:
                    client.raw(encode("AUTH", f"{number}" + "u" * 30_000, "p" * 30_000))
                    if number % 20 == 0:
                        client.reply()
                except OSError:
                    pass

        self.check(attack, backend=f"redis://{server.address}")

    def test_waiting_logins(self):
        """Many logins with long words that wait for their turn are within the bound."""
        server = self.server(password="right")
        respool = self.respool(*ARGS, backend=f"redis://{server.address}")
        before, held = respool.rss(), []
        for number in range(1500):
            client = self.client(respool, timeout=1)
            try:
                client.raw(encode("AUTH", f"{number}" + "u" * 100_000, "p" * 100_000))
            except OSError:
                pass
            held.append(client)
        time.sleep(1)
        self.assertLess(respool.rss() - before, 1.25 * BOUND)

    def test_waiting_logins_by_hello(self):
        """The same by HELLO, with a long name of the client besides."""
        server = self.server(password="right")
        respool = self.respool(*ARGS, backend=f"redis://{server.address}")
        before = respool.rss()
        for number in range(1500):
            client = self.client(respool, timeout=1)
            words = ("HELLO", "3", "AUTH", f"{number}" + "u" * 60_000, "p" * 60_000, "SETNAME", "n" * 60_000)
            try:
                client.raw(encode(*words))
            except OSError:
                pass
        time.sleep(1)
        self.assertLess(respool.rss() - before, 1.25 * BOUND)

    def test_names_of_gone_clients(self):
        """Names of clients that are gone."""

        def attack(respool, number):
            with Client(respool.port) as client:
                client.ask("CLIENT", "SETNAME", f"{number}" + "n" * 20_000)

        self.check(attack, backend=self.server().backend, rounds=1)

    def test_databases(self):
        """Databases that the server refuses."""
        respool = self.respool(*ARGS, "--request-timeout-ms", "2000", backend=self.server().backend)
        before = respool.rss()
        client = self.client(respool)
        for number in range(300):
            client.ask("SELECT", 1000 + number)
        self.assertLess(respool.rss() - before, 16 * MIB)
        self.assertLess(respool.counter("links"), 60)

    def test_channels_of_gone_clients(self):
        """Channels of clients that are gone."""

        def attack(respool, number):
            with Client(respool.port) as client:
                client.ask("SUBSCRIBE", f"{number}" + "c" * 20_000)

        self.check(attack, backend=self.server().backend, rounds=1)


if __name__ == "__main__":
    unittest.main()
