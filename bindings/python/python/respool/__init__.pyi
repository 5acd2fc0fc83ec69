from collections.abc import Mapping
from typing import Any

import redis
import redis.connection

IS_NATIVE: bool

class NotSent(redis.ConnectionError):
    """The request was surely not executed. It may be sent again."""

class Unknown(redis.ConnectionError):
    """The request was sent and may have been executed. No reply has come."""

class Connection(redis.connection.AbstractConnection):
    """A connection of redis-py that is a session of the client."""

    def __init__(self, *, respool_options: Mapping[str, Any] | None = None, **kwargs: Any) -> None: ...
    def repr_pieces(self) -> list[tuple[str, Any]]: ...
    def _connect(self) -> Any: ...
    def _host_error(self) -> str: ...
    @property
    def host(self) -> str: ...
    @host.setter
    def host(self, value: str) -> None: ...

class ConnectionPool(redis.ConnectionPool):
    """A pool whose connections are sessions of one client."""

    def __init__(
        self,
        connection_class: type[Connection] = ...,
        max_connections: int | None = None,
        *,
        respool_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None: ...

class Redis(redis.Redis):
    """A `redis.Redis` whose commands share few connections with all threads of the process."""

    def __init__(
        self, *args: Any, respool_options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None: ...
    @classmethod
    def from_url(
        cls, url: str, *, respool_options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Redis: ...

StrictRedis = Redis

def from_url(url: str, *, respool_options: Mapping[str, Any] | None = None, **kwargs: Any) -> Redis: ...
