"""Bytes that could crash the process: half-sent requests in every state, with minimal limits."""

import os
import random
import resource
import time
import unittest

from harness import Client, HostileTest, encode, free_port

LEAST = (
    "--transaction-bytes-max=1KiB",
    "--request-held-bytes-max=64KiB",
    "--session-output-soft-bytes=16KiB",
    "--session-output-hard-bytes=64KiB",
    "--session-pipeline-max=1",
    "--link-unanswered-requests-max=1",
    "--link-unanswered-bytes-max=64KiB",
    "--worker-memory-bytes-max=1MiB",
    "--streaming-links-max=1",
    "--pinned-links-max=1",
    "--links-max=4",
    "--session-subscriptions-max=1",
    "--worker-subscriptions-max=1",
    "--fused-keys-max=2",
    "--max-delay-us=1",
    "--session-stall-ms=200",
    "--head-of-line-stall-ms=50",
    "--request-timeout-ms=1000",
    "--reconnect-min-ms=1",
    "--reconnect-max-ms=50",
)
STATES = {
    "plain": [],
    "multi": [("MULTI",), ("SET", "k", "v" * 5_000)],
    "multi half": [("MULTI",)],
    "watch": [("WATCH", "k"), ("MULTI",)],
    "subscriber": [("SUBSCRIBE", "ch")],
    "resp3 subscriber": [("HELLO", "3"), ("SUBSCRIBE", "ch", "ch2")],
    "monitor": [("MONITOR",)],
    "blocked": [("BLPOP", "none", "0.3")],
    "reply off": [("CLIENT", "REPLY", "OFF")],
    "tracking": [("HELLO", "3"), ("CLIENT", "TRACKING", "ON")],
    "paused": [("CLIENT", "PAUSE", "100", "ALL")],
    "database": [("SELECT", "3")],
    "logged in": [("AUTH", "default", "x")],
    "pipeline": [("GET", "k")] * 30,
    "large": [("SET", "k", "x" * 70_000)],
    "killed": [("CLIENT", "KILL", "ADDR", "1.1.1.1:1")],
    "quit": [("QUIT",)],
    "config": [("CONFIG", "SET", "respool.fuse", "no")],
    "asking": [("ASKING",)],
    "wait": [("WAIT", "1", "50")],
}


def half_sent(number, rng):
    """Requests that do not end, of about `number` bytes."""
    x = b"x" * number
    return [
        x,
        b'"' + x,
        b"GET " + x,
        b"GET a\r\n" + x,
        b"*3\r\n" + x,
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$%d\r\n" % (number * 2 + 5) + x,
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$%d\r\n" % number + x,
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$%d\r\n" % number + x + b"\r",
        b"*%d\r\n" % number + b"$1\r\na\r\n" * (number // 7),
        b"*2\r\n$%d\r\n" % number + x,
        b"*2\r\n$0\r\n\r\n$%d\r\n" % number + x,
        b"\r\n" * (number // 2),
        b"*0\r\n" * (number // 4) + b"*",
        b"*-1\r\n" * (number // 5) + b"*1",
        encode("SET", "k", x) + b"*3\r\n$3\r\nSET",
        encode("GET", "none") * (number // 20) + b"GET " + x,
        encode("MULTI") + encode("SET", "k", x) + x[: number // 2],
        encode("SUBSCRIBE", x[:100]) + x,
        encode("EVAL", x, 0) + b"*2\r\n$4\r\nAUTH\r\n$" + b"9" * min(number, 18),
        rng.randbytes(number),
        bytes(rng.choice(b"*$\r\n0123456789-+ \"'xGETSET") for _ in range(number)),
    ]


class HalfSent(HostileTest):
    """Every state of a session, every form of a half-sent request, several sessions at a time."""

    def attack(self, args, lengths, backend=None, ends=("close", "reset", "rest")):
        seed = int(os.environ.get("HOSTILE_SEED", random.randrange(1 << 32)))
        rng = random.Random(seed)
        respool = self.respool(*args, backend=backend or self.server().backend)
        bystander = self.client(respool)
        for length in lengths:
            for state, before in STATES.items():
                held = []
                for form in half_sent(length, rng):
                    try:
                        client = Client(respool.port, timeout=1)
                    except OSError:
                        continue
                    held.append((client, form))
                    try:
                        # In one write, and in two.
                        head = b"".join(encode(*words) for words in before)
                        if rng.random() < 0.5:
                            client.raw(head + form)
                        else:
                            client.raw(head)
                            client.raw(form)
                    except OSError:
                        pass
                time.sleep(0.01)
                for client, form in held:
                    try:
                        end = rng.choice(ends)
                        if end == "rest":
                            client.raw(b"x" * rng.choice([0, 1, 2, 100, 5000]) + b"\r\n" + encode("PING"))
                        if end == "reset":
                            client.reset()
                    except OSError:
                        pass
                    client.close()
                if not respool.lives():
                    self.fail(f"seed {seed}, state {state}, length {length}:\n{respool.output()[-2000:]}")
        try:
            alive = bystander.ask("PING")
        except OSError:
            # With 1 MiB for all sessions, respool may close the session of a bystander.
            alive = respool.ask("PING")
        self.assertEqual(alive, "PONG", f"seed {seed}")
        self.assertNotIn("panicked", respool.output(), f"seed {seed}")
        return respool

    def test_least_limits(self):
        """All limits at their minimum."""
        self.attack(LEAST, [3, 900, 1100, 2000, 8000, 20_000, 66_000])

    def test_each_limit_alone(self):
        """Each limit alone at its minimum, the others at their defaults."""
        output = ("--session-output-soft-bytes=16KiB", "--session-output-hard-bytes=64KiB")
        held = ("--request-held-bytes-max=64KiB",)
        for each in LEAST[:10]:
            # Limits that contradict each other are refused at the start.
            others = output if "output" in each or "memory" in each else ()
            others += held if "link-unanswered" in each or "memory" in each else ()
            with self.subTest(limit=each):
                self.attack([each, *others], [1000, 5000])

    def test_default_limits(self):
        """Default limits."""
        self.attack([], [1, 1000, 17_000, 70_000, 300_000])

    def test_least_limits_before_shards(self):
        """The same before sharded servers."""
        servers = [self.server() for _ in range(2)]
        backend = "redis-sharded://" + ",".join(each.address for each in servers)
        self.attack(LEAST, [900, 5000, 66_000], backend)

    def test_least_limits_before_cluster(self):
        """The same before a Cluster."""
        args = [each for each in LEAST if not each.startswith("--links-max")]
        self.attack(args, [900, 5000, 66_000], self.cluster().backend)

    def test_least_limits_with_passwords(self):
        """The same where clients have not logged in."""
        server = self.server()
        respool = self.respool(*LEAST, "--password", "right", backend=server.backend)
        rng = random.Random(1)
        for length in (900, 5000, 66_000, 300_000):
            for form in half_sent(length, rng):
                with Client(respool.port, timeout=1) as client:
                    try:
                        client.raw(form)
                        client.raw(encode("AUTH", "right") + form)
                    except OSError:
                        pass
        self.assertTrue(respool.lives(), respool.output()[-2000:])
        client = self.client(respool, "right")
        self.assertEqual(client.ask("PING"), "PONG")

    def test_line_behind_a_queued_request(self):
        """A line that does not end, behind a request that a transaction refuses."""
        for limit in (1024, 4096, 65_536):
            respool = self.respool("--transaction-bytes-max", str(limit), backend=self.server().backend)
            bystander = self.client(respool)
            for length in (1, 100, 1000, limit - 1, limit, limit + 1, limit + 1000, 2 * limit, 60_000):
                client = self.client(respool)
                client.raw(encode("MULTI") + encode("SET", "k", "v" * (length + 3000)) + b"a" * min(length, 60_000))
            time.sleep(0.3)
            self.assertTrue(respool.lives(), respool.output()[-2000:])
            self.assertEqual(bystander.ask("PING"), "PONG")

    def test_random_sessions(self):
        """Random mixtures of whole, half and wrong requests, cut at random places."""
        seed = int(os.environ.get("HOSTILE_SEED", random.randrange(1 << 32)))
        rng = random.Random(seed)
        respool = self.respool(*LEAST, "--threads=2", backend=self.server().backend)
        states = list(STATES.values())
        end = time.monotonic() + 12
        while time.monotonic() < end:
            clients = []
            for _ in range(12):
                data = b""
                for _ in range(rng.randrange(1, 8)):
                    kind = rng.randrange(4)
                    if kind == 0:
                        data += rng.choice(half_sent(rng.choice([1, 50, 1000, 3000, 70_000]), rng))
                    elif kind == 1:
                        data += b"".join(encode(*words) for words in rng.choice(states))
                    elif kind == 2:
                        data += encode(*(rng.choice(["GET", "SET", "MULTI", "EXEC", "a", "DISCARD", "RESET", "1"]) for _ in range(rng.randrange(1, 5))))
                    else:
                        whole = encode("SET", "k", "v" * rng.choice([1, 500, 2000, 66_000]))
                        data += whole[: rng.randrange(len(whole))]
                client = Client(respool.port, timeout=1)
                clients.append((client, data))
            for client, data in clients:
                try:
                    at = rng.randrange(len(data) + 1)
                    client.raw(data[:at])
                    client.raw(data[at:])
                except OSError:
                    pass
            for client, _ in clients:
                client.reset() if rng.random() < 0.5 else client.close()
            if not respool.lives():
                self.fail(f"seed {seed}:\n{respool.output()[-2000:]}")
        self.assertEqual(respool.ask("PING"), "PONG", f"seed {seed}")


class Patterns(HostileTest):
    """Patterns with many stars: naive matching takes exponential time."""

    def test_many_stars(self):
        """No pattern costs respool seconds of CPU, and others are answered meanwhile."""
        servers = [self.server() for _ in range(2)]
        folder = servers[0].folder.name
        port = free_port()
        prefix = "a" * 32
        with open(f"{folder}/pools.toml", "w", encoding="utf-8") as file:
            file.write(
                f'[pool.all]\nlisten = ["127.0.0.1:{port}"]\nbackend = "redis://{servers[0].address}"\n'
                f'[pool.all.prefixes]\n"{prefix}" = {{ backend = "redis://{servers[1].address}", strip = true }}\n'
            )
        respool = self.respool("--config", f"{folder}/pools.toml", listen=None)
        respool.port = port
        client, polite = self.client(respool), self.client(respool)
        for number in range(50):
            client.ask("SET", "a" * (400 + number), "1")
            with respool.client() as other:
                other.ask("PING")
        listener = self.client(respool)
        listener.send("SUBSCRIBE", *("a" * 300 + str(number) for number in range(30)))
        listener.replies(30)
        for stars in (3, 10, 30, 200, 900):
            for words in (
                ("KEYS", "*a" * stars + "*b"),
                ("SCAN", "0", "MATCH", "*a" * stars + "*b"),
                ("PUBSUB", "CHANNELS", "*a" * stars + "*b"),
                ("CONFIG", "GET", "respool." + "*a" * stars + "*b"),
                ("CONFIG", "GET", "respool." + "*" * stars + "b"),
                ("PUBSUB", "CHANNELS", "[" * stars + "*" * stars),
            ):
                before = respool.cpu_seconds()
                client.send(*words)
                polite.ask("PING")
                client.reply()
                self.assertLess(respool.cpu_seconds() - before, 1, (words[:2], stars))


class FewDescriptors(HostileTest):
    """Limits of the system that are smaller than those of respool."""

    def served(self, respool, number):
        """The number of connections that get an answer at the same time."""
        held, served = [], 0
        for _ in range(number):
            try:
                held.append(self.client(respool, timeout=0.5))
            except OSError:
                break
        for each in held:
            try:
                served += each.ask("PING") == "PONG"
            except OSError:
                pass
        return served

    def test_sessions_max_holds(self):
        """sessions-max is never exceeded, however few descriptors there are."""
        for descriptors in (64, 150, 300, 1024):
            limits = [(resource.RLIMIT_NOFILE, descriptors)]
            try:
                respool = self.respool("--sessions-max", "100", backend=self.server().backend, limits=limits)
            except RuntimeError as error:
                self.assertIn("open files", str(error))
                continue
            with self.subTest(descriptors=descriptors):
                self.assertLessEqual(self.served(respool, min(descriptors, 400)), 100)

    def test_descriptors_used_up(self):
        """Strangers use up all descriptors: existing sessions go on, and later ones are served."""
        limits = [(resource.RLIMIT_NOFILE, 300)]
        server = self.server()
        links = ("--links-max", "8", "--pinned-links-max", "8", "--streaming-links-max", "4")
        respool = self.respool(*links, backend=server.backend, limits=limits)
        settled = self.client(respool)
        settled.ask("SET", "a", "1")
        held = []
        for _ in range(400):
            try:
                held.append(Client(respool.port, timeout=1))
            except OSError:
                break
        before = respool.cpu_seconds()
        for _ in range(10):
            self.assertEqual(settled.ask("GET", "a"), b"1")
            time.sleep(0.1)
        self.assertLess(respool.cpu_seconds() - before, 0.7, "a full table of descriptors is no busy loop")
        for each in held:
            each.close()
        time.sleep(0.5)
        self.assertEqual(respool.ask("GET", "a"), b"1")

    def test_links_have_descriptors(self):
        """If sessions use all descriptors, respool can still connect to the server."""
        limits = [(resource.RLIMIT_NOFILE, 256)]
        server = self.server()
        respool = self.respool("--links-max", "8", "--pinned-links-max", "8", "--streaming-links-max", "4", backend=server.backend, limits=limits)
        held = []
        for _ in range(300):
            try:
                held.append(self.client(respool, timeout=5))
            except OSError:
                break
        answered = 0
        for each in held:
            try:
                answered += each.ask("SELECT", "3") == "OK" and each.ask("GET", "a") is None
            except OSError:
                pass
        self.assertGreater(answered, 20)


if __name__ == "__main__":
    unittest.main()
