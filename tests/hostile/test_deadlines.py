"""Bounded resources are free again after a deadline: large requests, dedicated links, scripts."""

import time
import unittest

from harness import Client, ErrorReply, HostileTest, encode, on_every_server, seconds_of, wait_until

TIMEOUT_MS = 3000
TIMEOUT = ("--request-timeout-ms", str(TIMEOUT_MS))
ANSWERED_WITHIN = TIMEOUT_MS / 1000 + 4
LOOP = "while true do end"


class LargeUploads(HostileTest):
    """Clients that send large requests so slowly that they never end."""

    LARGE = b"x" * 300_000

    def dribble(self, respool, number, every, data=b"z", first=300_000):
        held = []
        for at in range(number):
            client = self.client(respool)
            client.raw(b"*3\r\n$3\r\nSET\r\n$4\r\nk%03x\r\n$500000000\r\n" % at + b"y" * first)
            held.append(client)

        def step():
            for client in held:
                try:
                    client.raw(data)
                except OSError:
                    pass

        self.background(step, pause=every)
        time.sleep(0.5)
        return held

    def check_large_write(self, respool, seconds=40):
        """Each large write is answered in time, and one succeeds before long."""

        def write():
            with Client(respool.port) as client:
                took, reply = seconds_of(lambda: client.ask("SET", "large", self.LARGE))
                self.assertLess(took, ANSWERED_WITHIN)
                return reply == "OK"

        wait_until(write, "a large write succeeds", seconds)

    def test_dribbled_uploads(self):
        """Uploads of a byte now and then give their places to others."""
        respool = self.respool(*TIMEOUT, backend=self.server().backend)
        self.dribble(respool, 16, every=1)
        self.check_large_write(respool)
        # Small requests have gone on all the time.
        took, reply = seconds_of(lambda: respool.ask("GET", "none"))
        self.assertIsNone(reply)
        self.assertLess(took, 2)

    def test_dribbled_uploads_with_default_deadline(self):
        """The same with respool's default deadline."""
        respool = self.respool(backend=self.server().backend)
        self.dribble(respool, 16, every=4)
        with respool.client() as client:
            took, _ = seconds_of(lambda: client.ask("SET", "large", self.LARGE))
        self.assertLess(took, 15)
        self.check_large_write(respool)

    def test_fast_small_dribbles(self):
        """Uploads of a byte every few milliseconds do not evade the deadline."""
        respool = self.respool(*TIMEOUT, "--streaming-links-max", "4", backend=self.server().backend)
        self.dribble(respool, 4, every=0.005)
        self.check_large_write(respool)

    def test_more_dribblers_than_places(self):
        """A queue of 200 slow uploads does not evade the deadline."""
        respool = self.respool(*TIMEOUT, "--streaming-links-max", "4", backend=self.server().backend)
        self.dribble(respool, 200, every=0.5)
        self.check_large_write(respool, 60)

    def test_uploads_that_stop_dead(self):
        """Uploads that stop in the middle give their places to others."""
        respool = self.respool(*TIMEOUT, "--streaming-links-max", "4", backend=self.server().backend)
        self.dribble(respool, 4, every=60)
        self.check_large_write(respool)

    def test_dribbled_uploads_before_shards(self):
        """The same before sharded servers."""
        servers = [self.server() for _ in range(2)]
        backend = "redis-sharded://" + ",".join(each.address for each in servers)
        respool = self.respool(*TIMEOUT, "--streaming-links-max", "4", backend=backend)
        self.dribble(respool, 4, every=1)
        self.check_large_write(respool)

    def test_honest_slow_upload_alone(self):
        """While no other session waits for a place, a slow upload goes on to its end."""
        respool = self.respool(*TIMEOUT, "--streaming-links-max", "2", backend=self.server().backend)
        client = self.client(respool)
        client.raw(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$600000\r\n" + b"y" * 300_000)
        for _ in range(12):
            time.sleep(0.5)
            client.raw(b"z" * 25_000)
        client.raw(b"\r\n")
        self.assertEqual(client.reply(), "OK")
        self.assertEqual(client.ask("STRLEN", "a"), 600_000)

    def test_uploads_of_moderate_speed(self):
        """Uploads of 200 KB/s, which would hold all places for most of an hour, leave some to others."""
        respool = self.respool(*TIMEOUT, "--streaming-links-max", "4", backend=self.server().backend)
        self.dribble(respool, 4, every=0.05, data=b"z" * 10_000)
        self.check_large_write(respool, 60)

    def test_uploads_that_come_again(self):
        """Uploaders that come again at once when they are closed leave places to others."""
        respool = self.respool(*TIMEOUT, "--streaming-links-max", "4", backend=self.server().backend)
        held = self.dribble(respool, 8, every=60)

        def again():
            for number, client in enumerate(held):
                client.socket.settimeout(0.01)
                try:
                    client.socket.recv(1000)
                except TimeoutError:
                    continue
                except OSError:
                    pass
                client.close()
                held[number] = Client(respool.port)
                held[number].raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$500000000\r\n" + b"y" * 300_000)

        self.background(again, pause=0.05)
        self.check_large_write(respool, 60)

    def test_large_replies_not_taken(self):
        """Clients that take none of their large replies do not hold the places of large requests."""
        respool = self.respool(*TIMEOUT, "--streaming-links-max", "2", backend=self.server().backend)
        with respool.client() as client:
            client.ask("SET", "big", b"x" * 8_000_000)
        for _ in range(4):
            client = self.client(respool, receive_buffer=4096)
            client.send("ECHO", b"x" * 4_000_000)
        self.check_large_write(respool)


class PinnedLinks(HostileTest):
    """Sessions that take all dedicated links, and leave them idle."""

    @staticmethod
    def answers(respool, *requests):
        with Client(respool.port) as client:
            return seconds_of(lambda: [client.ask(*each) for each in requests])

    def take_all(self, respool, number, *words):
        held = [self.client(respool) for _ in range(number)]
        for each in held:
            each.send(*words)
        time.sleep(1)
        return held

    def check(self, respool, server):
        for requests in (
            [("GET", "a")],
            [("WATCH", "q")],
            [("BLPOP", "q", "1")],
            [("MULTI",), ("SET", "a", "1"), ("EXEC",)],
            [("HELLO", "3"), ("CLIENT", "TRACKING", "ON")],
            [("XREAD", "STREAMS", "st", "0")],
            [("WAIT", "0", "100")],
            [("MONITOR",)],
            [("CLIENT", "NO-TOUCH", "ON")],
            [("MULTI",), ("SELECT", "1"), ("EXEC",)],
        ):
            took, replies = self.answers(respool, *requests)
            self.assertLess(took, ANSWERED_WITHIN, requests)
            for reply in replies:
                # The error to a request without a link names the bound. Redis 7.0 lacks CLIENT
                # NO-TOUCH; that request may have got the link of an idle session.
                told = isinstance(reply, ErrorReply) and "unknown subcommand 'NO-TOUCH'" in reply
                if isinstance(reply, ErrorReply) and not reply.startswith("EXECABORT") and not told:
                    self.assert_error(reply, "NOTSENT")
                    self.assertIn("pinned-links-max", reply, requests)
        loop = self.client(respool)
        loop.send("EVAL", LOOP, 0)
        wait_until(lambda: str(self.client(server).ask("PING")).startswith("BUSY"), "the server is busy")
        took, replies = self.answers(respool, ("SCRIPT", "KILL"))
        self.assertEqual(replies, ["OK"])
        self.assertLess(took, ANSWERED_WITHIN)
        self.assert_error(loop.reply())

    @on_every_server
    def test_all_watch(self):
        """Sessions with WATCH do not block others for ever, and SCRIPT KILL reaches the server."""
        server = self.server("--lua-time-limit", "300")
        respool = self.respool(*TIMEOUT, "--pinned-links-max", "8", backend=server.backend)
        self.take_all(respool, 8, "WATCH", "k")
        self.check(respool, server)

    def test_all_block(self):
        """The same with the default number of links, and blocking commands."""
        server = self.server("--lua-time-limit", "300")
        respool = self.respool(*TIMEOUT, backend=server.backend)
        self.take_all(respool, 1024, "BLPOP", "none", "0")
        self.check(respool, server)

    def test_all_track(self):
        """The same with CLIENT TRACKING, and a queue of sessions that wait."""
        server = self.server("--lua-time-limit", "300")
        respool = self.respool(*TIMEOUT, "--pinned-links-max", "4", backend=server.backend)
        for each in self.take_all(respool, 4, "HELLO", "3"):
            each.send("CLIENT", "TRACKING", "ON")
        time.sleep(0.5)
        self.take_all(respool, 100, "WATCH", "q")
        self.check(respool, server)

    def test_queue_moves_on(self):
        """A waiting session gets the link that another gives back, in time."""
        respool = self.respool(*TIMEOUT, "--pinned-links-max", "1", backend=self.server().backend)
        first, second = self.client(respool), self.client(respool)
        self.assertEqual(first.ask("WATCH", "a"), "OK")
        second.send("WATCH", "a")
        time.sleep(0.5)
        self.assertEqual(first.ask("UNWATCH"), "OK")
        took, reply = seconds_of(second.reply)
        self.assertEqual(reply, "OK")
        self.assertLess(took, 2)

    def test_refused_wait_leaves_the_session_usable(self):
        """A session goes on after its wait for a link ended at the deadline."""
        respool = self.respool(*TIMEOUT, "--pinned-links-max", "1", backend=self.server().backend)
        first, second = self.client(respool), self.client(respool)
        first.ask("WATCH", "a")
        # The request is refused at its deadline, or it gets the link of the idle session.
        took, reply = seconds_of(lambda: second.ask("WATCH", "a"))
        self.assertTrue(reply == "OK" or str(reply).startswith("NOTSENT"), reply)
        self.assertLess(took, ANSWERED_WITHIN)
        self.assertEqual(second.ask("SET", "a", "1"), "OK")
        self.assertEqual(second.ask("GET", "a"), b"1")


class KillsOutsideTheBounds(HostileTest):
    """Requests that may exceed a bound for a good reason have a bound of their own."""

    def test_flood_of_script_kills(self):
        """SCRIPT KILL in long pipelines of many clients makes a bounded number of connections."""
        server = self.server()
        control = self.client(server)
        respool = self.respool(*TIMEOUT, "--pinned-links-max", "4", "--streaming-links-max", "2", backend=server.backend)
        respool.ask("PING")
        before = int(server.stat("stats", "total_connections_received"))
        most = [0]

        def look():
            text = control.ask("INFO", "clients").decode()
            most[0] = max(most[0], int(text.split("connected_clients:")[1].split()[0]))

        self.background(look, pause=0.02)
        held = [self.client(respool) for _ in range(100)]
        for verb in ("SCRIPT", "FUNCTION"):
            for each in held:
                for _ in range(20):
                    each.send(verb, "KILL")
            for each in held:
                for reply in each.replies(20):
                    self.assert_error(reply)
        self.assertLess(most[0], 60)
        # 4,000 requests were sent, on links that are used again.
        made = int(server.stat("stats", "total_connections_received")) - before
        self.assertLess(made, 60, made)

    def test_questions_to_all_workers(self):
        """CLIENT LIST in long pipelines of many clients leaves others their CLIENT commands."""
        respool = self.respool("--threads", "2", backend=self.server().backend)
        held = [self.client(respool) for _ in range(300)]

        def ask(client):
            client.send("CLIENT", "LIST")
            client.reply()

        works = [self.background(lambda c=each: ask(c)) for each in held[:40]]
        for each in held[40:]:
            try:
                each.raw(b"*2\r\n$6\r\nCLIENT\r\n$4\r\nLIST\r\n" * 3)
            except OSError:
                pass
        refused = []
        for _ in range(20):
            with respool.client() as client:
                for words in (("CLIENT", "LIST"), ("CLIENT", "KILL", "ID", "999999"), ("CLIENT", "UNBLOCK", "999999")):
                    took, reply = seconds_of(lambda: client.ask(*words))
                    self.assertLess(took, 8)
                    if isinstance(reply, ErrorReply) and "No such" not in reply:
                        refused.append((words, reply))
            time.sleep(0.05)
        for each in works:
            each.stopping.set()
        self.assertEqual(refused[:3], [], f"{len(refused)} of 60")

    def test_flood_of_unknown_commands(self):
        """Unknown commands in long pipelines are not mistaken for another client's renamed one."""
        server = self.server("--rename-command", "INCR", "raise")
        respool = self.respool(backend=server.backend)
        polite = self.client(respool)
        self.assertEqual(polite.ask("raise", "n"), 1)
        noisy, number = self.client(respool), [0]

        def flood():
            number[0] += 1
            noisy.raw(b"".join(encode(f"nope{number[0]}x{each}", "k") for each in range(300)))
            noisy.replies(300)

        attack = self.background(flood)
        for count in range(2, 200):
            took, reply = seconds_of(lambda: polite.ask("raise", "n"))
            self.assertEqual(reply, count)
            self.assertLess(took, 3)
        attack.close()
        self.assertEqual(attack.errors, [])


class LoopingScript(HostileTest):
    """A client runs a script that never ends."""

    def run_loop(self, backend, servers):
        respool = self.respool(*TIMEOUT, backend=backend)
        polite = self.client(respool)
        polite.ask("SET", "a", "1")
        busy = lambda server: str(server.ask("GET", "a")).startswith("BUSY")
        loop = self.client(respool)
        loop.send("EVAL", LOOP, 1, "a")
        wait_until(lambda: any(busy(server) for server in servers), "the server is busy")
        time.sleep(0.3)
        took, reply = seconds_of(lambda: polite.ask("GET", "a"))
        self.assertLess(took, ANSWERED_WITHIN)
        self.assert_error(reply)
        with respool.client() as newcomer:
            took, reply = seconds_of(lambda: newcomer.ask("GET", "a"))
            self.assertLess(took, ANSWERED_WITHIN)
            self.assert_error(reply, "BUSY")
        with respool.client() as blocked:
            took, reply = seconds_of(lambda: blocked.ask("BLPOP", "a", "0.1"))
            self.assertLess(took, ANSWERED_WITHIN)
            self.assert_error(reply, "BUSY")
        with respool.client() as killer:
            took, reply = seconds_of(lambda: killer.ask("SCRIPT", "KILL"))
            self.assertEqual(reply, "OK")
            self.assertLess(took, ANSWERED_WITHIN)
        took, reply = seconds_of(loop.reply)
        self.assert_error(reply)
        self.assertLess(took, 5)
        look = lambda: polite.ask("GET", "a") == b"1"
        wait_until(look, "the session goes on as it is", 10)
        self.assertEqual(respool.ask("GET", "a"), b"1")

    @on_every_server
    def test_plain_server(self):
        """Other clients get the server's BUSY error, and SCRIPT KILL works."""
        server = self.server("--lua-time-limit", "300")
        self.run_loop(server.backend, [server])

    def test_sharded_servers(self):
        """The same before sharded servers."""
        servers = [self.server("--lua-time-limit", "300") for _ in range(2)]
        self.run_loop("redis-sharded://" + ",".join(each.address for each in servers), servers)

    @on_every_server
    def test_function_kill(self):
        """A function that loops is ended by FUNCTION KILL through respool."""
        server = self.server("--lua-time-limit", "300")
        respool = self.respool(*TIMEOUT, backend=server.backend)
        library = "#!lua name=l\nredis.register_function('f', function() while true do end end)"
        loop = self.client(respool)
        loop.ask("FUNCTION", "LOAD", library)
        loop.send("FCALL", "f", 0)
        wait_until(lambda: str(server.ask("GET", "a")).startswith("BUSY"), "the server is busy")
        with respool.client() as killer:
            took, reply = seconds_of(lambda: killer.ask("FUNCTION", "KILL"))
        self.assertEqual(reply, "OK")
        self.assertLess(took, ANSWERED_WITHIN)
        self.assert_error(loop.reply())

    def test_many_loops_in_turn(self):
        """Scripts of several clients, one after the other, are ended by one SCRIPT KILL each."""
        server = self.server("--lua-time-limit", "100")
        respool = self.respool(*TIMEOUT, backend=server.backend)
        held = [self.client(respool) for _ in range(5)]
        for each in held:
            each.send("EVAL", LOOP, 0)
        control = self.client(server)

        def kill():
            with respool.client() as killer:
                killer.ask("SCRIPT", "KILL")
            return control.ask("PING") == "PONG"

        wait_until(kill, "no script runs any more", 40)
        self.assertEqual(respool.ask("SET", "a", "1"), "OK")

    def test_kill_of_a_writing_script(self):
        """A script that has written cannot be killed, and the client gets the server's error."""
        server = self.server("--lua-time-limit", "100")
        respool = self.respool(*TIMEOUT, backend=server.backend)
        loop = self.client(respool)
        loop.send("EVAL", "redis.call('SET', 'a', 1); while true do end", 0)
        control = server.client()
        wait_until(lambda: str(control.ask("PING")).startswith("BUSY"), "the server is busy")
        took, reply = seconds_of(lambda: respool.ask("SCRIPT", "KILL"))
        self.assert_error(reply, "UNKILLABLE")
        self.assertLess(took, ANSWERED_WITHIN)
        control.send("SHUTDOWN", "NOSAVE")
        control.close()


class Waits(HostileTest):
    """Other waits that a client can cause."""

    def test_paused_by_client(self):
        """CLIENT PAUSE of a client ends for others at its time, and their requests are answered."""
        respool = self.respool(*TIMEOUT, backend=self.server().backend)
        self.assertEqual(respool.ask("CLIENT", "PAUSE", "500", "ALL"), "OK")
        took, reply = seconds_of(lambda: respool.ask("SET", "a", "1"))
        self.assertEqual(reply, "OK")
        self.assertLess(took, ANSWERED_WITHIN)

    def test_debug_sleep(self):
        """A request to a sleeping server gets an error at its deadline."""
        server = self.server()
        respool = self.respool(*TIMEOUT, "--refuse-commands", "none", backend=server.backend)
        sleeper, polite = self.client(respool), self.client(respool)
        polite.ask("GET", "a")
        sleeper.send("DEBUG", "SLEEP", "6")
        time.sleep(0.3)
        took, reply = seconds_of(lambda: polite.ask("GET", "a"))
        self.assertTrue(reply is None or isinstance(reply, ErrorReply))
        self.assertLess(took, ANSWERED_WITHIN)

    def test_many_users_fill_the_links(self):
        """If the links of other users fill links-max, new clients get an answer in time."""
        server = self.server(password="right")
        control = self.client(server)
        for number in range(20):
            control.ask("ACL", "SETUSER", f"u{number}", "on", ">p", "+@all", "~*", "&*")
        respool = self.respool(*TIMEOUT, "--links-max", "24", "--streaming-links-max", "4", backend=f"redis://{server.address}")
        held = []
        for number in range(20):
            client = self.client(respool)
            took, _ = seconds_of(lambda: client.ask("AUTH", f"u{number}", "p"))
            self.assertLess(took, ANSWERED_WITHIN)
            held.append(client)
        took, _ = seconds_of(lambda: respool.ask("AUTH", "right"))
        self.assertLess(took, ANSWERED_WITHIN)


if __name__ == "__main__":
    unittest.main()
