"""Outcomes of requests whose server is lost. The first line of each test is its claim."""

import threading
import time
import unittest

import redis
import respool
from redis.backoff import NoBackoff
from redis.retry import Retry

from support import PATIENCE_SECONDS, Server

FAST = {"outage-hold-ms": "50", "request-timeout-ms": "500", "reconnect-max-ms": 50}


class Outcomes(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.close)
        self.client = self.connect()
        self.client.set("key", 1)

    def connect(self, **options):
        client = respool.Redis.from_url(self.server.url, respool_options=FAST, **options)
        self.addCleanup(client.close)
        return client

    def wait_until_lost(self):
        """Waits until a request is not sent any more."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                self.client.get("key")
            except respool.NotSent:
                return
            except respool.Unknown:
                pass
        self.fail("requests are still sent")

    def test_dead_server_means_not_sent(self):
        """A request to a dead server is not sent; the client goes on when the server is back."""
        self.client.pipeline().get("key").execute()
        self.server.kill()
        self.wait_until_lost()
        with self.assertRaises(redis.ConnectionError) as caught:
            self.client.incr("count")
        self.assertIsInstance(caught.exception, respool.NotSent)
        # Its connection was there before. Those below need a new one.
        replies = self.client.pipeline(transaction=False).incr("count").get("x").execute(raise_on_error=False)
        self.assertEqual([type(reply) for reply in replies], [respool.NotSent] * 2)
        for transaction in (False, True):
            with self.assertRaises(respool.NotSent):
                self.client.pipeline(transaction=transaction).incr("count").incr("count").execute()
        plain = redis.Redis(connection_pool=self.client.connection_pool)
        self.assertRaises(redis.ConnectionError, plain.incr, "count")
        self.server.start()
        self.assertEqual(self.eventually(lambda: self.client.incr("count")), 1)
        self.assertEqual(self.eventually(lambda: plain.incr("count")), 2)

    def test_request_under_way_is_unknown(self):
        """A request that a dying server has got is Unknown, alone and in a pipeline."""
        errors = []

        def work(run):
            try:
                run()
            except redis.ConnectionError as error:
                errors.append(error)

        pipeline = self.client.pipeline(transaction=False)
        # It has its connection before.
        pipeline.connection = self.client.connection_pool.get_connection()
        self.server.freeze()
        runs = [
            lambda: self.client.incr("count"),
            lambda: pipeline.incr("count").incr("count").execute(),
        ]
        threads = [threading.Thread(target=work, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        self.server.kill()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        self.assertEqual([isinstance(error, respool.Unknown) for error in errors], [True] * 2, errors)

    def test_frozen_server_is_unknown_at_the_limit(self):
        """At a limit, of the caller or of respool, the error is a TimeoutError, too."""
        self.server.freeze()
        limited = self.connect(socket_timeout=0.1)
        for client, least in ((limited, 0.1), (self.connect(socket_timeout=None), 0.5)):
            began = time.monotonic()
            with self.assertRaises(redis.TimeoutError) as caught:
                client.incr("count")
            self.assertIsInstance(caught.exception, respool.Unknown)
            self.assertGreater(time.monotonic() - began, least * 0.9)
        self.server.thaw()

    def test_write_out_of_time_is_not_repeated(self):
        """A pipeline whose write finds no room in time is Unknown, and is not sent again."""
        plain = redis.Redis(
            connection_pool=respool.ConnectionPool(port=self.server.port, socket_timeout=0.5)
        )
        for client in (self.connect(socket_timeout=0.5), plain):
            client.pipeline(transaction=False).get("count").execute()
            client.delete("count")
            pipeline = client.pipeline(transaction=False).incr("count").set("big", "x" * 5_000_000)
            self.server.freeze()
            with self.assertRaises(redis.TimeoutError) as caught:
                pipeline.execute()
            self.server.thaw()
            self.assertIsInstance(caught.exception, respool.Unknown)
            # A request that has left is executed once.
            time.sleep(0.3)
            self.assertIn(self.client.get("count"), (None, b"1"))

    def test_retry_repeats_only_requests_not_executed(self):
        """A retry of the user repeats a request that was not sent, and no Unknown one."""
        client = self.connect(retry=Retry(NoBackoff(), 3), socket_timeout=0.1)
        asked = []
        inner = client._call
        client._call = lambda *args: asked.append(args) or inner(*args)
        self.server.freeze()
        self.assertRaises(respool.Unknown, client.incr, "count")
        self.assertEqual(len(asked), 1)
        self.server.kill()
        self.wait_until_lost()
        asked.clear()
        self.assertRaises(respool.NotSent, client.incr, "count")
        self.assertEqual(len(asked), 4)
        self.server.start()
        self.assertEqual(self.eventually(lambda: self.client.get("count")), None)

    def test_part_of_a_pipeline_may_have_been_executed(self):
        """A pipeline is Unknown if some of its commands were executed and one was not sent."""
        replies = [True, respool._errors.FateReply("NOTSENT respool: x", True), 5]
        pipeline = self.client.pipeline(transaction=False)
        commands = [(("SET", "a", 1), {}), (("GET", "b"), {}), (("GET", "c"), {})]
        with self.assertRaisesRegex(respool.Unknown, "Command # 2 .*others? commands"):
            pipeline.raise_first_error(commands, replies)
        with self.assertRaises(respool.NotSent):
            pipeline.raise_first_error(commands[:1], replies[1:2])

    def test_error_of_a_server_stays_its_error(self):
        """An error of the server that redis-py raises at once is not taken for a lost session."""
        script = "return redis.error_reply('LOADING by a script')"
        for ask in (
            lambda: self.client.eval(script, 0),
            lambda: self.client.pipeline(transaction=False).eval(script, 0).execute(),
        ):
            self.assertRaises(redis.exceptions.BusyLoadingError, ask)
        self.assertTrue(self.client.ping())

    def test_subscriber_comes_back(self):
        """A subscriber gets messages again when its server is back."""
        with self.client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe("channel")
            listener.get_message(timeout=1)
            self.server.kill()
            self.server.start()
            end = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < end:
                try:
                    self.client.publish("channel", "again")
                    message = listener.get_message(timeout=0.1)
                except redis.ConnectionError:
                    continue
                if message:
                    self.assertEqual(message["data"], b"again")
                    return
        self.fail("no message came")

    def eventually(self, ask):
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return ask()
            except redis.ConnectionError:
                if time.monotonic() > end:
                    raise


if __name__ == "__main__":
    unittest.main()
