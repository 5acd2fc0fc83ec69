"""The ordinary classes of redis-py, where there is no native half: on other systems than Linux."""

import warnings

import redis
import redis.asyncio
import redis.connection

from respool._errors import NotSent, Unknown  # noqa: F401


def tell(missing):
    """Warns once that the ordinary client is used."""
    warnings.warn(
        f"respool has no native library here ({missing}): respool.Redis is the ordinary client of redis-py",
        RuntimeWarning,
        stacklevel=3,
    )


def without_options(base):
    """A class of redis-py that takes the arguments of respool, which have no effect."""

    class Plain(base):
        def __init__(self, *args, **kwargs):
            kwargs.pop("respool_options", None)
            super().__init__(*args, **kwargs)

        @classmethod
        def from_url(cls, url, **kwargs):
            kwargs.pop("respool_options", None)
            return super().from_url(url, **kwargs)

    Plain.__name__ = Plain.__qualname__ = base.__name__
    Plain.__module__ = "respool"
    return Plain


Redis = without_options(redis.Redis)
ConnectionPool = without_options(redis.ConnectionPool)
Connection = redis.connection.Connection
AsyncRedis = without_options(redis.asyncio.Redis)
AsyncConnectionPool = without_options(redis.asyncio.ConnectionPool)
AsyncConnection = redis.asyncio.Connection
