"""A pytest plugin for redis-py's tests: its clients and pools are those of the package respool.

The suite makes most clients with a connection of their own. Here they share a pool, so that
commands take the way without a connection.
"""

import sys

import pytest
import redis
import redis.asyncio

import respool
import respool.asyncio


def pool_like(base, own):
    """A pool of respool that takes the connection classes of redis-py for its own."""

    class Pool(base):
        def __init__(self, connection_class=None, **kwargs):
            of_redis_py = connection_class is None or connection_class.__module__.startswith("redis.")
            super().__init__(connection_class=own if of_redis_py else connection_class, **kwargs)

    Pool.__name__ = Pool.__qualname__ = "ConnectionPool"
    return Pool


redis.Redis = redis.client.Redis = redis.StrictRedis = respool.Redis
redis.ConnectionPool = pool_like(respool.ConnectionPool, respool.Connection)
redis.from_url = respool.from_url
redis.asyncio.Redis = redis.asyncio.client.Redis = redis.asyncio.StrictRedis = respool.asyncio.Redis
redis.asyncio.ConnectionPool = pool_like(respool.asyncio.ConnectionPool, respool.asyncio.Connection)
redis.asyncio.from_url = respool.asyncio.from_url


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    conftest = sys.modules["tests.conftest"]
    single_connection_client, *rest = conftest._get_client.__defaults__
    assert single_connection_client is True
    conftest._get_client.__defaults__ = (False, *rest)
