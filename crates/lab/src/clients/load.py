"""The loop of a client library for Python. Arguments: PEER URL CALLERS VERB VALUE_BYTES SECONDS, or
PEER probe."""

import asyncio
import json
import sys
import threading
import time
from urllib.parse import urlsplit

KEYS = 100
WARM_UP_SECONDS = 0.5
POOL = 50


def blocking_request(peer, url):
    """A function that sends one request, for all threads."""
    if peer == "redis-py-threads":
        import redis

        pool = redis.BlockingConnectionPool.from_url(url, max_connections=POOL, timeout=None)
        return redis.Redis(connection_pool=pool).execute_command
    if peer == "respool-threads":
        import respool

        return respool.Redis.from_url(url).execute_command
    import glide_sync

    at = urlsplit(url)
    address = glide_sync.NodeAddress(at.hostname, at.port)
    config = glide_sync.GlideClientConfiguration([address], request_timeout=30_000)
    client = glide_sync.GlideClient.create(config)
    return lambda *words: client.custom_command(list(words))


async def task_request(peer, url):
    """The same for tasks."""
    if peer == "redis-py-tasks":
        import redis.asyncio

        pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=POOL, timeout=None)
        return redis.asyncio.Redis(connection_pool=pool).execute_command
    if peer == "respool-tasks":
        import respool.asyncio

        return respool.asyncio.Redis.from_url(url).execute_command
    import glide

    at = urlsplit(url)
    address = glide.NodeAddress(at.hostname, at.port)
    config = glide.GlideClientConfiguration([address], request_timeout=30_000)
    client = await glide.GlideClient.create(config)
    return lambda *words: client.custom_command(list(words))


def words(caller, verb, value):
    keys = [f"key:{caller}:{index}" for index in range(KEYS)]
    if verb in ("get", "large"):
        return ("GET", keys[0])
    if verb == "set":
        return ("SET", keys[0], value)
    if verb == "mget":
        return ("MGET", *keys)
    return ("MSET", *(word for key in keys for word in (key, value)))


class Run:
    """The measured time, and the requests of the callers in it."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []
        self.errors = 0

    def begin(self, seconds=None):
        self.began = time.perf_counter()
        self.until = self.began + (self.seconds if seconds is None else seconds)
        self.times = []
        self.errors = 0

    def end(self):
        took = time.perf_counter() - self.began
        self.times.sort()
        count = len(self.times)
        at = lambda part: self.times[min(count - 1, int(count * part))] * 1e6 if count else 0.0
        result = dict(requests=count, errors=self.errors, seconds=took, p50_us=at(0.5), p99_us=at(0.99))
        print(json.dumps(result), flush=True)
        sys.stdin.readline()


def run_threads(request, callers, requests, run):
    def loop(words, results):
        clock = time.perf_counter
        times, errors, until = [], 0, run.until
        while (start := clock()) < until:
            try:
                request(*words)
            except Exception:
                errors += 1
            else:
                times.append(clock() - start)
        results.append((times, errors))

    def once(seconds=None):
        results = []
        threads = [threading.Thread(target=loop, args=(words, results)) for words in requests]
        run.begin(seconds)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for times, errors in results:
            run.times += times
            run.errors += errors

    once(WARM_UP_SECONDS)
    print("ready", flush=True)
    sys.stdin.readline()
    once()
    run.end()


async def run_tasks(peer, url, callers, requests, prepare, run):
    request = await task_request(peer, url)
    for words in prepare:
        await request(*words)

    async def loop(words):
        clock = time.perf_counter
        while (start := clock()) < run.until:
            try:
                await request(*words)
            except Exception:
                run.errors += 1
            else:
                run.times.append(clock() - start)

    async def once(seconds=None):
        run.begin(seconds)
        await asyncio.gather(*(loop(words) for words in requests))

    await once(WARM_UP_SECONDS)
    print("ready", flush=True)
    sys.stdin.readline()
    await once()
    run.end()


def probe(peer):
    if peer.startswith("redis-py"):
        import redis
    elif peer.startswith("respool"):
        from respool import _respool
    elif peer == "glide-threads":
        import glide_sync
    else:
        import glide


def main():
    peer, url = sys.argv[1:3]
    if url == "probe":
        return probe(peer)
    callers, verb, size, seconds = int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), float(sys.argv[6])
    value = "v" * size
    requests = [words(caller, verb, value) for caller in range(callers)]
    prepare = [words(caller, "mset", value) for caller in range(callers)] if verb != "large" else [
        words(caller, "set", value) for caller in range(callers)
    ]
    run = Run(seconds)
    if peer.endswith("-tasks"):
        return asyncio.run(run_tasks(peer, url, callers, requests, prepare, run))
    request = blocking_request(peer, url)
    for one in prepare:
        request(*one)
    run_threads(request, callers, requests, run)


main()
