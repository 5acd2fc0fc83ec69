"""Passwords: guesses, and changes while respool is connected."""

import itertools
import re
import time
import unittest

from harness import (
    ATTACK_SECONDS,
    Client,
    ErrorReply,
    HostileTest,
    encode,
    on_every_server,
    seconds_of,
    time_waits,
    wait_until,
)

GUESSER, POLITE = "127.0.0.2", "127.0.0.3"
# The maximum delay until new clients need a changed password: the interval of new handshakes.
SEEN_WITHIN_SECONDS = 20


class Guesser:
    """Connections that guess passwords in a loop, all from one address."""

    def __init__(self, respool, connections, source=GUESSER, request=None):
        self.respool, self.source = respool, source
        self.request = request or (lambda number: ("AUTH", f"user{number}", "wrong"))
        self.clients, self.number, self.connections = [], itertools.count(), connections
        self.answered, self.accepted = 0, 0

    def step(self):
        """Every connection guesses once. A connection that is gone is replaced."""
        while len(self.clients) < self.connections:
            self.clients.append(Client(self.respool.port, timeout=1, source=self.source))
        for client in list(self.clients):
            try:
                client.send(*self.request(next(self.number)))
            except OSError:
                self._drop(client)
        for client in list(self.clients):
            try:
                reply = client.reply()
                self.answered += 1
                self.accepted += not isinstance(reply, ErrorReply)
            except (OSError, ValueError):
                self._drop(client)

    def _drop(self, client):
        client.close()
        self.clients.remove(client)

    def close(self):
        for client in self.clients:
            client.close()


class GuessesAtServersUsers(HostileTest):
    """Strangers guess passwords of the server's users."""

    def prepare(self, sharded):
        servers = [self.server(password="secret") for _ in range(2 if sharded else 1)]
        for each in servers:
            client = self.client(each)
            for number in range(40):
                client.ask("ACL", "SETUSER", f"alice{number}", "on", ">right", "+@all", "~*", "&*")
        hosts = ",".join(each.address for each in servers)
        backend = f"redis-sharded://{hosts}" if sharded else f"redis://{hosts}"
        return servers, self.respool(backend=backend)

    def attack(self, sharded, connections, source, pause=0.0):
        """Guesses for some seconds; meanwhile users with the right password log in."""
        servers, respool = self.prepare(sharded)
        control = self.client(servers[0])
        settled = self.client(respool, "alice0", "right", source=POLITE)
        before = int(control_stat(control, "total_connections_received"))
        guesser = self.keep(Guesser(respool, connections, source))
        # Polite clients share the guesser's address if that is the default one.
        address = POLITE if source else None
        attack = self.background(guesser.step, pause)
        wait_until(lambda: guesser.answered or len(guesser.clients) == connections, "guesses")
        failures, slowest, logins = [], 0, 0
        end = time.monotonic() + ATTACK_SECONDS
        while time.monotonic() < end:
            for login in (("AUTH", f"alice{logins % 40}", "right"), ("HELLO", "3", "AUTH", "default", "secret")):
                with Client(respool.port, source=address) as client:
                    took, reply = seconds_of(lambda: client.ask(*login))
                    if isinstance(reply, ErrorReply):
                        failures.append(f"{login}: {reply}")
                    elif isinstance(value := client.ask("GET", "k"), ErrorReply):
                        failures.append(f"GET after {login}: {value}")
                    slowest = max(slowest, took)
            self.assertIsNone(settled.ask("GET", "k"))
            logins += 1
            time.sleep(0.05)
        attack.close()
        made = int(control_stat(control, "total_connections_received")) - before
        waiting = time_waits(servers[0].port)
        self.assertFalse(failures, f"{len(failures)} of {2 * logins} logins failed, {guesser.answered} guesses")
        self.assertLess(slowest, 5, "a login with the right password is not held up")
        self.assertEqual(guesser.accepted, 0)
        # The logins themselves may need a link for each user and version.
        self.assertLess(made, 150, f"connections at the server, for {guesser.answered} guesses")
        self.assertLess(waiting, 150, "sockets in TIME_WAIT")

    def test_logins_succeed_while_many_clients_guess(self):
        """200 guessing connections leave ports free, and other addresses can log in."""
        self.attack(False, 200, GUESSER)

    def test_logins_succeed_while_many_guess_at_shards(self):
        """As above, for guesses at users of sharded servers."""
        self.attack(True, 200, GUESSER)

    def test_logins_succeed_from_the_guessers_address(self):
        """The same where guessers and polite clients share an address."""
        self.attack(False, 200, None)

    def test_one_guesser_at_shards_locks_no_client_out(self):
        """20 guesses a second do not lock out other clients of sharded servers."""
        self.attack(True, 1, GUESSER, pause=0.05)

    def test_wrong_password_reaches_the_server_once(self):
        """The server sees one wrong login for each guess, and no more afterwards."""
        servers, respool = self.prepare(False)
        control = self.client(servers[0])
        control.ask("ACL", "LOG", "RESET")
        with respool.client() as client:
            for _ in range(3):
                self.assert_error(client.ask("AUTH", "alice1", "wrong"), "WRONGPASS")
        time.sleep(2)
        entries = control.ask("ACL", "LOG")
        count = sum(dict(zip(each[::2], each[1::2]))[b"count"] for each in entries)
        self.assertLessEqual(count, 3, entries)

    def test_right_password_is_accepted_after_wrong_ones(self):
        """One client that mistypes its password logs in with the right one within seconds."""
        _, respool = self.prepare(False)
        client = self.client(respool)
        for _ in range(3):
            self.assert_error(client.ask("AUTH", "alice1", "wrong"), "WRONGPASS")
        took, reply = seconds_of(lambda: client.ask("AUTH", "alice1", "right"))
        self.assertEqual(reply, "OK")
        self.assertLess(took, 5)

    def test_wrong_password_harms_no_user_of_that_name(self):
        """Guesses at a user's password do not end the links of that user's sessions."""
        _, respool = self.prepare(False)
        settled = self.client(respool, "alice1", "right", source=POLITE)
        downs = respool.counter("links_lost", "alice0", "right")
        guesser = self.keep(Guesser(respool, 20, request=lambda _: ("AUTH", "alice1", "wrong")))
        self.background(guesser.step)
        for _ in range(60):
            self.assertIsNone(settled.ask("GET", "k"))
            time.sleep(0.05)
        self.assertEqual(settled.ask("ACL", "WHOAMI"), b"alice1")
        self.assertLess(respool.counter("links_lost", "alice0", "right") - downs, 60)


    def test_1500_guesses_at_once_delay_no_other_login(self):
        """1,500 guesses at the same time leave room for a login of another address."""
        _, respool = self.prepare(False)
        held = [self.client(respool, source=GUESSER) for _ in range(1500)]
        for number, each in enumerate(held):
            each.send("AUTH", f"user{number}", "wrong" * 20)
        for number in range(5):
            with Client(respool.port, source=POLITE) as client:
                took, reply = seconds_of(lambda: client.ask("AUTH", f"alice{number}", "right"))
            self.assertEqual(reply, "OK")
            self.assertLess(took, 5)

    def test_pipelined_guesses_are_no_faster(self):
        """Guesses in one long pipeline are no faster, and a login of another address is let in."""
        servers, respool = self.prepare(False)
        control = self.client(servers[0])
        before = int(control_stat(control, "total_connections_received"))
        held = [self.client(respool, source=GUESSER, timeout=2) for _ in range(20)]
        for each in held:
            each.raw(b"".join(encode("AUTH", f"user{number}", "wrong") for number in range(2000)))
        for number in range(10):
            with Client(respool.port, source=POLITE) as client:
                took, reply = seconds_of(lambda: client.ask("AUTH", f"alice{number}", "right"))
            self.assertEqual(reply, "OK")
            self.assertLess(took, 5)
        self.assertLess(int(control_stat(control, "total_connections_received")) - before, 60)

    def test_guessers_that_leave_keep_no_connection(self):
        """Guessers that do not wait for the answer leave no connection and no queue behind."""
        servers, respool = self.prepare(False)
        control = self.client(servers[0])
        before = int(control_stat(control, "total_connections_received"))
        for number in range(2000):
            with Client(respool.port, source=GUESSER) as client:
                client.send("AUTH", f"user{number}", "wrong")
        with Client(respool.port, source=POLITE) as client:
            took, reply = seconds_of(lambda: client.ask("AUTH", "alice1", "right"))
        self.assertEqual(reply, "OK")
        self.assertLess(took, 5)
        self.assertLess(int(control_stat(control, "total_connections_received")) - before, 100)

    def test_guesses_by_hello_need_few_connections(self):
        """HELLO with AUTH, in either version, goes through the probing links, too."""
        servers, respool = self.prepare(False)
        control = self.client(servers[0])
        before = int(control_stat(control, "total_connections_received"))
        request = lambda n: ("HELLO", str(2 + n % 2), "AUTH", f"user{n}", "wrong", "SETNAME", f"n{n}")
        guesser = self.keep(Guesser(respool, 100, request=request))
        attack = self.background(guesser.step)
        time.sleep(ATTACK_SECONDS)
        with Client(respool.port, source=POLITE) as client:
            took, reply = seconds_of(lambda: client.ask("AUTH", "alice1", "right"))
        attack.close()
        self.assertEqual(reply, "OK")
        self.assertLess(took, 5)
        self.assertLess(int(control_stat(control, "total_connections_received")) - before, 100)

    def test_wrong_passwords_of_any_bytes_are_refused(self):
        """Wrong passwords of any bytes are refused, without a connection for each."""
        _, respool = self.prepare(False)
        for password in (b"", b"\x00", b"\xff\xfe", b"a" * 100_000, b"\r\n", b" "):
            with Client(respool.port, source=GUESSER, timeout=10) as client:
                self.assert_error(client.ask("AUTH", password))
            with Client(respool.port, source=GUESSER, timeout=10) as client:
                self.assert_error(client.ask("AUTH", password or b"x", password))
        self.assertEqual(respool.client("alice1", "right").ask("PING"), "PONG")


def control_stat(client, field):
    return re.search(rf"{field}:(\d+)", client.ask("INFO", "stats").decode())[1]


class GuessesAtOwnUsers(HostileTest):
    """Strangers guess passwords of respool's own users."""

    def prepare(self):
        return self.respool("--password", "right", "--user", "alice:right", backend=self.server().backend)

    def guess(self, request, pipeline=200, connections=8, seconds=ATTACK_SECONDS):
        """Pipelined guesses of one address. Returns respool and how many were answered."""
        respool = self.prepare()
        settled = self.client(respool, "right", source=POLITE)
        before = respool.counters("right")
        answered = [0]
        many = b"".join(encode(*request(number)) for number in range(pipeline))

        def attack():
            with Client(respool.port, source=GUESSER, timeout=seconds) as client:
                end = time.monotonic() + seconds
                try:
                    while time.monotonic() < end:
                        client.raw(many)
                        for _ in range(pipeline):
                            self.assertIsInstance(client.reply(), ErrorReply)
                            answered[0] += 1
                except OSError:
                    pass

        attacks = [self.background(attack, pause=0.01) for _ in range(connections)]
        end, slowest = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            took, _ = seconds_of(lambda: settled.ask("GET", "k"))
            with Client(respool.port, source=POLITE) as client:
                took_login, reply = seconds_of(lambda: client.ask("AUTH", "alice", "right"))
            self.assertEqual(reply, "OK")
            slowest = max(slowest, took, took_login)
            time.sleep(0.1)
        for each in attacks:
            each.stopping.set()
        self.assertLess(slowest, 3, "polite clients of another address go on")
        return respool, before, answered[0]

    def check_trace(self, respool, before):
        """A counter has grown, and one log line or two name the address."""
        after = respool.counters("right")
        grown = {n for n in after if re.search("auth|password|login|guess", n) and after[n] != before.get(n)}
        self.assertTrue(grown, f"no counter of wrong passwords in {sorted(after)}")
        found = respool.lines(GUESSER)
        self.assertTrue(1 <= len(found) <= 6, f"{len(found)} lines name the address: {found[:3]}")
        self.assertNotIn("wrong-password", respool.output())

    def test_guesses_are_delayed_counted_and_logged(self):
        """AUTH guesses of one address are slowed down, counted, and logged once with the address."""
        respool, before, answered = self.guess(lambda number: ("AUTH", "alice", f"wrong-password{number}"))
        self.assertLess(answered, 1000 * ATTACK_SECONDS)
        self.check_trace(respool, before)

    def test_hello_does_not_evade_the_delay(self):
        """HELLO with AUTH does not evade the delay."""
        request = lambda number: ("HELLO", "2", "AUTH", "alice", f"wrong-password{number}")
        respool, before, answered = self.guess(request)
        self.assertLess(answered, 1000 * ATTACK_SECONDS)
        self.check_trace(respool, before)

    def test_new_connections_do_not_evade_the_delay(self):
        """A new connection for each guess does not evade the delay."""
        respool = self.prepare()
        before = respool.counters("right")
        answered, end = 0, time.monotonic() + ATTACK_SECONDS
        while time.monotonic() < end:
            with Client(respool.port, source=GUESSER, timeout=ATTACK_SECONDS) as client:
                try:
                    self.assert_error(client.ask("AUTH", f"wrong-password{answered}"))
                    answered += 1
                except OSError:
                    pass
        self.assertLess(answered, 500 * ATTACK_SECONDS)
        self.check_trace(respool, before)

    def test_logged_in_session_does_not_evade_the_delay(self):
        """A session that is logged in as one user cannot guess another's password faster."""
        respool = self.prepare()
        answered = 0
        with Client(respool.port, source=GUESSER, timeout=2) as client:
            client.ask("AUTH", "alice", "right")
            client.raw(b"".join(encode("AUTH", "default", f"wrong-password{n}") for n in range(20_000)))
            end = time.monotonic() + 2
            try:
                while time.monotonic() < end:
                    answered += isinstance(client.reply(), ErrorReply)
            except OSError:
                pass
        self.assertLess(answered, 4000)


    def test_transaction_does_not_evade_the_delay(self):
        """AUTH between MULTI and EXEC does not evade the delay."""
        respool = self.prepare()
        wrong, end = 0, time.monotonic() + 2
        with Client(respool.port, source=GUESSER, timeout=3) as client:
            client.ask("AUTH", "alice", "right")
            try:
                while time.monotonic() < end:
                    client.raw(encode("MULTI") + encode("AUTH", "default", "wrong-password") * 1000 + encode("EXEC"))
                    replies = client.replies(1002)
                    last = replies[-1] if isinstance(replies[-1], list) else replies
                    wrong += sum(str(each).startswith("WRONGPASS") for each in last)
            except OSError:
                pass
        self.assertLess(wrong, 4000)

    def test_reply_off_does_not_evade_the_delay(self):
        """CLIENT REPLY OFF does not evade the delay: a right guess among many is not found fast."""
        respool = self.prepare()
        client = self.client(respool, source=GUESSER, timeout=2)
        client.ask("AUTH", "alice", "right")
        try:
            client.raw(encode("CLIENT", "REPLY", "OFF"))
            client.raw(b"".join(encode("AUTH", "default", f"wrong-password{n}") for n in range(20_000)))
            client.raw(encode("AUTH", "default", "right") + encode("CLIENT", "REPLY", "ON"))
            found = client.reply() == "OK" and client.ask("ACL", "WHOAMI")
        except OSError:
            found = None
        # Twenty thousand guesses and the right one behind them, within two seconds, would be found.
        self.assertIsNone(found)

    def test_client_of_the_guessers_address_may_log_in(self):
        """A client that shares the guesser's address is let in within the delay's maximum."""
        respool = self.prepare()
        request = lambda n: ("AUTH", "alice", f"wrong-password{n}")
        guesser = self.keep(Guesser(respool, 20, source=None, request=request))
        self.background(guesser.step)
        time.sleep(ATTACK_SECONDS)
        with respool.client() as client:
            took, reply = seconds_of(lambda: client.ask("AUTH", "alice", "right"))
        self.assertEqual(reply, "OK")
        self.assertLess(took, 10)

    def test_guesses_of_many_addresses_cost_little_memory(self):
        """Guesses of thousands of addresses cost little memory, and lock out no other client."""
        respool = self.prepare()
        before = respool.rss()
        for number in range(4000):
            source = f"127.{1 + number // 60_000}.{number // 250 % 250}.{1 + number % 250}"
            with Client(respool.port, source=source, timeout=10) as client:
                client.send("AUTH", "alice", "wrong-password")
        with Client(respool.port, source="127.9.9.9") as client:
            took, reply = seconds_of(lambda: client.ask("AUTH", "alice", "right"))
        self.assertEqual(reply, "OK")
        self.assertLess(took, 5)
        self.assertLess(respool.rss() - before, 16 << 20)
        self.assertLess(len(respool.output().splitlines()), 100)

    def test_guesses_on_a_unix_socket_lock_no_client_out(self):
        """Guesses on a Unix socket do not lock out its other clients, or clients on TCP."""
        server = self.server()
        path = f"{server.folder.name}/respool.sock"
        respool = self.respool(
            "--password", "right", "--user", "alice:right", "--listen", f"unix:{path}", backend=server.backend
        )
        guessers = [self.keep(Client(path=path)) for _ in range(10)]
        for each in guessers:
            each.raw(b"".join(encode("AUTH", "alice", f"wrong-password{n}") for n in range(500)))
        time.sleep(1)
        for options in ({"path": path}, {"port": respool.port}):
            with Client(**options) as client:
                took, reply = seconds_of(lambda: client.ask("AUTH", "alice", "right"))
            self.assertEqual(reply, "OK")
            self.assertLess(took, 10)


class PasswordThatChanges(HostileTest):
    """The server's password, or a user's, changes while respool is connected."""

    def newcomer(self, respool, *command, login=()):
        with Client(respool.port) as client:
            if login:
                reply = client.ask("AUTH", *login)
                if isinstance(reply, ErrorReply):
                    return reply
            return client.ask(*command)

    def refused(self, respool, *command, login=(), times=1):
        """Whether this many new clients, one after the other, are refused."""
        said = lambda: str(self.newcomer(respool, *command, login=login))
        return all(said().startswith(("NOAUTH", "WRONGPASS")) for _ in range(times))

    def check_newcomers_must_login(self, server, respool, control, login):
        look = lambda: self.refused(respool, "GET", "a")
        wait_until(look, "newcomers must authenticate", SEEN_WITHIN_SECONDS)
        for command in (
            ("GET", "a"),
            ("SET", "a", "2"),
            ("CONFIG", "GET", "requirepass"),
            ("INFO",),
            ("CLIENT", "LIST"),
            ("SELECT", "1"),
            ("BLPOP", "q", "0.1"),
            ("SUBSCRIBE", "news"),
            ("WATCH", "a"),
            ("EVAL", "return 1", "0"),
            ("MULTI",),
            ("CONFIG", "GET", "respool.*"),
            ("CONFIG", "SET", "respool.fuse", "no"),
        ):
            self.assert_error(self.newcomer(respool, *command), "NOAUTH")
        # The error is the text of the server.
        large = self.newcomer(respool, "SET", "big", "x" * 300_000)
        self.assert_error(large, "ERR Protocol error: unauthenticated")
        self.assert_error(self.newcomer(respool, "HELLO", "3"), "NOAUTH")
        self.assertEqual(control.ask("GET", "a"), b"1")
        # With the right password, requests succeed.
        self.assertEqual(self.newcomer(respool, "GET", "a", login=login), b"1")

    @on_every_server
    def test_new_clients_need_a_new_requirepass(self):
        """After the server got a password, new clients need it."""
        server = self.server()
        respool = self.respool(backend=server.backend)
        old = self.client(respool)
        self.assertEqual(old.ask("SET", "a", "1"), "OK")
        # A session that came since the last check of the login must authenticate, too.
        time.sleep(1.2)
        control = self.client(server)
        self.assertEqual(control.ask("CONFIG", "SET", "requirepass", "new"), "OK")
        # Existing sessions stay logged in, as at the server.
        self.assertEqual(old.ask("GET", "a"), b"1")
        self.check_newcomers_must_login(server, respool, control, ("new",))
        self.assertIn(old.ask("GET", "a"), (b"1",))
        self.assert_error(self.newcomer(respool, "GET", "a", login=("wrong",)), "WRONGPASS")

    @on_every_server
    def test_new_clients_need_no_removed_password(self):
        """After the server's password was removed, new clients need none."""
        server = self.server()
        respool = self.respool(backend=server.backend)
        control = self.client(server)
        control.ask("SET", "a", "1")
        control.ask("CONFIG", "SET", "requirepass", "new")
        wait_until(lambda: self.refused(respool, "GET", "a"), "NOAUTH", SEEN_WITHIN_SECONDS)
        control.ask("CONFIG", "SET", "requirepass", "")
        look = lambda: self.newcomer(respool, "GET", "a") == b"1"
        wait_until(look, "newcomers need no password", SEEN_WITHIN_SECONDS)

    @on_every_server
    def test_new_clients_need_a_login_without_default(self):
        """After the user `default` was switched off, new clients must log in as another user."""
        server = self.server()
        control = self.client(server)
        control.ask("SET", "a", "1")
        control.ask("ACL", "SETUSER", "admin", "on", ">adm", "+@all", "~*", "&*")
        respool = self.respool(backend=server.backend)
        self.assertEqual(respool.ask("GET", "a"), b"1")
        control.ask("ACL", "SETUSER", "default", "off")
        self.check_newcomers_must_login(server, respool, control, ("admin", "adm"))

    def test_new_clients_of_shards_need_a_new_requirepass(self):
        """The same before sharded servers, where one server alone gets the password."""
        servers = [self.server() for _ in range(2)]
        respool = self.respool(backend="redis-sharded://" + ",".join(each.address for each in servers))
        self.assertEqual(respool.ask("SET", "a", "1"), "OK")
        owner = next(each for each in servers if each.ask("EXISTS", "a"))
        control = self.client(owner)
        control.ask("CONFIG", "SET", "requirepass", "new")
        wait_until(lambda: self.refused(respool, "GET", "a"), "NOAUTH", SEEN_WITHIN_SECONDS)
        self.assert_error(self.newcomer(respool, "CONFIG", "GET", "requirepass"))

    def test_new_clients_of_a_cluster_need_a_new_requirepass(self):
        """The same before a Cluster. All of its nodes get the password."""
        cluster = self.cluster()
        respool = self.respool(backend=cluster.backend)
        self.assertEqual(respool.ask("SET", "a", "1"), "OK")
        controls = [self.client(node) for node in cluster.nodes]
        for control in controls:
            control.ask("CONFIG", "SET", "requirepass", "new")
        wait_until(lambda: self.refused(respool, "GET", "a"), "NOAUTH", SEEN_WITHIN_SECONDS)
        self.assertEqual(self.newcomer(respool, "GET", "a", login=("new",)), b"1")

    def test_load_does_not_delay_the_check_of_the_password(self):
        """Polite load on the old link does not delay the detection of the change."""
        server = self.server()
        respool = self.respool("--threads", "3", backend=server.backend)
        busy = [self.client(respool) for _ in range(4)]
        load = [self.background(lambda c=c: c.ask("INCR", "n"), pause=0.001) for c in busy]
        control = self.client(server)
        control.ask("CONFIG", "SET", "requirepass", "new")
        # Each worker detects the change by itself.
        look = lambda: self.refused(respool, "GET", "a", times=30)
        wait_until(look, "all workers refuse newcomers", SEEN_WITHIN_SECONDS)
        self.assertTrue(self.refused(respool, "CONFIG", "GET", "requirepass", times=30))
        for each in load:
            each.close()
            self.assertEqual(each.errors, [])

    def test_new_clients_need_the_password_after_a_lost_link(self):
        """If a link is lost after the change, new clients need the password."""
        server = self.server()
        respool = self.respool(backend=server.backend)
        old = self.client(respool)
        old.ask("SET", "a", "1")
        control = self.client(server)
        control.ask("CONFIG", "SET", "requirepass", "new")
        control.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_until(lambda: self.refused(respool, "GET", "a"), "NOAUTH", SEEN_WITHIN_SECONDS)
        reply = old.ask("GET", "a")
        self.assertTrue(reply == b"1" or isinstance(reply, ErrorReply), reply)
        self.assertEqual(self.newcomer(respool, "GET", "a", login=("new",)), b"1")

    def test_old_session_must_log_in_after_reset(self):
        """A session from before the change must authenticate after RESET, as at the server."""
        server = self.server()
        respool = self.respool(backend=server.backend)
        old, direct = self.client(respool), self.client(server)
        old.ask("SET", "a", "1")
        control = self.client(server)
        control.ask("CONFIG", "SET", "requirepass", "new")
        wait_until(lambda: self.refused(respool, "GET", "a"), "NOAUTH", SEEN_WITHIN_SECONDS)
        self.assertEqual(direct.ask("RESET"), "RESET")
        self.assert_error(direct.ask("GET", "a"), "NOAUTH")
        self.assertEqual(old.ask("RESET"), "RESET")
        self.assert_error(old.ask("GET", "a"), "NOAUTH")

    def test_lost_links_do_not_repeat_an_old_password(self):
        """Lost links of a user do not retry the old password for ever after a change."""
        server = self.server()
        control = self.client(server)
        control.ask("ACL", "SETUSER", "al", "on", ">one", "+@all", "~*", "&*")
        respool = self.respool(backend=server.backend)
        old = self.client(respool, "al", "one")
        old.ask("GET", "a")
        control.ask("ACL", "SETUSER", "al", "resetpass", ">two")
        control.ask("ACL", "LOG", "RESET")
        control.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for _ in range(10):
            try:
                old.ask("GET", "a")
            except OSError:
                break
            time.sleep(0.5)
        entries = control.ask("ACL", "LOG")
        count = sum(dict(zip(each[::2], each[1::2]))[b"count"] for each in entries)
        self.assertLessEqual(count, 12, entries)

    @on_every_server
    def test_old_password_of_a_user_is_refused(self):
        """A user's old password lets no new client in, even if a link of that user is up."""
        server = self.server()
        control = self.client(server)
        control.ask("ACL", "SETUSER", "al", "on", ">one", "+@all", "~*", "&*")
        respool = self.respool(backend=server.backend)
        old = self.client(respool, "al", "one")
        self.assertIsNone(old.ask("GET", "a"))
        control.ask("ACL", "SETUSER", "al", "resetpass", ">two")
        refused = lambda: self.refused(respool, "GET", "a", login=("al", "one"))
        wait_until(refused, "the old password is refused", SEEN_WITHIN_SECONDS)
        self.assertIsNone(self.newcomer(respool, "GET", "a", login=("al", "two")))
        # Server and respool keep authenticated sessions.
        self.assertIsNone(old.ask("GET", "a"))

    @on_every_server
    def test_disabled_user_cannot_log_in(self):
        """New clients cannot log in as a user that is switched off."""
        server = self.server()
        control = self.client(server)
        control.ask("ACL", "SETUSER", "al", "on", ">one", "+@all", "~*", "&*")
        respool = self.respool(backend=server.backend)
        old = self.client(respool, "al", "one")
        old.ask("GET", "a")
        control.ask("ACL", "SETUSER", "al", "off")
        refused = lambda: self.refused(respool, "GET", "a", login=("al", "one"))
        wait_until(refused, "the user is off", SEEN_WITHIN_SECONDS)

    @on_every_server
    def test_deleted_user_gets_only_errors(self):
        """Sessions of a deleted user get only errors, and its new clients are refused."""
        server = self.server()
        control = self.client(server)
        control.ask("ACL", "SETUSER", "al", "on", ">one", "+@all", "~*", "&*")
        respool = self.respool(backend=server.backend)
        old = self.client(respool, "al", "one")
        old.ask("GET", "a")
        control.ask("ACL", "DELUSER", "al")

        def gone():
            try:
                return isinstance(old.ask("GET", "a"), ErrorReply)
            except OSError:
                return True

        wait_until(gone, "the session of a deleted user", SEEN_WITHIN_SECONDS)
        refused = lambda: self.refused(respool, "GET", "a", login=("al", "one"))
        wait_until(refused, "the user is gone", SEEN_WITHIN_SECONDS)
        # A user of the same name with other rights is another user.
        control.ask("ACL", "SETUSER", "al", "on", ">three", "+get", "~b*")
        self.assert_error(self.newcomer(respool, "GET", "a", login=("al", "three")), "NOPERM")

    def test_refused_backend_password_refuses_new_clients(self):
        """If the server refuses respool's configured password, respool refuses new clients."""
        server = self.server(password="first")
        respool = self.respool(backend=server.backend)
        self.assertEqual(respool.ask("SET", "a", "1"), "OK")
        control = self.client(server)
        control.ask("CONFIG", "SET", "requirepass", "second")
        control.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        refused = lambda: isinstance(self.newcomer(respool, "GET", "a"), ErrorReply)
        wait_until(refused, "the configured password is wrong", SEEN_WITHIN_SECONDS)
        control.ask("CONFIG", "SET", "requirepass", "first")
        look = lambda: self.newcomer(respool, "GET", "a") == b"1"
        wait_until(look, "the configured password is right again", SEEN_WITHIN_SECONDS)


if __name__ == "__main__":
    unittest.main()
