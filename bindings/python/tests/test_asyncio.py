"""`respool.asyncio.Redis` before a real server. The first line of each test is its claim."""

import asyncio
import gc
import threading
import time
import unittest
import unittest.mock
import weakref

import redis
import redis.asyncio
import respool
import respool.asyncio

from support import PATIENCE_SECONDS, Server, WithServer
from test_redis import COMMANDS, told

FAST = {"outage-hold-ms": "50", "request-timeout-ms": "500", "reconnect-max-ms": 50}


class Tasks(WithServer):
    def run_async(self, work, **options):
        """Runs a coroutine function with a client, in an event loop of its own."""

        async def run():
            async with respool.asyncio.Redis(port=self.server.port, **options) as client:
                await client.flushall()
                await work(client)

        asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))

    def test_replies_are_those_of_redis_py(self):
        """Each reply and each error equals that of redis-py, for both protocols."""

        async def outcome_of(client, command):
            try:
                return told(await client.execute_command(*command))
            except redis.DataError:
                return redis.DataError
            except Exception as error:  # noqa: BLE001: any error is an outcome
                return type(error), str(error)

        async def work(client, options):
            async with redis.asyncio.Redis(port=self.server.port, **options) as plain:
                expected = [await outcome_of(plain, command) for command in COMMANDS]
                await client.flushall()
                found = [await outcome_of(client, command) for command in COMMANDS]
                for command, one, other in zip(COMMANDS, expected, found):
                    self.assertEqual(repr(other), repr(one), f"{command} with {options}")
                self.assertEqual(await client.hgetall("hash"), await plain.hgetall("hash"))

        for options in ({}, {"protocol": 2}, {"protocol": 3, "decode_responses": True}):
            self.run_async(lambda client: work(client, options), **options)

    def test_tasks_read_their_own_writes(self):
        """Each of 200 tasks reads its own writes, and the loop wakes once for many of them."""

        async def work(client):
            async def one(me):
                for number in range(20):
                    await client.set(f"key:{me}", number)
                    self.assertEqual(await client.get(f"key:{me}"), str(number).encode())

            await asyncio.gather(*[one(me) for me in range(200)])
            self.assertLess((await client.info("clients"))["connected_clients"], 20)

        self.run_async(work)

    def test_connections_work(self):
        """Pipelines, watched keys, messages, scripts, locks and blocking commands work."""

        async def work(client):
            async with client.pipeline(transaction=False) as pipeline:
                # Replies come before all requests have found room.
                for number in range(5000):
                    pipeline.set("key", f"{number:01000}").get("key")
                self.assertEqual((await pipeline.execute())[-1].lstrip(b"0"), b"4999")
            await client.set("key", 4999)
            async with client.pipeline() as pipeline:
                await pipeline.watch("key")
                await client.incr("key")
                pipeline.multi()
                pipeline.get("key")
                with self.assertRaises(redis.WatchError):
                    await pipeline.execute()
                self.assertEqual(await pipeline.get("key").incr("key").execute(), [b"5000", 5001])
            async with client.pubsub(ignore_subscribe_messages=True) as listener:
                await listener.subscribe("channel")
                self.assertIsNone(await listener.get_message(timeout=1))
                self.assertIsNone(await listener.get_message(timeout=0.1))
                await client.publish("channel", "x")
                self.assertEqual((await listener.get_message(timeout=5))["data"], b"x")
            script = client.register_script("return ARGV[1] * 2")
            self.assertEqual(await script(args=[21]), 42)
            async with client.lock("lock", timeout=5):
                self.assertFalse(await client.lock("lock").acquire(blocking=False))
            pop = asyncio.ensure_future(client.blpop("list", timeout=0))
            await asyncio.sleep(0.05)
            await client.rpush("list", "element")
            self.assertEqual(tuple(await pop), (b"list", b"element"))
            await client.client_setname("mine")
            self.assertEqual(await client.client_getname(), "mine")
            async with client.client() as one:
                await one.select(1)
                self.assertIsNone(await one.get("key"))
            self.assertEqual(await client.get("key"), b"5001")
            await client.select(1)
            self.assertIsNone(await client.get("key"))

        for options in ({}, {"protocol": 2}):
            self.run_async(work, **options)

    def test_large_values_come_back(self):
        """Values of 16 MiB come back, alone and in a pipeline."""

        async def work(client):
            value = b"x" * (16 << 20)
            await client.set("key", value)
            self.assertEqual(await client.get("key"), value)
            replies = await client.pipeline(transaction=False).set("key", value).get("key").execute()
            self.assertEqual(replies, [True, value])

        self.run_async(work)

    def test_cancelled_request_is_taken_back(self):
        """A cancelled task takes its request back, and no reply reaches another task."""

        async def work(client):
            pop = asyncio.ensure_future(client.blpop("list", timeout=0))
            await asyncio.sleep(0.1)
            pop.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await pop
            await asyncio.sleep(0.05)
            await client.rpush("list", "element")
            # The cancelled one does not take the element.
            self.assertEqual(await client.llen("list"), 1)

            async def ask(number):
                self.assertEqual(await client.execute_command("ECHO", number), str(number).encode())

            asks = [asyncio.ensure_future(ask(number)) for number in range(2000)]
            for at, one in enumerate(asks):
                if at % 3 == 0:
                    await asyncio.sleep(0)
                    one.cancel()
            for one in await asyncio.gather(*asks, return_exceptions=True):
                self.assertIn(type(one), (type(None), asyncio.CancelledError))
            pipeline = asyncio.ensure_future(
                client.pipeline(transaction=False).execute_command("BLPOP", "none", 0).get("list").execute()
            )
            await asyncio.sleep(0.1)
            pipeline.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await pipeline
            self.assertEqual(await client.pipeline().echo("e").execute(), [b"e"])
            # Nothing of a cancelled call is kept.
            entry = client.connection_pool.core.loops[asyncio.get_running_loop()]
            while len(entry.calls):
                await asyncio.sleep(0.01)

        self.run_async(work)

    def test_broken_future_harms_no_other(self):
        """A future that cannot take its reply does not keep other calls from theirs."""

        async def work(client):
            class Broken(asyncio.Future):
                def set_result(self, result):
                    raise RuntimeError("broken")

            await client.ping()
            calls = client.connection_pool.core.loops[asyncio.get_running_loop()].calls
            with unittest.mock.patch("sys.unraisablehook") as hook:
                for _ in range(10):
                    calls.ask(Broken(), ("PING",), client._codec, None, False)
                    self.assertTrue(await client.ping())
                self.assertEqual(hook.call_count, 10)

        self.run_async(work)

    def test_call_ends_at_its_time(self):
        """A call ends at socket_timeout, as Unknown and as a TimeoutError. Calls in time do not."""

        async def work(client):
            quick = [client.get("key") for _ in range(100)]
            self.assertEqual(await asyncio.gather(*quick), [None] * 100)
            await asyncio.sleep(0.15)
            began = time.monotonic()
            calls = [client.execute_command("DEBUG", "SLEEP", "0.5"), client.get("key")]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            self.assertLess(time.monotonic() - began, 0.4)
            for outcome in outcomes:
                self.assertIsInstance(outcome, redis.TimeoutError)
                self.assertIsInstance(outcome, (respool.Unknown, respool.NotSent))
            await asyncio.sleep(0.5)
            self.assertIsNone(await client.blpop("none", timeout=0.3))

        self.run_async(work, socket_timeout=0.1)

    def test_loops_and_threads_share_a_client(self):
        """Several event loops in several threads use one object, one after the other and at once."""
        client = respool.asyncio.Redis(port=self.server.port)

        async def work():
            await client.set("key", "value")
            self.assertEqual(await asyncio.gather(*[client.get("key") for _ in range(50)]), [b"value"] * 50)

        for _ in range(3):
            asyncio.run(work())
        errors = []

        def run():
            try:
                for _ in range(5):
                    asyncio.run(work())
            except BaseException as error:  # noqa: BLE001: shown below
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        self.assertEqual(errors, [])
        asyncio.run(client.aclose())

    def test_loop_is_not_kept(self):
        """A client keeps no event loop that has ended."""
        client = respool.asyncio.Redis(port=self.server.port)

        async def work():
            await client.ping()
            await client.connection_pool.disconnect()
            await client.ping()
            return weakref.ref(asyncio.get_running_loop())

        loop = asyncio.run(work())
        gc.collect()
        self.assertIsNone(loop())
        asyncio.run(client.aclose())

    def test_lost_server_tells_the_outcome(self):
        """A request to a dead server is NotSent, one under way is Unknown, and the client goes on."""
        server = Server()
        self.addCleanup(server.close)

        async def work():
            async with respool.asyncio.Redis.from_url(server.url, respool_options=FAST) as client:
                await client.set("key", 1)
                server.freeze()
                calls = [asyncio.ensure_future(client.incr("count")) for _ in range(10)]
                await asyncio.sleep(0.1)
                server.kill()
                for outcome in await asyncio.gather(*calls, return_exceptions=True):
                    self.assertIsInstance(outcome, respool.Unknown)
                await self.eventually(client, respool.NotSent)
                with self.assertRaises(respool.NotSent):
                    await client.pipeline(transaction=False).incr("count").execute()
                server.start()
                await self.eventually(client, None)
                self.assertEqual(await client.pipeline().incr("count").execute(), [1])

        asyncio.run(asyncio.wait_for(work(), PATIENCE_SECONDS))

    async def eventually(self, client, kind):
        """Asks until this kind of error comes, or none."""
        while True:
            try:
                await client.get("key")
            except redis.ConnectionError as error:
                if kind and isinstance(error, kind):
                    return
            else:
                if kind is None:
                    return
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
