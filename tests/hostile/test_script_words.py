"""A script chooses its own error text. respool must not mistake such a text for a server's error.

Each script counts its runs, so the test notices a script that respool sends again. Each test also
watches other sessions: their links stay, and their messages arrive. respool connects to no address
that a script names.
"""

import time
import unittest

from harness import ErrorReply, FakeServer, HostileTest, crc16_slot, encode, on_every_server, wait_until

KEY = "mine"
SLOT = crc16_slot(KEY.encode())
# {address} stands for an address on which the attacker listens.
TEXTS = [
    "MOVED {slot} {address}",
    "ASK {slot} {address}",
    "MOVED {slot} {node}",
    "ASK {slot} {node}",
    "MOVED {slot} :{port}",
    "MOVED 99999 {address}",
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "CLUSTERDOWN Hash slot not served",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "NOSCRIPT No matching script. Please use EVAL.",
    "NOSCRIPT No matching script.",
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOPERM this user has no permissions to run the 'mget' command",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "EXECABORT Transaction discarded because of previous errors.",
    "ERR unknown command 'eval', with args beginning with: ",
    "ERR MULTI calls can not be nested",
    "ERR max number of clients reached",
    "NOTSENT a request that was not sent",
    "UNKNOWN a request whose end is unknown",
    "UNBLOCKED client unblocked via CLIENT UNBLOCK",
    "MISCONF Redis is configured to save RDB snapshots",
    "REDIRECT {address}",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "ERR Protocol error: unauthenticated multibulk length",
]
LIBRARY = """#!lua name=hostile
local function say(keys, args)
  redis.call('INCR', keys[1])
  return redis.error_reply(args[1])
end
redis.register_function('say', say)
"""
BY_ARGUMENT = "redis.call('INCR', KEYS[1]); return redis.error_reply(ARGV[1])"
BY_TABLE = "redis.call('INCR', KEYS[1]); return {err = ARGV[1]}"
BY_RAISING = "redis.call('INCR', KEYS[1]); error({err = ARGV[1]})"


class Watch:
    """Sessions beside the attack: a counting one, a subscriber, and the links of respool."""

    def __init__(self, test, respool, evaluate="EVAL"):
        self.test, self.respool, self.evaluate = test, respool, evaluate
        self.polite = test.client(respool)
        self.polite.ask("DEL", "polite")
        self.listener = test.client(respool)
        self.listener.ask("SUBSCRIBE", "news")
        self.publisher = test.client(respool)
        self.published, self.counted = 0, 0
        # In a Cluster that has just come together, a message may need a moment to find its way.
        wait_until(lambda: self.publisher.ask("PUBLISH", "news", 0) == 1, "the channel has its subscriber")
        while self.listener.reply()[2] != b"0":
            pass
        self.look()
        self.links = self._links()

    def _links(self):
        # INFO is delayed, and links of earlier steps may still connect.
        last = None
        while True:
            time.sleep(0.4)
            found = self.respool.counters()
            now = {name: int(found[f"respool_{name}"]) for name in ("links_connected", "links_lost")}
            if now == last:
                return now
            last = now

    def look(self):
        """Runs one step of every bystander."""
        self.counted += 1
        self.test.assertEqual(self.polite.ask("INCR", "polite"), self.counted)
        self.published += 1
        self.test.assertEqual(self.publisher.ask("PUBLISH", "news", self.published), 1)
        self.test.assertEqual(self.polite.ask("GET", "polite"), b"%d" % self.counted)
        self.test.assertEqual(self.polite.ask(self.evaluate, "return ARGV[1]", 1, "polite", "seen"), b"seen")
        message = self.listener.reply()
        self.test.assertEqual(message, [b"message", b"news", b"%d" % self.published])

    def check(self):
        self.look()
        self.test.assertEqual(self._links(), self.links, "the links of others stay as they were")


class ScriptWords(HostileTest):
    """Every text, by every command that runs code."""

    def forms(self, text, sha):
        """Requests that run the script once each, with the number of their replies."""
        yield "EVAL", [("EVAL", BY_ARGUMENT, 1, KEY, text)]
        yield "EVAL table", [("EVAL", BY_TABLE, 1, KEY, text)]
        yield "EVAL raising", [("EVAL", BY_RAISING, 1, KEY, text)]
        yield "EVALSHA", [("EVALSHA", sha, 1, KEY, text)]
        if self.version != "redis-6.2":
            yield "FCALL", [("FCALL", "say", 1, KEY, text)]
        yield "MULTI", [("MULTI",), ("EVAL", BY_ARGUMENT, 1, KEY, text), ("EXEC",)]
        yield "WATCH", [("WATCH", KEY), ("UNWATCH",), ("EVALSHA", sha, 1, KEY, text)]
        yield "pipeline", [("GET", KEY), ("EVAL", BY_ARGUMENT, 1, KEY, text), ("GET", KEY)]
        yield "large", [("EVAL", BY_ARGUMENT + "--" + "x" * 300_000, 1, KEY, text)]

    def prepare(self, client):
        if self.version != "redis-6.2":
            client.ask("FUNCTION", "LOAD", "REPLACE", LIBRARY)
        return client.ask("SCRIPT", "LOAD", BY_ARGUMENT)

    def attack(self, backend, owner, node):
        """Sends every text in every form through respool, and compares the replies of `owner`."""
        evil = self.keep(FakeServer(lambda _, words: b"+EVIL\r\n"))
        respool = self.respool(backend=backend)
        attacker, direct = self.client(respool), self.client(owner)
        sha = self.prepare(attacker)
        self.prepare(direct)
        for _, requests in self.forms("ERR warm", sha):
            for each in requests:
                attacker.ask(*each)
        watch = Watch(self, respool)
        runs = int(attacker.ask("GET", KEY))
        failures = []
        for text in TEXTS:
            words = {"slot": SLOT, "address": evil.address, "port": evil.port, "node": node.address}
            text = text.format(**words)
            for name, requests in self.forms(text, sha):
                # The script of an earlier form has loaded itself.
                for each in requests:
                    attacker.send(*each)
                through = attacker.replies(len(requests))
                if "larger than request-held-bytes-max" in str(through[-1]):
                    # With several servers, the keys of a large script are not known in time.
                    continue
                runs += 1
                found = int(direct.ask("GET", KEY))
                if found != runs:
                    failures.append(f"{name}, {text}: ran {found - runs + 1} times")
                    runs = found
                said = through[-2] if name == "pipeline" else through[-1]
                said = said[0] if name == "MULTI" and isinstance(said, list) else said
                if not isinstance(said, ErrorReply) or not said.startswith(text[:20]):
                    failures.append(f"{name}, {text}: replied {said!r}"[:200])
                if name == "EVAL":
                    try:
                        watch.look()
                    except (AssertionError, OSError) as error:
                        failures.append(f"{name}, {text}: a bystander: {error}"[:200])
                        watch = Watch(self, respool)
        if evil.accepted:
            said = {b" ".join(words)[:60] for words in evil.requests}
            failures.append(f"the attacker's address was connected to {evil.accepted} times: {said}")
        self.assertFalse(failures, f"{len(failures)} failures:\n" + "\n".join(failures[:60]))
        watch.check()

    @on_every_server
    def test_plain_server(self):
        """Before a plain server, a script's text affects only its client. The script runs once."""
        server = self.server()
        self.attack(server.backend, server, server)

    def test_sharded_servers(self):
        """Before sharded servers, a script's text affects only its client. The script runs once."""
        servers = [self.server() for _ in range(2)]
        backend = "redis-sharded://" + ",".join(each.address for each in servers)
        with self.respool(backend=backend).client() as client:
            client.ask("SET", KEY, 0)
        owner = next(each for each in servers if each.ask("EXISTS", KEY))
        self.attack(backend, owner, servers[0])

    @on_every_server
    def test_cluster(self):
        """Before a Cluster, a script moves no slot, gets no connection, and runs once."""
        cluster = self.cluster(password="node-secret")
        owner = cluster.owner(SLOT)
        other = next(each for each in cluster.nodes if each is not owner)
        self.attack(cluster.backend, owner, other)

    @on_every_server
    def test_renamed_eval(self):
        """An unknown command may run code, too: respool does not trust its error text."""
        server = self.server("--rename-command", "EVAL", "perform")
        respool = self.respool(backend=server.backend)
        attacker = self.client(respool)
        attacker.ask("perform", BY_ARGUMENT, 1, KEY, "ERR warm")
        watch = Watch(self, respool, "perform")
        for number, text in enumerate(TEXTS, 2):
            text = text.format(slot=SLOT, address="127.0.0.1:1", port=1, node="127.0.0.1:1")
            self.assert_error(attacker.ask("perform", BY_ARGUMENT, 1, KEY, text))
            self.assertEqual(server.ask("GET", KEY), b"%d" % number, text)
            watch.look()
        watch.check()

    @on_every_server
    def test_renamed_eval_in_cluster(self):
        """Before a Cluster, a renamed EVAL moves no slot either."""
        cluster = self.cluster("--rename-command", "EVAL", "perform")
        evil = self.keep(FakeServer(lambda _, words: b"+EVIL\r\n"))
        respool = self.respool(backend=cluster.backend)
        attacker, owner = self.client(respool), cluster.owner(SLOT)
        attacker.ask("perform", BY_ARGUMENT, 1, KEY, "ERR warm")
        watch = Watch(self, respool, "perform")
        runs = []
        first = int(owner.ask("GET", KEY) or 0) + 1
        for number, text in enumerate(TEXTS, first):
            text = text.format(slot=SLOT, address=evil.address, port=evil.port, node=owner.address)
            attacker.ask("perform", BY_ARGUMENT, 1, KEY, text)
            runs.append(int(owner.ask("GET", KEY)) - number)
            watch.look()
        self.assertEqual(evil.accepted, 0, evil.requests[:5])
        self.assertEqual(runs, [0] * len(TEXTS))
        watch.check()


class ClusterWords(HostileTest):
    """A user with a few rights of its own before a Cluster whose nodes want a password."""

    @on_every_server
    def test_script_names_address_under_load(self):
        """Scripts that always name addresses cannot read or change other clients' requests."""
        cluster = self.cluster(password="node-secret")
        cluster.ask_all(
            "ACL", "SETUSER", "mallory", "on", ">m", "~m:*", "-@all", "+eval", "+get", "+hello", "+auth", "+command|info"
        )
        evil = self.keep(FakeServer(self.lie))
        respool = self.respool(backend=cluster.backend)
        victim = self.client(respool)
        self.assertEqual(victim.ask("SET", "card{v}", "4711"), "OK")
        slot = crc16_slot(b"v")
        script = f"return redis.error_reply('MOVED {slot} {evil.address}')"
        attacker = self.client(respool, "mallory", "m")

        def attack():
            attacker.send("EVAL", script, 1, "m:{v}")

        self.background(attack, pause=0.02)
        before = sum(node.calls("cluster|slots") for node in cluster.nodes)
        for _ in range(150):
            self.assertEqual(victim.ask("GET", "card{v}"), b"4711")
            self.assertEqual(victim.ask("SET", "other{v}", "1"), "OK")
        self.assertEqual(evil.accepted, 0, evil.requests[:5])
        refreshes = sum(node.calls("cluster|slots") for node in cluster.nodes) - before
        self.assertLessEqual(refreshes, 300, "nodes are not asked once for each script")

    @staticmethod
    def lie(_, words):
        if words[0].upper() == b"GET":
            return b"$4\r\nEVIL\r\n"
        if words[0].upper() == b"CLUSTER":
            return b"-ERR no\r\n"
        return b"+OK\r\n"

    def test_ask_says_no_credential(self):
        """An ASK of a script causes no connection, and respool sends no password."""
        cluster = self.cluster(password="node-secret")
        evil = self.keep(FakeServer(self.lie))
        respool = self.respool(backend=cluster.backend)
        client = self.client(respool)
        for word in ("ASK", "MOVED"):
            for _ in range(20):
                client.ask("EVAL", f"return redis.error_reply('{word} {SLOT} {evil.address}')", 1, KEY)
        self.assertEqual(evil.accepted, 0, evil.requests[:5])
        self.assertEqual(client.ask("SET", KEY, "1"), "OK")

    def test_words_of_reads_at_replicas(self):
        """With reads from replicas, a reading script runs once. Its text redirects no session."""
        cluster = self.cluster()
        for node in list(cluster.nodes):
            cluster.add_replica(node)
        evil = self.keep(FakeServer(self.lie))
        respool = self.respool(backend=cluster.backend + "?reads=prefer-replica")
        client, bystander = self.client(respool), self.client(respool)
        client.ask("SET", KEY, "1")
        wait_until(lambda: all(each.ask("READONLY") == "OK" for each in cluster.nodes), "nodes answer")
        time.sleep(2)
        read = "redis.call('GETRANGE', KEYS[1], 0, 0); return redis.error_reply(ARGV[1])"
        self.assert_error(client.ask("EVAL_RO", read, 1, KEY, "ERR warm"))
        for text in TEXTS:
            text = text.format(slot=SLOT, address=evil.address, port=evil.port, node=cluster.nodes[0].address)
            before = sum(node.calls("getrange") for node in cluster.nodes)
            self.assert_error(client.ask("EVAL_RO", read, 1, KEY, text))
            runs = sum(node.calls("getrange") for node in cluster.nodes) - before
            self.assertEqual(runs, 1, text)
            self.assertEqual(bystander.ask("GET", KEY), b"1", text)
        self.assertEqual(evil.accepted, 0, evil.requests[:5])

    def test_fake_replica_is_refused(self):
        """A client cannot make itself a replica that a server names to respool."""
        respool = self.respool(backend=self.server().backend)
        for request in (("REPLCONF", "listening-port", "1"), ("PSYNC", "?", "-1"), ("SYNC",), ("REPLICAOF", "127.0.0.1", "1")):
            with respool.client(timeout=5) as client:
                self.assert_error(client.ask(*request))
        self.assertEqual(respool.ask("PING"), "PONG")


class Forgotten(HostileTest):
    """A script that says NOSCRIPT, and a SCRIPT FLUSH that makes this look true."""

    SAYS = "redis.call('INCR', KEYS[1]); return redis.error_reply('NOSCRIPT No matching script. Please use EVAL.')"
    SLOWLY = (
        "local t = redis.call('TIME'); local till = t[1] * 1000000 + t[2] + 300000; "
        "repeat t = redis.call('TIME') until t[1] * 1000000 + t[2] > till; "
    )

    def check(self, script, flush, runs=(b"1",)):
        server = self.server()
        respool = self.respool("--threads", "2", backend=server.backend)
        client = self.client(respool)
        sha = client.ask("SCRIPT", "LOAD", script)
        flush(client, respool, server, encode("EVALSHA", sha, 1, KEY))
        self.assertIn(server.ask("GET", KEY), runs)

    def test_flush_in_the_same_pipeline(self):
        """A flush behind the request in one pipeline."""

        def flush(client, respool, server, request):
            client.raw(request + encode("SCRIPT", "FLUSH"))
            client.replies(2)

        self.check(self.SAYS, flush)

    def test_flush_by_other_sessions(self):
        """A flush of other sessions, at least one of them on another worker."""

        def flush(client, respool, server, request):
            others = [self.client(respool) for _ in range(6)]
            client.raw(request)
            time.sleep(0.1)
            for each in others:
                each.send("SCRIPT", "FLUSH")
            client.reply()
            for each in others:
                each.reply()

        self.check(self.SLOWLY + self.SAYS, flush)

    def test_flush_past_respool(self):
        """respool cannot see a flush of the server's own client: the script may run once more."""

        def flush(client, respool, server, request):
            direct = self.client(server)
            client.raw(request)
            time.sleep(0.1)
            direct.send("SCRIPT", "FLUSH")
            client.reply()
            direct.reply()

        self.check(self.SLOWLY + self.SAYS, flush, runs=(b"1", b"2"))


class ReadOnlyStorm(HostileTest):
    """READONLY in a loop, while subscribers listen."""

    def test_subscribers_keep_their_links(self):
        """No message is lost, and no link reconnects, while scripts return READONLY."""
        server = self.server()
        respool = self.respool(backend=server.backend)
        listener, publisher = self.client(respool, timeout=3), self.client(server)
        listener.ask("SUBSCRIBE", "news")
        heard = []
        self.background(lambda: heard.append(int(listener.reply()[2])))
        attacker = self.client(respool)
        text = "READONLY You can't write against a read only replica."
        script = f"return redis.error_reply(\"{text}\")"
        attacker.ask("EVAL", script, 0)
        time.sleep(1.5)
        before = respool.counter("links_connected")
        for number in range(3000):
            self.assertEqual(publisher.ask("PUBLISH", "news", number), 1)
            if number % 100 == 0:
                self.assert_error(attacker.ask("EVAL", script, 0), "READONLY")
        publisher.ask("PUBLISH", "news", -1)
        wait_until(lambda: heard and heard[-1] == -1, "the last message")
        self.assertEqual(heard, [*range(3000), -1])
        self.assertLessEqual(respool.counter("links_connected"), before + 1)


if __name__ == "__main__":
    unittest.main()
