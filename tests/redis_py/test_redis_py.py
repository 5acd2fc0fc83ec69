"""Runs redis-py through respool: blocking and asyncio, both protocols, every available server.

The first line of each test is its claim.
"""

import asyncio
import threading
import time
import unittest

import redis
import redis.asyncio

from servers import Respool, Server, make_certificate, server_program


class Suite:
    """The tests. Each class below sets the server and the protocol."""

    server_name = ""
    protocol = 2

    @classmethod
    def setUpClass(cls):
        program, missing = server_program(cls.server_name)
        if program is None:
            if cls.server_name == "redis-server":
                raise RuntimeError(missing)
            raise unittest.SkipTest(missing)
        cls.server = Server(program)
        cls.addClassCleanup(cls.server.close)
        cls.respool = Respool(cls.server, "--threads=2", *cls.more_args(cls.server.folder.name))
        cls.addClassCleanup(cls.respool.close)
        cls.where = cls.listener()

    @classmethod
    def more_args(cls, _folder):
        """More arguments of respool."""
        return []

    @classmethod
    def listener(cls):
        """The options by which a client of redis-py reaches respool."""
        return {"port": cls.respool.port}

    def setUp(self):
        self.client = self.connect()
        self.client.flushall()

    def connect(self, **options):
        options = {"protocol": self.protocol, "decode_responses": True, "socket_timeout": 20, **options}
        client = redis.Redis(**self.where, **options)
        self.addCleanup(client.close)
        return client

    def test_values_of_every_type_keep_their_type(self):
        """Values of every type come back with their type."""
        r = self.client
        self.assertTrue(r.ping())
        self.assertTrue(r.set("key", "value", ex=100))
        self.assertEqual(r.get("key"), "value")
        self.assertIsNone(r.get("none"))
        self.assertEqual(r.mget("key", "none"), ["value", None])
        self.assertEqual(r.incrby("count", 5), 5)
        self.assertEqual(r.hset("hash", mapping={"a": 1, "b": "two"}), 2)
        self.assertEqual(r.hgetall("hash"), {"a": "1", "b": "two"})
        self.assertEqual(r.rpush("list", "a", "b", "c"), 3)
        self.assertEqual(r.lrange("list", 0, -1), ["a", "b", "c"])
        self.assertEqual(r.sadd("set", "x", "y"), 2)
        self.assertEqual(r.smembers("set"), {"x", "y"})
        self.assertEqual(r.zadd("zset", {"one": 1.5, "two": 2}), 2)
        self.assertEqual(r.zscore("zset", "one"), 1.5)
        self.assertEqual([tuple(pair) for pair in r.zrange("zset", 0, -1, withscores=True)], [("one", 1.5), ("two", 2)])
        self.assertTrue(r.xadd("stream", {"field": "value"}, id="1-1"))
        self.assertEqual(r.xlen("stream"), 1)
        self.assertTrue(r.xread({"stream": "0"}))
        self.assertEqual(sorted(r.scan_iter(count=2)), sorted(r.keys()))
        self.assertEqual(r.eval("return {KEYS[1], ARGV[1]}", 1, "k", "a"), ["k", "a"])
        script = r.register_script("return ARGV[1] * 2")
        self.assertEqual(script(args=[21]), 42)
        self.assertGreater(r.ttl("key"), 90)
        self.assertEqual(r.delete("key", "count", "none"), 2)

    def test_bytes_are_not_touched(self):
        """Any bytes, of any number, come back untouched."""
        client = self.connect(decode_responses=False)
        for value in [b"", bytes(range(256)) * 5, b"\r\n$5\r\n" * 1000, b"x" * (20 << 20)]:
            client.set(b"bytes\r\n\x00", value)
            self.assertEqual(client.get(b"bytes\r\n\x00"), value)

    def test_a_pipeline_is_answered_in_order(self):
        """A pipeline without a transaction is answered in order, errors in their place."""
        pipeline = self.client.pipeline(transaction=False)
        for number in range(5000):
            pipeline.set(f"key:{number}", number)
            pipeline.get(f"key:{number}")
        replies = pipeline.execute()
        self.assertEqual(replies[1::2], [str(number) for number in range(5000)])
        pipeline.set("text", "x").incr("text").get("text")
        replies = pipeline.execute(raise_on_error=False)
        self.assertIs(replies[0], True)
        self.assertIsInstance(replies[1], redis.ResponseError)
        self.assertEqual(replies[2], "x")

    def test_transactions_blocking_pops_and_pubsub_work(self):
        """A transaction that a watched key aborts once, a blocking pop and a subscription work."""
        other = self.connect()
        tries = []

        def change(pipeline):
            before = int(pipeline.get("counter") or 0)
            if not tries:
                other.set("counter", 10)
            tries.append(before)
            pipeline.multi()
            pipeline.set("counter", before + 1)

        self.client.transaction(change, "counter")
        self.assertEqual(tries, [0, 10])
        self.assertEqual(self.client.get("counter"), "11")
        self.assertIsNone(self.client.blpop("list", timeout=0.05))
        waiter = threading.Timer(0.1, other.rpush, ["list", "element"])
        waiter.start()
        self.assertEqual(list(self.client.blpop("list", timeout=10)), ["list", "element"])
        waiter.join()
        with self.client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe("channel")
            self.assertIsNone(listener.get_message(timeout=1))
            self.assertEqual(other.publish("channel", "message"), 1)
            message = listener.get_message(timeout=10)
            self.assertEqual(message["data"], "message")

    def test_connections_of_a_pool_are_shared_by_many_threads(self):
        """Each of many threads, on a pool of few connections, reads its own writes."""
        where = dict(self.where)
        if where.pop("ssl", False):
            where["connection_class"] = redis.SSLConnection
        pool = redis.BlockingConnectionPool(
            **where, protocol=self.protocol, decode_responses=True, max_connections=8, timeout=20
        )
        self.addCleanup(pool.disconnect)
        wrong = []

        def work(number):
            try:
                client = redis.Redis(connection_pool=pool)
                for step in range(50):
                    value = f"{number}/{step}"
                    client.set(f"thread:{number}", value)
                    got = client.get(f"thread:{number}")
                    total = client.incr(f"count:{number}")
                    if (got, total) != (value, step + 1):
                        wrong.append((value, got, total))
            except Exception as error:  # pylint: disable=broad-except
                wrong.append((number, repr(error)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_databases_and_names_belong_to_their_client(self):
        """Each client has its own database and name."""
        clients = [self.connect(db=db, client_name=f"client-{db}") for db in range(4)]
        for db, client in enumerate(clients):
            client.set("key", db)
        for db, client in enumerate(clients):
            self.assertEqual(client.get("key"), str(db))
            self.assertEqual(client.client_getname(), f"client-{db}")

    def test_a_socket_of_the_file_system_leads_to_the_same_server(self):
        """A socket of the file system leads to the same server."""
        self.client.set("key", "value")
        client = redis.Redis(unix_socket_path=self.respool.socket, protocol=self.protocol, decode_responses=True)
        self.addCleanup(client.close)
        self.assertEqual(client.get("key"), "value")

    def test_info_is_understood(self):
        """The fields that the client reads out of INFO are there."""
        info = self.client.info()
        self.assertIn("redis_version", info)
        self.assertEqual(info["role"], "master")
        self.assertEqual(info["loading"], 0)

    def test_many_tasks_read_their_own_writes(self):
        """Each of many tasks of one event loop reads its own writes."""

        async def work():
            client = redis.asyncio.Redis(
                **self.where, protocol=self.protocol, decode_responses=True, max_connections=20
            )
            limit = asyncio.Semaphore(20)

            async def task(number):
                for step in range(20):
                    async with limit:
                        value = f"{number}/{step}"
                        await client.set(f"task:{number}", value)
                        self.assertEqual(await client.get(f"task:{number}"), value)
                        async with client.pipeline(transaction=False) as pipeline:
                            replies = await pipeline.append(f"task:{number}", "+").strlen(f"task:{number}").execute()
                        self.assertEqual(replies, [len(value) + 1] * 2)

            await asyncio.gather(*(task(number) for number in range(100)))
            await client.aclose()

        asyncio.run(work())

    def test_client_works_again_after_a_server_restart(self):
        """After a restart of the server the same client works again."""
        client = self.connect(single_connection_client=True, retry=None)
        client.ping()
        self.server.kill()
        # The client closes its connection at this error, and connects again with its next request.
        with self.assertRaisesRegex(redis.exceptions.BusyLoadingError, "respool"):
            client.set("key", "value")
        self.server.start()
        deadline = time.monotonic() + 10
        self.until_served(lambda: client.set("key", "again"), deadline)
        self.assertEqual(client.get("key"), "again")
        # The other worker reconnects by itself, too. Later tests must not meet it before that. A
        # client that this worker refuses connects again, perhaps to the first worker.
        while client.info("respool")["respool_servers_down"] != 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def until_served(self, ask, deadline):
        while True:
            try:
                return ask()
            except (redis.ResponseError, redis.ConnectionError):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)


class SuiteWithTls(Suite):
    """The same tests over TLS."""

    @classmethod
    def more_args(cls, folder):
        cls.ca, certificate, key = make_certificate(folder)
        return ["--tls-listen=127.0.0.1:0", f"--tls-cert={certificate}", f"--tls-key={key}"]

    @classmethod
    def listener(cls):
        return {"host": "localhost", "port": cls.respool.tls_port, "ssl": True, "ssl_ca_certs": cls.ca}

    def test_client_without_trust_in_the_certificate_is_refused(self):
        """A client that does not trust the certificate does not connect; a plain one does not, either."""
        with redis.Redis(host="localhost", port=self.respool.tls_port, ssl=True, retry=None) as client:
            with self.assertRaisesRegex(redis.ConnectionError, "CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
                client.ping()
        with redis.Redis(port=self.respool.tls_port, retry=None, socket_timeout=20) as client:
            with self.assertRaises((redis.ConnectionError, redis.exceptions.InvalidResponse)):
                client.ping()


class WithPassword(unittest.TestCase):
    """A respool that asks for a password, before a server that has none."""

    def test_a_password_is_asked_for_in_both_protocols(self):
        """A client without the password gets only errors, in either protocol."""
        program, missing = server_program("redis-server")
        self.assertIsNotNone(program, missing)
        server = Server(program)
        self.addCleanup(server.close)
        respool = Respool(server, "--password=secret")
        self.addCleanup(respool.close)
        for protocol in (2, 3):
            with redis.Redis(port=respool.port, protocol=protocol, password="secret") as client:
                self.assertTrue(client.ping())
            with redis.Redis(port=respool.port, protocol=protocol, password="wrong") as client:
                with self.assertRaises(redis.AuthenticationError):
                    client.ping()
            with redis.Redis(port=respool.port, protocol=protocol) as client:
                with self.assertRaises(redis.AuthenticationError):
                    client.ping()


def load_tests(loader, _tests, _pattern):
    """A class for each server and protocol."""
    suite = unittest.TestSuite()
    for name in ("redis-6.2", "redis-server", "redis-8.2", "valkey-9.1"):
        for protocol in (2, 3):
            title = f"{name}, RESP{protocol}"
            case = type(title, (Suite, unittest.TestCase), {"server_name": name, "protocol": protocol})
            suite.addTests(loader.loadTestsFromTestCase(case))
    case = type("redis-server, TLS", (SuiteWithTls, unittest.TestCase), {"server_name": "redis-server", "protocol": 3})
    suite.addTests(loader.loadTestsFromTestCase(case))
    suite.addTests(loader.loadTestsFromTestCase(WithPassword))
    return suite


if __name__ == "__main__":
    unittest.main()
