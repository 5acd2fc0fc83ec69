"""Connections and pools of redis-py without sockets: each connection is a session of the client."""

import copy
import errno
import functools
import inspect
import socket
import time

import redis
import redis.connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from respool import _respool
from respool._core import OF_SERVER, OF_TLS, WITHOUT_EFFECT, arguments_of_url, core_of, protocol_of
from respool._errors import FateReply, NotSent, SessionEnded, Unknown, fate_parser, unknown

# Patience with the end of a session whose requests are taken back. The worker answers at once.
END_SECONDS = 1.0


class OutcomeRetry(Retry):
    """A retry of redis-py that repeats nothing that may have been executed.

    Without a retry of the user it only opens a new session in place of one that has ended: respool
    itself sends a request again that was not executed, for as long as its options say.
    """

    def __init__(self, retry=None, errors=()):
        self.is_given = retry is not None or bool(errors)
        if retry is not None:
            super().__init__(copy.deepcopy(retry._backoff), retry._retries, tuple(retry._supported_errors))
        else:
            super().__init__(NoBackoff(), 1)
        if errors:
            self.update_supported_errors(list(errors))

    @classmethod
    def of(cls, kwargs):
        """The retry for the arguments of a connection."""
        retry, errors = kwargs.get("retry"), list(kwargs.get("retry_on_error") or [])
        if kwargs.get("retry_on_timeout"):
            errors.append(redis.TimeoutError)
        return retry if isinstance(retry, cls) and not errors else cls(retry, errors)

    def repeats(self, error):
        """Whether a request with this error may be sent again."""
        return isinstance(error, NotSent if self.is_given else SessionEnded)

    def call_with_retry(self, do, fail, is_retryable=None, with_failure_count=False):
        self._backoff.reset()
        failures = 0
        while True:
            try:
                return do()
            except self._supported_errors as error:
                if is_retryable and not is_retryable(error):
                    raise
                failures += 1
                if with_failure_count:
                    fail(error, failures)
                else:
                    fail(error)
                if not self.repeats(error) or 0 <= self._retries < failures:
                    raise error
                pause = self._backoff.compute(failures)
                if pause > 0:
                    time.sleep(pause)


class StreamSocket:
    """The methods of a socket that redis-py calls."""

    def __init__(self, stream, timeout):
        self.stream = stream
        self.timeout = timeout
        # Whether a read or a write has timed out: then a close takes requests back.
        self.timed_out = False
        # Whether a reply has come behind that, so a request was executed.
        self.replied_late = False
        # Its descriptor is readable while the stream is, for programs that poll it.
        self.ready = None

    def settimeout(self, timeout):
        self.timeout = timeout

    def gettimeout(self):
        return self.timeout

    def sendall(self, data):
        try:
            self.stream.write(data if isinstance(data, bytes) else bytes(data), self.timeout)
        except TimeoutError:
            self.timed_out = True
            raise

    def recv(self, count, flags=0):
        if self.timeout == 0 and not self.stream.is_readable():
            raise BlockingIOError(errno.EWOULDBLOCK, "nothing to read")
        try:
            return self.stream.read(count, self.timeout or None)
        except TimeoutError:
            self.timed_out = True
            raise
        finally:
            if self.ready is not None:
                self._watch()

    def recv_into(self, buffer, count=0, flags=0):
        data = self.recv(count or len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def wait(self, timeout):
        """Whether a read would not block, within the time; None: no limit."""
        try:
            return self.stream.wait_readable(timeout)
        finally:
            # Another wait ends the watch.
            if self.ready is not None:
                self._watch()

    def shutdown(self, how):
        if not self.timed_out:
            return
        self.stream.withdraw()
        end = time.monotonic() + END_SECONDS
        try:
            while time.monotonic() < end and self.stream.read(65536, END_SECONDS):
                self.replied_late = True
        except OSError:
            pass

    def close(self):
        self.stream.close()

    def fileno(self):
        if self.ready is None:
            self.ready = _respool.ReadyStreams()
            self._watch()
        return self.ready.fileno()

    def _watch(self):
        self.ready.take()
        self.stream.watch(self.ready, 0)

    def outcome(self):
        """The exception for requests without a reply, if the session has ended."""
        found = self.stream.outcome(self.timed_out)
        if self.replied_late and isinstance(found, NotSent):
            return unknown("the reply has come too late", self.timed_out)
        return found


@functools.lru_cache(maxsize=None)
def parameters(function):
    """The named parameters of a function of redis-py, which differ between its versions."""
    return frozenset(inspect.signature(function).parameters)


def connection_arguments(init, kwargs):
    """The arguments that a connection of redis-py takes, of those that a user has given."""
    taken = parameters(init)
    server = OF_SERVER | WITHOUT_EFFECT | {"respool_core", "respool_options", "respool_url"}
    arguments = {}
    for name, value in kwargs.items():
        if name in server or name.startswith("ssl"):
            continue
        if name not in taken:
            raise TypeError(f"respool has no argument {name!r}")
        arguments[name] = value
    return arguments


def wants(kwargs, name):
    """Whether a version of redis-py has this argument of a connection."""
    return name in parameters(redis.connection.AbstractConnection.__init__)


def parser_for(kwargs, default, of_resp2, of_resp3):
    """The class of the parser. Those of redis-py in Python are for one protocol."""
    parser = kwargs.get("parser_class") or default
    if parser is of_resp2 and protocol_of(kwargs) == 3:
        parser = of_resp3
    elif parser is of_resp3 and protocol_of(kwargs) == 2:
        parser = of_resp2
    return fate_parser(parser)


def without_maintenance(kwargs):
    """Turns off notices of a server's maintenance: they are about a socket, and respool has its own links."""
    config = kwargs.get("maint_notifications_config")
    if config is not None and config.enabled is True:
        raise redis.RedisError("maint_notifications_config: respool does not take notices of maintenance")
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:
        kwargs.pop("maint_notifications_config", None)
        return
    kwargs["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)


def host_error(kwargs):
    if kwargs.get("respool_url"):
        return kwargs["respool_url"].rpartition("@")[2].rpartition("://")[2]
    path = kwargs.get("path") or kwargs.get("unix_socket_path")
    return str(path or f"{kwargs.get('host') or 'localhost'}:{kwargs.get('port') or 6379}")


class SessionState:
    """The facts that connections of both kinds keep about their requests."""

    # Requests of the last write, and whether they are a transaction.
    batch = 1
    is_transaction = False
    # Whether errors that tell an outcome are left to a pipeline.
    keeps_fates = False
    # The last session, also if it has ended.
    _last_sock = None

    def _begin_batch(self, commands):
        self.batch = len(commands)
        first = commands[0][0] if commands and commands[0] else ""
        self.is_transaction = first in ("MULTI", b"MULTI")

    def _is_one_of_many(self):
        return self.batch > 1 and not self.is_transaction

    def _end_of(self, sock, error):
        """The exception for requests whose session has ended, in place of redis-py's own."""
        # A subclass is an error of the server, such as that of one that loads its data.
        is_ending = type(error) in (redis.ConnectionError, redis.TimeoutError)
        found = sock.outcome() if sock is not None and is_ending else None
        if found is None:
            return error
        if isinstance(found, NotSent) and not isinstance(error, redis.TimeoutError):
            found = SessionEnded(*found.args)
        if isinstance(found, NotSent) and self._is_one_of_many():
            found = Unknown(f"{found}; other commands of the pipeline may have been executed")
        return found


class Connection(SessionState, redis.connection.AbstractConnection):
    """A connection of redis-py that is a session of the client."""

    def __init__(self, **kwargs):
        core = kwargs.get("respool_core")
        self._core = core or core_of(kwargs)
        self._where = host_error(kwargs)
        self._host = kwargs.get("host") or "localhost"
        self.port = int(kwargs.get("port") or 6379)
        if wants(kwargs, "maint_notifications_config"):
            without_maintenance(kwargs)
        arguments = connection_arguments(redis.connection.AbstractConnection.__init__, kwargs)
        parsers = redis.connection
        arguments["parser_class"] = parser_for(
            kwargs, parsers.DefaultParser, parsers._RESP2Parser, parsers._RESP3Parser
        )
        for name in ("retry_on_timeout", "retry_on_error"):
            arguments.pop(name, None)
        super().__init__(**arguments)
        self.retry = OutcomeRetry.of(kwargs)

    def repr_pieces(self):
        pieces = [("server", self._where), ("db", self.db)]
        if self.client_name:
            pieces.append(("client_name", self.client_name))
        return pieces

    @property
    def host(self):
        return self._host

    @host.setter
    def host(self, value):
        self._host = value

    def _connect(self):
        # redis-py forgets a socket that fails, which knows the outcome of its requests.
        self._last_sock = StreamSocket(_respool.Stream(self._core.native), self.socket_timeout)
        return self._last_sock

    def _host_error(self):
        return self._where

    def pack_commands(self, commands):
        commands = list(commands)
        self._begin_batch(commands)
        return super().pack_commands(commands)

    def send_command(self, *args, **kwargs):
        self.batch = 1
        super().send_command(*args, **kwargs)

    def send_packed_command(self, command, check_health=True):
        try:
            super().send_packed_command(command, check_health)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if isinstance(error, (NotSent, Unknown)):
                raise
            raise self._end_of(self._last_sock, error) from None

    def can_read(self, timeout=0):
        sock = self._sock
        if sock is None:
            self.connect()
            sock = self._sock
        # `timeout` bytes that the parser has read already.
        reader, buffer = getattr(self._parser, "_reader", None), getattr(self._parser, "_buffer", None)
        if reader is not None and hasattr(reader, "has_data") and reader.has_data():
            return True
        if hasattr(buffer, "unread_bytes") and buffer.unread_bytes():
            return True
        try:
            if not sock.wait(timeout):
                return False
        except OSError as error:
            # A read sends nothing, so another session may take its place: in the child of a fork.
            self.disconnect()
            raise SessionEnded(str(error)) from None
        if reader is None:
            # The parsers in Python read the bytes that have come, and find the end so.
            try:
                return self._parser.can_read(0)
            except (redis.ConnectionError, OSError) as error:
                raise self._closed(sock, error) from None
        if sock.outcome() is not None and not self._has_bytes(sock):
            raise self._closed(sock, redis.ConnectionError("Connection closed by server."))
        return True

    def _has_bytes(self, sock):
        """Moves bytes of an ended session into the parser. Returns whether there were any."""
        data = sock.recv(65536)
        if data:
            self._parser._reader.feed(data)
        return bool(data)

    def _closed(self, sock, error):
        error = self._end_of(sock, redis.ConnectionError(*error.args))
        self.disconnect()
        return error

    def read_response(self, *args, **kwargs):
        sock = self._sock
        try:
            return super().read_response(*args, **kwargs)
        except FateReply as reply:
            if self.keeps_fates:
                raise
            raise reply.outcome(self._is_one_of_many()) from None
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise self._end_of(sock, error) from None


FOR_SENTINELS = "for Sentinels give from_url the URL redis-sentinel://HOST:PORT/NAME"


def check_class(given, base, name):
    """Refuses a class of connections that is not respool's."""
    if not (isinstance(given, type) and issubclass(given, base)):
        raise TypeError(f"connection_class: it has to be a subclass of {name}; {FOR_SENTINELS}")


def check_pool(pool, base, name, kwargs):
    """Refuses a pool that is not respool's, and arguments that belong to the pool."""
    if not isinstance(pool, base):
        raise TypeError(f"connection_pool: it has to be a {name}; {FOR_SENTINELS}")
    if kwargs.get("respool_options") or kwargs.get("respool_url"):
        raise TypeError("respool_options: give them to the pool")


class PoolArguments:
    """The treatment of arguments in pools of both kinds."""

    def _take_arguments(self, kwargs):
        """Opens the client, and returns the arguments for the connections."""
        kwargs = {name: value for name, value in kwargs.items() if value is not None or name == "socket_timeout"}
        without_maintenance(kwargs)
        self.core = kwargs.get("respool_core") or core_of(kwargs)
        kwargs["respool_core"] = self.core
        self.retry_of_calls = OutcomeRetry.of(kwargs)
        return kwargs

    # redis-py leaves these out of its text of a pool.
    OMIT_REPR_KEYS = frozenset({"himport_registry", "respool_core"})

    @property
    def client_of_calls(self):
        """The client, which this pool uses from now on."""
        self.core.use(self)
        return self.core.native


class ConnectionPool(PoolArguments, redis.ConnectionPool):
    """A pool whose connections are sessions of one client.

    `redis.Redis(connection_pool=respool.ConnectionPool.from_url(url))` works. `respool.Redis` needs
    no connection for most commands, and is faster.
    """

    @classmethod
    def from_url(cls, url, **kwargs):
        return cls(**arguments_of_url(url, kwargs))

    def __init__(self, connection_class=Connection, max_connections=None, **kwargs):
        check_class(connection_class, Connection, "respool.Connection")
        kwargs = self._take_arguments(kwargs)
        # Wrong arguments are errors here, and not of the first connection.
        arguments = {name: value for name, value in kwargs.items() if name not in OF_POOL}
        connection_arguments(redis.connection.AbstractConnection.__init__, arguments)
        super().__init__(connection_class=connection_class, max_connections=max_connections, **kwargs)
        self.core.use(self)

    def get_connection(self, *args, **kwargs):
        self.core.use(self)
        return super().get_connection(*args, **kwargs)

    def set_retry(self, retry):
        self.retry_of_calls = OutcomeRetry(retry)
        super().set_retry(self.retry_of_calls)

    def disconnect(self, inuse_connections=True):
        super().disconnect(inuse_connections)
        if inuse_connections:
            self.core.leave(self)


# Arguments that a pool takes and its connections do not.
OF_POOL = {"cache", "cache_config", "cache_factory", "max_connections"}
