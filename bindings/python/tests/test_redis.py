"""`respool.Redis` before a real server. The first line of each test is its claim."""

import select
import threading
import time
import unittest

import redis
import respool
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from support import PATIENCE_SECONDS, WithServer

# Commands whose replies have all types, and errors.
COMMANDS = [
    ("SET", "key", "value"),
    ("GET", "key"),
    ("GET", b"key"),
    ("GET", bytearray(b"key")),
    ("GET", memoryview(b"key")),
    ("GET", "none"),
    ("SET", "number", 10),
    ("INCRBYFLOAT", "number", 0.5),
    ("SET", "large", 1 << 70),
    ("APPEND", "key", b"\x00\r\n\xc3\xa9"),
    ("STRLEN", "key"),
    ("HSET", "hash", "a", 1, "b", "two"),
    ("HGETALL", "hash"),
    ("RPUSH", "list", "a", "b"),
    ("LRANGE", "list", 0, -1),
    ("LPOP", "none"),
    ("LPOP", "none", 2),
    ("SADD", "set", "x"),
    ("SMEMBERS", "set"),
    ("SISMEMBER", "set", "x"),
    ("ZADD", "zset", 1.5, "one", "+inf", "two"),
    ("ZSCORE", "zset", "one"),
    ("ZRANGE", "zset", 0, -1, "WITHSCORES"),
    ("ZMSCORE", "zset", "one", "none"),
    ("XADD", "stream", "1-1", "field", "value"),
    ("XRANGE", "stream", "-", "+"),
    ("XREAD", "STREAMS", "stream", 0),
    ("XINFO STREAM", "stream"),
    ("MGET", "key", "none"),
    ("TYPE", "list"),
    ("EXISTS", "key", "none"),
    ("CONFIG GET", "maxmemory"),
    ("CONFIG", "GET", "maxmemory"),
    ("SCAN", 0, "COUNT", 1000),
    ("COMMAND COUNT",),
    ("EVAL", "return {1, {2, {false, 'x'}}, redis.status_reply('FINE')}", 0),
    ("EVAL", "return {1, {err = 'ERR inner'}}", 0),
    ("EVAL", "redis.setresp(3); return {map = {a = 1, b = {double = 0.5}}}", 0),
    ("EVAL", "redis.setresp(3); return {set = {a = true}}", 0),
    ("EVAL", "redis.setresp(3); return true", 0),
    ("EVAL", "redis.setresp(3); return {verbatim_string = {format = 'txt', string = 'text'}}", 0),
    ("EVAL", "return redis.error_reply('MY own')", 0),
    ("EVALSHA", "0" * 40, 0),
    ("LPUSH", "key", "x"),
    ("GET",),
    ("NOSUCH", "x"),
    ("ECHO", True),
    ("ECHO", None),
    ("ECHO", -0.0),
    ("ECHO", 1e300),
    ("PING",),
]


def outcome_of(client, command, **options):
    """The reply or the exception, to be compared."""
    try:
        return told(client.execute_command(*command, **options))
    except redis.DataError:
        # hiredis has another text.
        return redis.DataError
    except Exception as error:  # noqa: BLE001: any error is an outcome
        return type(error), str(error)


def told(reply):
    """A reply in which exceptions can be compared."""
    if isinstance(reply, list):
        return [told(one) for one in reply]
    return (type(reply), str(reply)) if isinstance(reply, Exception) else reply


class Clients(WithServer):
    def setUp(self):
        self.client = self.connect()
        self.client.flushall()

    def connect(self, **options):
        client = respool.Redis(port=self.server.port, **options)
        self.addCleanup(client.close)
        return client

    def plain(self, **options):
        client = redis.Redis(port=self.server.port, **options)
        self.addCleanup(client.close)
        return client

    def test_replies_are_those_of_redis_py(self):
        """Each reply and each error equals that of redis-py, for all protocols and encodings."""
        for options in (
            {},
            {"protocol": 2},
            {"protocol": 3},
            {"decode_responses": True},
            {"protocol": 2, "decode_responses": True, "encoding_errors": "ignore"},
            {"decode_responses": True, "encoding": "latin-1"},
            {"legacy_responses": False} if hasattr(redis.utils, "DEFAULT_RESP_VERSION") else {},
        ):
            plain, client = self.plain(**options), self.connect(**options)
            outcomes = []
            for one in (plain, client):
                one.flushall()
                outcomes.append([outcome_of(one, command) for command in COMMANDS])
            for command, expected, found in zip(COMMANDS, *outcomes):
                self.assertEqual(repr(found), repr(expected), f"{command} with {options}")
            self.assertEqual(client.hgetall("hash"), plain.hgetall("hash"))
            self.assertEqual(client.info("server")["tcp_port"], self.server.port)
            client.set_response_callback("GET", lambda reply, **_: ("mine", reply))
            self.assertEqual(client.get("none"), ("mine", None))

    def test_options_of_replies_have_their_effect(self):
        """NEVER_DECODE and EMPTY_RESPONSE have the effect that they have in redis-py."""
        client = self.connect(decode_responses=True)
        client.set("key", "value")
        self.assertEqual(client.execute_command("GET", "key", **{NEVER_DECODE: True}), b"value")
        self.assertIsInstance(client.dump("key"), bytes)
        self.assertEqual(client.execute_command("LPOP", "key", **{EMPTY_RESPONSE: []}), [])
        self.assertEqual(client.get("key"), "value")

    def test_values_are_not_touched(self):
        """Any bytes come back untouched: nothing, all bytes, 16 MiB."""
        for value in (b"", bytes(range(256)), b"x" * (16 << 20)):
            self.client.set(b"key\r\n\x00", value)
            self.assertEqual(self.client.get(b"key\r\n\x00"), value)
        pipeline = self.client.pipeline(transaction=False)
        value = b"y" * (16 << 20)
        self.assertEqual(pipeline.set("key", value).get("key").execute(), [True, value])

    def test_pipelines_are_answered_in_order(self):
        """A pipeline is answered in order, errors in their place. A transaction is whole."""
        for transaction in (False, True):
            pipeline = self.client.pipeline(transaction=transaction)
            for number in range(2000):
                pipeline.set(f"key:{number}", number).get(f"key:{number}")
            replies = pipeline.execute()
            self.assertEqual(replies[1::2], [str(number).encode() for number in range(2000)])
            pipeline.set("text", "x").incr("text").get("text")
            replies = pipeline.execute(raise_on_error=False)
            self.assertIs(replies[0], True)
            self.assertIsInstance(replies[1], redis.ResponseError)
            self.assertEqual(replies[2], b"x")
            with self.assertRaisesRegex(redis.ResponseError, "Command # 1 .* of pipeline"):
                pipeline.incr("text").get("text").execute()

    def test_watched_key_ends_a_transaction(self):
        """A transaction whose watched key has changed is not executed, and runs again."""
        tries = []

        def change(pipeline):
            before = int(pipeline.get("counter") or 0)
            if not tries:
                self.client.set("counter", 10)
            tries.append(before)
            pipeline.multi()
            pipeline.set("counter", before + 1)

        self.client.transaction(change, "counter")
        self.assertEqual(tries, [0, 10])
        self.assertEqual(self.client.get("counter"), b"11")
        with self.client.pipeline() as pipeline:
            pipeline.watch("counter")
            self.client.incr("counter")
            pipeline.multi()
            pipeline.get("counter")
            self.assertRaises(redis.WatchError, pipeline.execute)

    def test_scripts_and_locks_work(self):
        """A script is loaded once. Of many threads one at a time has a lock."""
        script = self.client.register_script("return ARGV[1] * 2")
        self.assertEqual(script(args=[21]), 42)
        self.client.script_flush()
        with self.client.pipeline() as pipeline:
            script(args=[4], client=pipeline)
            self.assertEqual(pipeline.execute(), [8])
        inside, most = [], []

        def work():
            with self.client.lock("lock", timeout=20, sleep=0.005):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

        run_threads(10, work)
        self.assertEqual(max(most), 1)
        self.assertEqual(len(most), 10)

    def test_messages_come_to_subscribers(self):
        """Messages of channels and patterns come in order, also to a thread of redis-py."""
        with self.client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe("channel")
            listener.psubscribe("pat*")
            self.assertIsNone(listener.get_message(timeout=1))
            self.assertIsNone(listener.get_message(timeout=1))
            began = time.monotonic()
            self.assertIsNone(listener.get_message(timeout=0.2))
            self.assertGreater(time.monotonic() - began, 0.1)
            for number in range(100):
                self.client.publish("channel", number)
            self.client.publish("pattern", "p")
            for number in range(100):
                self.assertEqual(listener.get_message(timeout=5)["data"], str(number).encode())
            self.assertEqual(listener.get_message(timeout=5)["pattern"], b"pat*")
        came = threading.Event()
        listener = self.client.pubsub()
        listener.subscribe(channel=lambda message: came.set())
        thread = listener.run_in_thread(sleep_time=0.01)
        self.client.publish("channel", "x")
        self.assertTrue(came.wait(PATIENCE_SECONDS))
        thread.stop()
        thread.join()

    def test_connection_can_be_polled(self):
        """The descriptor of a connection is readable while a message waits, as that of a socket."""
        with self.client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe("channel")
            self.assertIsNone(listener.get_message(timeout=1))
            poll = select.poll()
            poll.register(listener.connection._sock, select.POLLIN)
            for number in range(5):
                self.assertEqual(poll.poll(50), [])
                self.assertIsNone(listener.get_message(timeout=0.01))
                self.client.publish("channel", number)
                self.assertTrue(poll.poll(PATIENCE_SECONDS * 1000))
                self.assertEqual(listener.get_message(timeout=1)["data"], str(number).encode())

    def test_blocking_command_waits_for_its_own_time(self):
        """A blocking command waits longer than socket_timeout, and delays no other one."""
        client = self.connect(socket_timeout=0.1)
        began = time.monotonic()
        self.assertIsNone(client.blpop("list", timeout=0.3))
        self.assertGreater(time.monotonic() - began, 0.25)
        timer = threading.Timer(0.2, client.rpush, ["list", "element"])
        timer.start()
        self.assertEqual(tuple(client.blpop("list", timeout=0)), (b"list", b"element"))
        timer.join()
        self.assertIsNone(client.xread({"stream": "$"}, block=200) or None)

    def test_call_ends_at_its_time(self):
        """A call ends at socket_timeout with an error that is a TimeoutError and Unknown."""
        client = self.connect(socket_timeout=0.1)
        began = time.monotonic()
        with self.assertRaises(redis.TimeoutError) as caught:
            client.execute_command("DEBUG", "SLEEP", "0.4")
        self.assertLess(time.monotonic() - began, 0.35)
        self.assertIsInstance(caught.exception, respool.Unknown)
        time.sleep(0.4)
        with self.assertRaises(redis.TimeoutError) as caught:
            client.pipeline(transaction=False).execute_command("DEBUG", "SLEEP", "0.3").get("x").execute()
        self.assertIsInstance(caught.exception, respool.Unknown)
        time.sleep(0.3)
        self.assertTrue(client.ping())

    def test_state_of_a_connection_is_kept(self):
        """What a command changes at its connection holds for the commands behind it."""
        self.client.set("key", "db0")
        client = self.connect()
        self.assertTrue(client.client_setname("mine"))
        self.assertEqual(client.client_getname(), "mine")
        self.assertTrue(client.select(1))
        self.assertIsNone(client.get("key"))
        client.set("key", "db1")
        self.assertEqual(self.client.get("key"), b"db0")
        self.assertEqual(self.connect(db=1).get("key"), b"db1")
        with self.client.client() as one:
            one.select(1)
            self.assertEqual(one.get("key"), b"db1")
            self.assertEqual(one.client_id(), one.client_id())
        self.assertEqual(self.client.get("key"), b"db0")
        single = self.connect(single_connection_client=True)
        single.select(1)
        self.assertEqual(single.get("key"), b"db1")

    def test_threads_read_their_own_writes(self):
        """Each of 50 threads reads its own writes."""
        wrong = []

        def work():
            me = threading.get_ident()
            for number in range(100):
                self.client.set(f"key:{me}", number)
                if self.client.get(f"key:{me}") != str(number).encode():
                    wrong.append(number)

        run_threads(50, work)
        self.assertEqual(wrong, [])
        # Few connections carry the requests of all threads.
        self.assertLess(self.plain().info("clients")["connected_clients"], 20)

    def test_pool_serves_other_clients(self):
        """A client of redis-py itself works on a pool of respool, and so does respool.Redis."""
        pool = respool.ConnectionPool.from_url(f"{self.server.url}?decode_responses=yes", max_connections=60)
        self.addCleanup(pool.close)
        for client in (redis.Redis(connection_pool=pool), respool.Redis(connection_pool=pool)):
            run_threads(20, lambda: [client.incr("count") for _ in range(10)])
            with client.pipeline() as pipeline:
                self.assertEqual(pipeline.set("key", 1).get("key").execute(), [True, "1"])
            with client.pubsub() as listener:
                listener.subscribe("channel")
                self.assertEqual(listener.get_message(timeout=1)["type"], "subscribe")
        self.assertEqual(client.get("count"), "400")
        own = redis.ConnectionPool(connection_class=respool.Connection, port=self.server.port)
        self.addCleanup(own.close)
        self.assertEqual(redis.Redis(connection_pool=own).get("count"), b"400")

    def test_closed_client_is_usable_again(self):
        """A client that was closed opens again, and another one does not notice."""
        other = self.connect()
        self.client.close()
        self.assertTrue(other.ping())
        self.assertTrue(self.client.ping())
        self.client.close()
        other.close()
        self.assertTrue(other.set("key", 1))
        with respool.from_url(self.server.url) as client:
            self.assertEqual(client.get("key"), b"1")

    def test_monitor_shows_commands(self):
        """MONITOR shows commands."""
        with self.client.monitor() as monitor:
            self.client.set("seen", 1)
            for _ in range(20):
                if "seen" in monitor.next_command()["command"]:
                    return
        self.fail("the command was not shown")


def run_threads(count, work):
    errors = []

    def guarded():
        try:
            work()
        except BaseException as error:  # noqa: BLE001: shown below
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    if errors:
        raise errors[0]


if __name__ == "__main__":
    unittest.main()
