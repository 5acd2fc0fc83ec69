"""Faulty and hostile servers: cut, late, wrong or unrequested replies, and false topologies."""

import os
import random
import re
import threading
import time
import unittest

from harness import (
    ATTACK_SECONDS,
    Client,
    ErrorReply,
    FakeServer,
    HostileTest,
    MIB,
    Push,
    Relay,
    encode,
    seconds_of,
    wait_until,
)

WORDS = [
    b"+OK\r\n",
    b":1\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"_\r\n",
    b"-ERR x\r\n",
    b">1\r\n+x\r\n",
    b"|1\r\n+a\r\n+b\r\n",
    b"%1\r\n+a\r\n+b\r\n",
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"-ASK 1 127.0.0.1:1\r\n",
    b"-MOVED x y\r\n",
    b"-LOADING x\r\n",
    b"-NOAUTH x\r\n",
    b"-NOPERM x\r\n",
    b"-NOSCRIPT x\r\n",
    b"-EXECABORT x\r\n",
    b"-READONLY x\r\n",
    b"-CLUSTERDOWN Hash slot not served\r\n",
    b"-TRYAGAIN x\r\n",
    b"-MASTERDOWN x\r\n",
    b"-ERR unknown command 'MGET'\r\n",
    b">3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$1\r\nx\r\n",
    b">3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n",
    b">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n",
    b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n",
    b">0\r\n",
    b">1\r\n:5\r\n",
    b"*1\r\n" * 3000,
    b"|0\r\n" * 500 + b"+x\r\n",
    b"$9223372036854775807\r\n",
    b"*9223372036854775807\r\n",
    b"%4294967296\r\n",
    b"$-2\r\n",
    b"(" + b"9" * 5000 + b"\r\n",
    b"=15\r\ntxt:Some string\r\n",
    b"!5\r\nERR x\r\n",
    b"#t\r\n",
    b",inf\r\n",
    b"$?\r\n;4\r\nHell\r\n;0\r\n",
    b".\r\n",
    b"\x00\r\n",
]


class Mutations:
    """Changes a server's replies, with a probability for each read. `kinds` names the changes."""

    KEEP_ORDER = ("cut", "late", "halves", "drop half and cut")
    ALL = (*KEEP_ORDER, "insert", "put first", "byte", "delete", "double", "length", "sign", "shuffle", "wrap", "random")

    def __init__(self, seed, rate, kinds):
        self.rng, self.rate, self.kinds, self.on, self.made = random.Random(seed), rate, kinds, True, 0
        self.lock = threading.Lock()

    def __call__(self, data):
        with self.lock:
            rng = self.rng
            if not self.on or rng.random() > self.rate:
                return data
            self.made += 1
            kind, at = rng.choice(self.kinds), rng.randrange(len(data) + 1)
            if kind in ("late", "halves"):
                pause = rng.choice([0.02, 0.2])
            else:
                return self.change(kind, data, at)
        time.sleep(pause)
        return data

    def change(self, kind, data, at):
        rng = self.rng
        if kind in ("cut", "drop half and cut"):
            return None
        if kind == "insert":
            return data[:at] + rng.choice(WORDS) + data[at:]
        if kind == "put first":
            return rng.choice(WORDS) + data
        if kind == "byte":
            at = min(at, len(data) - 1)
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        if kind == "delete":
            return data[:at] + data[at + rng.randrange(1, 20) :]
        if kind == "double":
            return data + data
        if kind == "wrap":
            return b"*%d\r\n" % rng.randrange(5) + data
        if kind == "random":
            return rng.randbytes(rng.randrange(1, 200))
        if kind == "shuffle":
            lines = data.split(b"\r\n")
            rng.shuffle(lines)
            return b"\r\n".join(lines)
        found = list(re.finditer(rb"[*$%>~](\d+)\r\n" if kind == "length" else rb"[*$%>~:+\-_,#(=!|]", data))
        if not found:
            return data
        one = rng.choice(found)
        if kind == "length":
            number = rng.choice([0, 1, 7, 10**6, 1 << 32, (1 << 63) - 1, -1, 10**20])
            return data[: one.start() + 1] + b"%d" % number + data[one.end() - 2 :]
        return data[: one.start()] + rng.choice([b"*", b"$", b"%", b">", b":", b"+", b"-", b"|"]) + data[one.end() :]


class MutatedReplies(HostileTest):
    """A relay before a true server that changes replies."""

    def attack(self, kinds, rate, backend_of, servers, strict, threads="1", seconds=ATTACK_SECONDS * 2):
        seed = int(os.environ.get("HOSTILE_SEED", random.randrange(1 << 32)))
        mutations = Mutations(seed, rate, kinds)
        relays = [self.keep(Relay(server.port, mutations)) for server in servers]
        args = ("--threads", threads, "--request-timeout-ms", "2000", "--reconnect-max-ms", "100")
        mutations.on = False
        respool = self.respool(*args, backend=backend_of([relay.address for relay in relays]))
        prepared = self.client(respool)
        names = [f"session{number:02}" for number in range(16)]
        for name in names:
            self.assertEqual(prepared.ask("SET", f"{name}:a", f"{name}:value"), "OK")
            self.assertEqual(prepared.ask("SET", f"{name}:b", f"{name}:value" * 50), "OK")
        mutations.on = True
        wrong, stuck = [], []

        def session(name, rng):
            client = Client(respool.port, timeout=15)
            while time.monotonic() < end:
                words = rng.choice(
                    [
                        ("GET", f"{name}:a"),
                        ("GET", f"{name}:b"),
                        ("MGET", f"{name}:a", f"{name}:b"),
                        ("SET", f"{name}:a", f"{name}:value"),
                        ("ECHO", f"{name}:echo"),
                        ("STRLEN", f"{name}:b"),
                        ("EVAL", "return KEYS[1]", 1, f"{name}:a"),
                    ]
                )
                depth = rng.choice([1, 1, 5, 30])
                try:
                    client.raw(encode(*words) * depth)
                    for reply in client.replies(depth):
                        for each in reply if isinstance(reply, list) else [reply]:
                            if isinstance(each, bytes) and not each.startswith(name.encode()):
                                wrong.append(f"seed {seed}: {name} asked {words[:2]}: {each[:60]}")
                except TimeoutError:
                    stuck.append(f"seed {seed}: {name} {words[:2]}")
                    client.close()
                    client = Client(respool.port, timeout=15)
                except (OSError, ValueError, RecursionError):
                    client.close()
                    client = Client(respool.port, timeout=15)
            client.close()

        end = time.monotonic() + seconds
        threads_ = [
            threading.Thread(target=session, args=(name, random.Random(seed + at)), daemon=True)
            for at, name in enumerate(names)
        ]
        for each in threads_:
            each.start()
        listener = self.client(respool, timeout=2)
        while time.monotonic() < end:
            try:
                listener.ask("SUBSCRIBE", "ch")
                listener.ask("UNSUBSCRIBE", "ch")
            except (OSError, ValueError, RecursionError):
                listener.close()
                listener = self.client(respool, timeout=2)
            self.assertTrue(respool.lives(), f"seed {seed}:\n{respool.output()[-2000:]}")
            time.sleep(0.05)
        for each in threads_:
            each.join(40)
        self.assertEqual(stuck, [], "sessions without an answer")
        if strict:
            self.assertEqual(wrong[:5], [], f"{len(wrong)} replies of other sessions, {mutations.made} changes")
        self.assertGreater(mutations.made, 5)
        # After the server has recovered, all requests get right replies within seconds.
        mutations.on = False
        for relay in relays:
            with relay.lock:
                for each in relay.sockets:
                    try:
                        each.shutdown(2)
                    except OSError:
                        pass
        client = self.client(respool)

        def well():
            replies = [client.ask("SET", f"{name}:a", f"{name}:value") for name in names]
            replies += [client.ask("GET", f"{name}:a") for name in names]
            return replies == ["OK"] * len(names) + [f"{name}:value".encode() for name in names]

        wait_until(well, f"seed {seed}: all is well again", 15)

    def test_cut_and_late_replies(self):
        """Despite cut and late replies, each session gets only its own replies."""
        self.attack(Mutations.KEEP_ORDER, 0.03, lambda a: f"redis://{a[0]}", [self.server()], strict=True)

    def test_cut_and_late_replies_before_shards(self):
        """The same before sharded servers and with two workers."""
        servers = [self.server() for _ in range(2)]
        self.attack(Mutations.KEEP_ORDER, 0.03, lambda a: "redis-sharded://" + ",".join(a), servers, strict=True, threads="2")

    def test_changed_replies(self):
        """respool survives any reply, answers or closes, and recovers with the server."""
        self.attack(Mutations.ALL, 0.05, lambda a: f"redis://{a[0]}", [self.server()], strict=False)

    def test_changed_replies_before_shards(self):
        """The same before sharded servers."""
        servers = [self.server() for _ in range(2)]
        self.attack(Mutations.ALL, 0.05, lambda a: "redis-sharded://" + ",".join(a), servers, strict=False, threads="2")

    def test_changed_replies_of_seeds(self):
        """respool survives a Cluster seed node that reports a false topology."""
        cluster = self.cluster()
        seed = int(os.environ.get("HOSTILE_SEED", random.randrange(1 << 32)))
        mutations = Mutations(seed, 0.3, Mutations.ALL)
        relay = self.keep(Relay(cluster.nodes[0].port, mutations))
        respool = self.respool("--request-timeout-ms", "2000", backend=f"redis-cluster://{relay.address}")
        end = time.monotonic() + ATTACK_SECONDS * 2
        while time.monotonic() < end:
            with respool.client(timeout=15) as client:
                for number in range(20):
                    try:
                        client.ask("SET", f"k{number}", number)
                    except (OSError, ValueError):
                        break
            mutations.on = not mutations.on
            self.assertTrue(respool.lives(), f"seed {seed}:\n{respool.output()[-2000:]}")


class UnaskedReplies(HostileTest):
    """A server that sends replies without requests."""

    def test_reply_on_an_idle_link(self):
        """A reply without a request closes the link, and reaches no session."""
        server = self.server()
        relay = self.keep(Relay(server.port, lambda data: data))
        respool = self.respool(backend=f"redis://{relay.address}")
        client = self.client(respool)
        client.ask("SET", "a", "mine")
        for _ in range(10):
            with relay.lock:
                held = [relay.sockets[at] for at in range(0, len(relay.sockets), 2)]
            for each in held:
                try:
                    each.sendall(b"$5\r\nyours\r\n")
                except OSError:
                    pass
            time.sleep(0.1)
            reply = client.ask("GET", "a")
            self.assertTrue(reply == b"mine" or isinstance(reply, ErrorReply), reply)

    def test_messages_nobody_subscribed_to(self):
        """Messages of channels without a subscription do not reach the session."""
        relay_server = self.server()
        relay = self.keep(Relay(relay_server.port, lambda data: data))
        respool = self.respool(backend=f"redis://{relay.address}")
        client, listener = self.client(respool), self.client(respool)
        client.ask("HELLO", "3")
        listener.ask("SUBSCRIBE", "news")
        for form in (b">3\r\n$7\r\nmessage\r\n$5\r\nother\r\n$1\r\nx\r\n", b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"):
            with relay.lock:
                for at in range(0, len(relay.sockets), 2):
                    try:
                        relay.sockets[at].sendall(form)
                    except OSError:
                        pass
            time.sleep(0.2)
            reply = client.ask("GET", "a")
            self.assertNotIsInstance(reply, Push)
        listener.socket.settimeout(0.5)
        try:
            message = listener.reply()
        except (TimeoutError, OSError):
            message = None
        self.assertIsNone(message)


class HostileServers(HostileTest):
    """Fake servers with one fault each."""

    def check(self, answer, scheme="redis", rss=200 * MIB, seconds=3):
        evil = self.keep(FakeServer(answer))
        respool = self.respool("--request-timeout-ms", "1000", "--worker-memory-bytes-max", "64MiB", backend=f"{scheme}://{evil.address}")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with respool.client(timeout=10) as client:
                for words in (("GET", "a"), ("MGET", "a", "b"), ("MULTI",), ("SET", "a", "1"), ("EXEC",), ("KEYS", "*"), ("INFO",)):
                    try:
                        took, _ = seconds_of(lambda: client.ask(*words))
                    except TimeoutError:
                        self.fail(f"{words} was never answered")
                    except (OSError, ValueError, RecursionError):
                        break
                    self.assertLess(took, 8)
            self.assertTrue(respool.lives(), respool.output()[-2000:])
        self.assertLess(respool.rss(), rss)
        # A new client is still accepted.
        self.client(respool, timeout=10)
        return respool, evil

    def test_endless_reply(self):
        """A reply that never ends is bounded in memory and time."""

        def answer(connection, words):
            connection.sendall(b"$4000000000\r\n")
            for _ in range(400):
                connection.sendall(b"x" * 65_536)
            return False

        self.check(answer)

    def test_endless_array(self):
        """An array that never ends."""

        def answer(connection, words):
            connection.sendall(b"*2000000000\r\n")
            for _ in range(400):
                connection.sendall(b"$1\r\na\r\n" * 4000)
            return False

        self.check(answer)

    def test_deep_nesting(self):
        """Arrays in arrays without end."""
        self.check(lambda connection, words: b"*1\r\n" * 200_000)

    def test_endless_line(self):
        """An error without a line end."""

        def answer(connection, words):
            connection.sendall(b"-ERR ")
            for _ in range(400):
                connection.sendall(b"x" * 65_536)
            return False

        self.check(answer)

    def test_line_ends_in_errors(self):
        """An error with bare carriage returns or line feeds forges no reply and no log line."""
        text = b"-ERR a\rb\n+forged\n2026-01-01T00:00:00Z  INFO forged\r\n"
        respool, _ = self.check(lambda connection, words: text)
        with respool.client() as client:
            client.send("GET", "a")
            first = client.reply()
            self.assertIsInstance(first, ErrorReply)
            # The next reply is that of the next request: an error again.
            self.assertIsInstance(client.ask("GET", "b"), ErrorReply)
        self.assertFalse([line for line in respool.output().splitlines() if line.startswith("2026-01-01T00:00:00Z")])

    def test_greeting_with_lies(self):
        """respool survives a Cluster node that reports a million slots, odd hosts and odd ports."""
        lies = [
            b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$9\r\n127.0.0.1\r\n:99999\r\n",
            b"*1\r\n*3\r\n:-5\r\n:5\r\n*2\r\n$0\r\n\r\n:0\r\n",
            b"*1\r\n*3\r\n:10\r\n:5\r\n*3\r\n$5\r\na\r\nb\x00\r\n:1\r\n$3\r\nxyz\r\n",
            b"*100000\r\n" + b"*3\r\n:1\r\n:1\r\n*3\r\n$9\r\n127.0.0.1\r\n:1\r\n$1\r\nx\r\n" * 100_000,
            b"*0\r\n",
            b"*-1\r\n",
            b"$3\r\nabc\r\n",
            b"*1\r\n*1\r\n:0\r\n",
        ]
        turn = [0]

        def answer(connection, words):
            if words[0].upper() == b"CLUSTER":
                turn[0] += 1
                return lies[turn[0] % len(lies)]
            return b"-MOVED 1 \x1b[2J:99999\r\n" if turn[0] % 2 else b"$1\r\nx\r\n"

        respool, _ = self.check(answer, "redis-cluster", seconds=6)
        self.assertNotIn("\x1b[2J", respool.output())

    def test_bytes_one_at_a_time(self):
        """Replies that arrive byte by byte are parsed."""

        def answer(connection, words):
            for byte in b"*2\r\n$3\r\nabc\r\n$-1\r\n" if words[0].upper() == b"MGET" else b"$3\r\nabc\r\n":
                connection.sendall(bytes([byte]))
            return None

        self.check(answer)

    def test_accepts_and_says_nothing(self):
        """If a server accepts and never replies, each request fails at its deadline."""
        self.check(lambda connection, words: None, seconds=5)

    def test_closes_at_once(self):
        """A server that closes each connection at its first request gets few connections."""
        respool, evil = self.check(lambda connection, words: False, seconds=3)
        before = evil.accepted
        time.sleep(2)
        self.assertLess(evil.accepted - before, 60, respool.output()[-500:])


if __name__ == "__main__":
    unittest.main()
