from collections.abc import Mapping
from typing import Any

import redis.asyncio
import redis.asyncio.connection

from respool import NotSent as NotSent
from respool import Unknown as Unknown

class Connection(redis.asyncio.connection.AbstractConnection):
    """A connection of `redis.asyncio` that is a session of the client."""

    def __init__(self, *, respool_options: Mapping[str, Any] | None = None, **kwargs: Any) -> None: ...
    def repr_pieces(self) -> list[tuple[str, Any]]: ...
    async def _connect(self) -> None: ...
    def _host_error(self) -> str: ...

class ConnectionPool(redis.asyncio.ConnectionPool):
    """A pool whose connections are sessions of one client."""

    def __init__(
        self,
        connection_class: type[Connection] = ...,
        max_connections: int | None = None,
        *,
        respool_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None: ...

class Redis(redis.asyncio.Redis):
    """A `redis.asyncio.Redis` whose commands share few connections with all tasks of the process."""

    def __init__(
        self, *args: Any, respool_options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None: ...
    @classmethod
    def from_url(
        cls,
        url: str,
        single_connection_client: bool = False,
        auto_close_connection_pool: bool | None = None,
        *,
        respool_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Redis: ...

StrictRedis = Redis

def from_url(url: str, *, respool_options: Mapping[str, Any] | None = None, **kwargs: Any) -> Redis: ...
