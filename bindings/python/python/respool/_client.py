"""`respool.Redis`: a `redis.Redis` whose commands share few connections."""

import functools
import inspect

import redis
import redis.client
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from respool import _respool
from respool._connection import ConnectionPool, check_pool
from respool._errors import FateReply

PLAIN_INIT = redis.Redis.__init__
# After these commands a connection is in another state, which the user means for the commands that
# follow. So these take a connection of the pool, too, as all commands of redis-py do.
LASTING = {
    "SELECT",
    "AUTH",
    "HELLO",
    "MULTI",
    "WATCH",
    "READONLY",
    "READWRITE",
    "CLIENT TRACKING",
    "CLIENT REPLY",
    "CLIENT CACHING",
    "CLIENT NO-TOUCH",
    "CLIENT IMPORT-SOURCE",
}


def words_of(args):
    """The first two words of a command, in upper case: its name, and perhaps its subcommand."""
    words = []
    for arg in args[:2]:
        text = arg.decode(errors="replace") if isinstance(arg, bytes) else str(arg)
        words += text.upper().split()
    return "".join(words[:1]), " ".join(words[:2])


def lasts(args):
    """Whether a command changes its connection for those that follow."""
    name, both = words_of(args)
    return name in LASTING or both in LASTING


class CallState:
    """The state of calls in clients of both kinds."""

    def _prepare_calls(self):
        kwargs = self.connection_pool.connection_kwargs
        encoder = self.connection_pool.get_encoder()
        self._codec = _respool.Codec(
            encoder.encode, encoder.encoding, encoder.encoding_errors, bool(encoder.decode_responses)
        )
        self._limit = kwargs.get("socket_timeout", default_of("socket_timeout"))
        retry = self.connection_pool.retry_of_calls
        self._call_retry = retry if retry.is_given else None
        # These work on a connection.
        self._takes_connections = bool(
            getattr(self.connection_pool, "cache", None) is not None or kwargs.get("redis_connect_func")
        )


@functools.lru_cache(maxsize=None)
def default_of(name):
    """The default of an argument of redis-py, which differs between its versions."""
    parameter = inspect.signature(PLAIN_INIT).parameters.get(name)
    return None if parameter is None else parameter.default


@functools.lru_cache(maxsize=None)
def names_of(init):
    """The arguments of a method in their order."""
    return list(inspect.signature(init).parameters)[1:]


def pool_arguments(init, args, kwargs):
    """Divides the arguments of a client, as `init` takes them: those of its pool, and those of redis-py's own class."""
    names = names_of(init)
    if len(args) > len(names):
        raise TypeError(f"respool.Redis takes at most {len(names)} positional arguments")
    kwargs = {**dict(zip(names, args)), **kwargs}
    of_client = {}
    for name in ("single_connection_client", "event_dispatcher"):
        if name in kwargs:
            of_client[name] = kwargs[name]
    kwargs.pop("single_connection_client", None)
    kwargs.pop("auto_close_connection_pool", None)
    for name in kwargs:
        if name not in names and name not in ("respool_options", "respool_url"):
            raise TypeError(f"respool.Redis got an unexpected keyword argument {name!r}")
    return kwargs, of_client


def with_server(kwargs):
    """The arguments with the server that redis-py takes by default. Programs look for it there."""
    if kwargs.get("respool_url") or kwargs.get("unix_socket_path"):
        return kwargs
    return {"host": "localhost", "port": 6379, "db": 0, **kwargs}


class Redis(CallState, redis.Redis):
    """A `redis.Redis` whose commands share few connections with all threads of the process.

    It takes the arguments of `redis.Redis`, and `respool_options`: options of respool by their
    names, such as `{"request-timeout-ms": "2s"}`.
    """

    @classmethod
    def from_url(cls, url, **kwargs):
        """As `redis.Redis.from_url`. URLs of respool (`redis-cluster://`, ...) work, too."""
        single = kwargs.pop("single_connection_client", False)
        client = cls(connection_pool=ConnectionPool.from_url(url, **kwargs), single_connection_client=single)
        client.auto_close_connection_pool = True
        return client

    def __init__(self, *args, **kwargs):
        kwargs, of_client = pool_arguments(PLAIN_INIT, args, kwargs)
        pool = kwargs.pop("connection_pool", None)
        owns = pool is None
        if owns:
            pool = ConnectionPool(**with_server(kwargs))
        else:
            check_pool(pool, ConnectionPool, "respool.ConnectionPool", kwargs)
        super().__init__(connection_pool=pool, **of_client)
        self.auto_close_connection_pool = owns
        self._prepare_calls()
        if self._takes_connections or self.connection is not None:
            # `single_connection_client`, among others: each command takes a connection.
            self._call = None
        else:
            self._call = pool.client_of_calls.call

    def execute_command(self, *args, **options):
        call = self._call
        if call is None:
            return self._execute_command(*args, **options)
        if options:
            return self._call_with(args, options)
        if self._call_retry is not None:
            reply = self._call_again(args, False)
        else:
            reply = call(args, self._codec, self._limit, False)
        if reply is NotImplemented:
            return self._by_connection(args, options)
        name = args[0]
        if name in self.response_callbacks:
            return self.response_callbacks[name](reply)
        return reply

    def _call_with(self, args, options):
        """A command with options of redis-py for its reply."""
        try:
            reply = self._call_again(args, NEVER_DECODE in options)
        except redis.ResponseError:
            if EMPTY_RESPONSE in options:
                return options[EMPTY_RESPONSE]
            raise
        if reply is NotImplemented:
            return self._by_connection(args, options)
        for name in (NEVER_DECODE, EMPTY_RESPONSE, "keys"):
            options.pop(name, None)
        name = args[0]
        if name in self.response_callbacks:
            return self.response_callbacks[name](reply, **options)
        return reply

    def _call_again(self, args, raw):
        """A call, and the retry of the user if there is one."""
        if self._call_retry is None:
            return self._call(args, self._codec, self._limit, raw)
        return self._call_retry.call_with_retry(
            lambda: self._call(args, self._codec, self._limit, raw), lambda error: None
        )

    def _by_connection(self, args, options):
        """Runs a command that reads or changes its connection, as redis-py does."""
        if lasts(args):
            self._call = None
        return self._execute_command(*args, **options)

    def _execute_command(self, *args, **options):
        execute = getattr(super(), "_execute_command", None)
        # redis-py before 5.3 has one method.
        return execute(*args, **options) if execute else super().execute_command(*args, **options)

    def set_retry(self, retry):
        super().set_retry(retry)
        self._call_retry = self.connection_pool.retry_of_calls

    def pipeline(self, transaction=True, shard_hint=None):
        return Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class PipelineState:
    """How pipelines of both kinds tell the outcome of their commands."""

    def raise_first_error(self, commands, response):
        for at, reply in enumerate(response):
            if isinstance(reply, redis.ResponseError):
                self.annotate_exception(reply, at + 1, commands[at][0])
                if isinstance(reply, FateReply):
                    fates = [isinstance(one, FateReply) and one.is_not_sent for one in response]
                    raise reply.outcome(is_one_of_many=not all(fates))
                raise reply

    @staticmethod
    def _outcomes(replies):
        return [reply.outcome() if isinstance(reply, FateReply) else reply for reply in replies]


class Pipeline(PipelineState, redis.client.Pipeline):
    """A pipeline of redis-py that tells which of its commands may have been executed."""

    def _execute_transaction(self, connection, commands, raise_on_error):
        return self._run(super()._execute_transaction, connection, commands, raise_on_error)

    def _execute_pipeline(self, connection, commands, raise_on_error):
        return self._run(super()._execute_pipeline, connection, commands, raise_on_error)

    def _run(self, execute, connection, commands, raise_on_error):
        inner = getattr(connection, "_conn", connection)
        inner.keeps_fates = True
        try:
            return self._outcomes(execute(connection, commands, raise_on_error))
        except FateReply as reply:
            raise reply.outcome() from None
        finally:
            inner.keeps_fates = False
