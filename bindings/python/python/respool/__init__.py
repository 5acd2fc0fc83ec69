"""redis-py over few connections.

The requests of all threads and tasks of a process share large batches on few connections.

    import respool
    r = respool.Redis.from_url("redis://127.0.0.1:6379")    # a redis.Redis
    r.set("key", "value")

`respool.asyncio.Redis` is a `redis.asyncio.Redis`. `NotSent` and `Unknown` tell whether a request
that failed may have been executed; both are `redis.ConnectionError`.
"""

try:
    from respool import _respool  # noqa: F401
except ImportError as _missing:
    from respool._fallback import Connection, ConnectionPool, NotSent, Redis, Unknown, tell

    tell(_missing)
    IS_NATIVE = False
else:
    from respool._client import Redis
    from respool._connection import Connection, ConnectionPool
    from respool._errors import NotSent, Unknown

    IS_NATIVE = True

StrictRedis = Redis


def from_url(url, **kwargs):
    """As `redis.from_url`."""
    return Redis.from_url(url, **kwargs)


__all__ = ["IS_NATIVE", "Connection", "ConnectionPool", "NotSent", "Redis", "StrictRedis", "Unknown", "from_url"]
