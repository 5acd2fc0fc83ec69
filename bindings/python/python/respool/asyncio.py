"""`redis.asyncio` over few connections: see `respool`."""

import respool

if respool.IS_NATIVE:
    from respool._aio import Connection, ConnectionPool, Redis
else:
    from respool._fallback import AsyncConnection as Connection
    from respool._fallback import AsyncConnectionPool as ConnectionPool
    from respool._fallback import AsyncRedis as Redis

from respool import NotSent, Unknown

StrictRedis = Redis


def from_url(url, **kwargs):
    """As `redis.asyncio.from_url`."""
    return Redis.from_url(url, **kwargs)


__all__ = ["Connection", "ConnectionPool", "NotSent", "Redis", "StrictRedis", "Unknown", "from_url"]
