"""`redis.asyncio` over few connections: the native half of `respool.asyncio`."""

import asyncio
import inspect
import time
import weakref

import redis
import redis.asyncio
import redis.asyncio.client
import redis.asyncio.connection
from redis.asyncio.retry import Retry
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from respool import _respool
from respool._client import CallState, PipelineState, lasts, pool_arguments, with_server
from respool._connection import (
    END_SECONDS,
    OF_POOL,
    PoolArguments,
    OutcomeRetry,
    SessionState,
    check_class,
    check_pool,
    connection_arguments,
    host_error,
    parameters,
    parser_for,
    without_maintenance,
)
from respool._core import arguments_of_url, core_of
from respool._errors import FateReply, NotSent, Unknown, unknown

PLAIN_INIT = redis.asyncio.Redis.__init__
PLAIN_POOL_INIT = redis.asyncio.ConnectionPool.__init__
# The most bytes that a writer hands over without another thread.
WRITE_BYTES_MAX = 64 << 10
READ_BYTES_MAX = 64 << 10


class AsyncOutcomeRetry(OutcomeRetry, Retry):
    """As `OutcomeRetry`, for tasks."""

    async def call_with_retry(self, do, fail, is_retryable=None, with_failure_count=False):
        self._backoff.reset()
        failures = 0
        while True:
            try:
                return await do()
            except self._supported_errors as error:
                if is_retryable and not is_retryable(error):
                    raise
                failures += 1
                failed = fail(error, failures) if with_failure_count else fail(error)
                if inspect.isawaitable(failed):
                    await failed
                if not self.repeats(error) or 0 <= self._retries < failures:
                    raise error
                pause = self._backoff.compute(failures)
                if pause > 0:
                    await asyncio.sleep(pause)


class LoopEntry:
    """The calls and the streams of one event loop."""

    def __init__(self, core, loop):
        loop_of = weakref.ref(loop)
        calls_of = None

        def arm(seconds):
            loop, calls = loop_of(), calls_of()
            if loop is not None and calls is not None:
                loop.call_later(seconds, calls.expire)

        self.loop_of = loop_of
        self.calls = _respool.LoopCalls(core.native, arm)
        calls_of = weakref.ref(self.calls)
        self.ready = _respool.ReadyStreams()
        # The connections keep their streams alive. Connections in a pool of redis-py keep their
        # event loop alive, too.
        self.streams = weakref.WeakValueDictionary()
        self.next_number = 0
        loop.add_reader(self.calls.fileno(), self.calls.drain)
        loop.add_reader(self.ready.fileno(), self._take_ready)

    def add_stream(self, stream):
        self.next_number += 1
        self.streams[self.next_number] = stream
        return self.next_number

    def _take_ready(self):
        for number in self.ready.take():
            stream = self.streams.get(number)
            if stream is not None:
                stream.pump()

    def close(self):
        loop = self.loop_of()
        if loop is None or loop.is_closed() or len(self.calls) or self.streams:
            # The event loop keeps its readers until it ends.
            return
        try:
            loop.remove_reader(self.calls.fileno())
            loop.remove_reader(self.ready.fileno())
        except (OSError, RuntimeError, ValueError):
            pass


def entry_of(core, loop):
    """The part of a client that belongs to one event loop."""
    entry = core.loops.get(loop)
    if entry is None:
        entry = core.loops[loop] = LoopEntry(core, loop)
    return entry


class StreamTransport:
    """Feeds a `StreamReader` from a session, as a transport does."""

    def __init__(self, core):
        self.entry = entry_of(core, asyncio.get_running_loop())
        self.stream = _respool.Stream(core.native)
        self.reader = asyncio.StreamReader()
        self.reader.set_transport(self)
        self.number = self.entry.add_stream(self)
        self.is_paused = False
        # While requests are written, replies are kept: otherwise neither side would go on.
        self.is_writing = False
        self.has_ended = False
        self.unwritten = []
        self.pump()

    def pump(self):
        """Moves the bytes that are there to the reader."""
        while not self.has_ended and (self.is_writing or not self.is_paused):
            data = self.stream.poll_read(READ_BYTES_MAX, self.entry.ready, self.number)
            if data is None:
                return
            if data:
                self.reader.feed_data(data)
            else:
                self._end()
                self.reader.feed_eof()

    def _end(self):
        self.has_ended = True
        self.entry.streams.pop(self.number, None)

    # --- the methods that a StreamReader calls on its transport ---

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False
        loop = self.entry.loop_of()
        if loop is not None:
            loop.call_soon(self.pump)

    # --- the methods that redis-py calls on its writer ---

    def write(self, data):
        self.unwritten.append(bytes(data))

    def writelines(self, lines):
        self.unwritten += [bytes(line) for line in lines]

    async def drain(self):
        data = b"".join(self.unwritten)
        self.unwritten = []
        written = self.stream.try_write(data[:WRITE_BYTES_MAX])
        if written < len(data):
            self.is_writing = True
            try:
                await self._write_rest(memoryview(data)[written:])
            finally:
                self.is_writing = False

    async def _write_rest(self, rest):
        """Writes the bytes that find no room now. The loop goes on meanwhile."""
        pause = 0.0
        while rest:
            self.pump()
            written = self.stream.try_write(bytes(rest[:WRITE_BYTES_MAX]))
            rest = rest[written:]
            # The worker takes the bytes within its turn; then there is room again.
            pause = 0.0 if written else min(pause + 0.0005, 0.005)
            await asyncio.sleep(pause)

    def close(self):
        if not self.has_ended:
            self._end()
            self.reader.feed_eof()
        self.stream.close()

    def is_closing(self):
        return self.has_ended

    async def wait_closed(self):
        pass

    def get_extra_info(self, name, default=None):
        return default

    async def take_back(self):
        """Takes requests back that have not left. Returns the exception that tells their fate."""
        # A reply that no reader has taken yet: its request was executed.
        replied_late = bool(self.reader._buffer)
        self.stream.withdraw()
        end = time.monotonic() + END_SECONDS
        while self.stream.outcome(True) is None and time.monotonic() < end:
            await asyncio.sleep(0.0005)
        return unknown("the reply has come too late", True) if replied_late else self.stream.outcome(True)


class Connection(SessionState, redis.asyncio.connection.AbstractConnection):
    """A connection of `redis.asyncio` that is a session of the client."""

    def __init__(self, **kwargs):
        self._core = kwargs.get("respool_core") or core_of(kwargs)
        self._where = host_error(kwargs)
        self.host = kwargs.get("host") or "localhost"
        self.port = int(kwargs.get("port") or 6379)
        base = redis.asyncio.connection
        if "maint_notifications_config" in parameters(base.AbstractConnection.__init__):
            without_maintenance(kwargs)
        else:
            kwargs.pop("maint_notifications_config", None)
        arguments = connection_arguments(base.AbstractConnection.__init__, kwargs)
        arguments["parser_class"] = parser_for(kwargs, base.DefaultParser, base._AsyncRESP2Parser, base._AsyncRESP3Parser)
        for name in ("retry_on_timeout", "retry_on_error"):
            arguments.pop(name, None)
        super().__init__(**arguments)
        self.retry = AsyncOutcomeRetry.of(kwargs)

    def repr_pieces(self):
        pieces = [("server", self._where), ("db", self.db)]
        if self.client_name:
            pieces.append(("client_name", self.client_name))
        return pieces

    def __del__(self, *_):
        # No descriptor is left open, so there is nothing to warn of.
        writer, self._writer, self._reader = getattr(self, "_writer", None), None, None
        if writer is not None:
            writer.stream.close()

    async def _connect(self):
        transport = StreamTransport(self._core)
        self._reader, self._writer = transport.reader, transport

    def _host_error(self):
        return self._where

    def pack_commands(self, commands):
        commands = list(commands)
        self._begin_batch(commands)
        return super().pack_commands(commands)

    async def send_command(self, *args, **kwargs):
        self.batch = 1
        await super().send_command(*args, **kwargs)

    async def send_packed_command(self, command, check_health=True):
        writer = self._writer
        try:
            await super().send_packed_command(command, check_health)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if isinstance(error, (NotSent, Unknown)):
                raise
            raise self._end_of(Outcome(writer or self._writer, None), error) from None

    async def read_response(self, *args, **kwargs):
        writer = self._writer
        try:
            return await super().read_response(*args, **kwargs)
        except FateReply as reply:
            if self.keeps_fates:
                raise
            raise reply.outcome(self._is_one_of_many()) from None
        except redis.TimeoutError as error:
            raise self._end_of(Outcome(writer, self._taken_back), error) from None
        except redis.ConnectionError as error:
            raise self._end_of(Outcome(writer, None), error) from None

    # The outcome of the requests of the last session whose read timed out.
    _taken_back = None

    async def disconnect(self, nowait=False, **kwargs):
        writer = self._writer
        if nowait and writer is not None and not writer.has_ended and asyncio.current_task() is not None:
            # A read that failed: its time has passed, or its task was cancelled.
            self._parser.on_disconnect()
            self._reader = self._writer = None
            writer.stream.withdraw()
            try:
                self._taken_back = await asyncio.shield(writer.take_back())
            finally:
                writer.close()
        await super().disconnect(nowait=nowait, **kwargs)


class Outcome:
    """The methods of a socket that `SessionState` calls."""

    def __init__(self, writer, known):
        self.writer, self.known = writer, known

    def outcome(self):
        if self.known is not None or self.writer is None:
            return self.known
        return self.writer.stream.outcome(False)


class ConnectionPool(PoolArguments, redis.asyncio.ConnectionPool):
    """A pool whose connections are sessions of one client."""

    @classmethod
    def from_url(cls, url, **kwargs):
        return cls(**arguments_of_url(url, kwargs))

    def __init__(self, connection_class=Connection, max_connections=None, **kwargs):
        check_class(connection_class, Connection, "respool.asyncio.Connection")
        kwargs = self._take_arguments(kwargs)
        if "maint_notifications_config" not in parameters(PLAIN_POOL_INIT):
            kwargs.pop("maint_notifications_config", None)
        self.retry_of_calls = AsyncOutcomeRetry.of(kwargs)
        arguments = {name: value for name, value in kwargs.items() if name not in OF_POOL}
        arguments.pop("maint_notifications_config", None)
        connection_arguments(redis.asyncio.connection.AbstractConnection.__init__, arguments)
        super().__init__(connection_class=connection_class, max_connections=max_connections, **kwargs)
        self.core.use(self)

    async def get_connection(self, *args, **kwargs):
        self.core.use(self)
        return await super().get_connection(*args, **kwargs)

    def set_retry(self, retry):
        self.retry_of_calls = AsyncOutcomeRetry(retry)
        super().set_retry(self.retry_of_calls)

    async def disconnect(self, inuse_connections=True):
        await super().disconnect(inuse_connections)
        if inuse_connections:
            self.core.leave(self)


class Redis(CallState, redis.asyncio.Redis):
    """A `redis.asyncio.Redis` whose commands share few connections with all tasks of the process.

    It takes the arguments of `redis.asyncio.Redis`, and `respool_options`: see `respool.Redis`.
    """

    @classmethod
    def from_url(cls, url, single_connection_client=False, auto_close_connection_pool=None, **kwargs):
        pool = ConnectionPool.from_url(url, **kwargs)
        client = cls(connection_pool=pool, single_connection_client=single_connection_client)
        client.auto_close_connection_pool = auto_close_connection_pool is not False
        return client

    def __init__(self, *args, **kwargs):
        owns = kwargs.get("auto_close_connection_pool") is not False
        kwargs, of_client = pool_arguments(PLAIN_INIT, args, kwargs)
        pool = kwargs.pop("connection_pool", None)
        if pool is None:
            pool = ConnectionPool(**with_server(kwargs))
        else:
            check_pool(pool, ConnectionPool, "respool.asyncio.ConnectionPool", kwargs)
            owns = False
        super().__init__(connection_pool=pool, **of_client)
        self.auto_close_connection_pool = owns
        self._prepare_calls()
        self._core = pool.core
        if of_client.get("single_connection_client"):
            self._takes_connections = True

    async def execute_command(self, *args, **options):
        if self._takes_connections:
            return await super().execute_command(*args, **options)
        raw = NEVER_DECODE in options
        try:
            if self._call_retry is None:
                reply = await self._ask(args, raw)
            else:
                reply = await self._call_retry.call_with_retry(lambda: self._ask(args, raw), lambda error: None)
        except redis.ResponseError:
            if EMPTY_RESPONSE in options:
                return options[EMPTY_RESPONSE]
            raise
        if reply is NotImplemented:
            if lasts(args):
                self._takes_connections = True
            return await super().execute_command(*args, **options)
        name = args[0]
        if options:
            for unwanted in (NEVER_DECODE, EMPTY_RESPONSE, "keys"):
                options.pop(unwanted, None)
        if name in self.response_callbacks:
            reply = self.response_callbacks[name](reply, **options)
            return await reply if inspect.isawaitable(reply) else reply
        return reply

    async def _ask(self, args, raw):
        loop = asyncio.get_running_loop()
        core = self._core
        loop_of, calls = core.last
        if loop_of() is not loop:
            core.use(self.connection_pool)
            calls = entry_of(core, loop).calls
            # One value: another thread may have another loop.
            core.last = (weakref.ref(loop), calls)
        future = loop.create_future()
        token = calls.ask(future, args, self._codec, self._limit, raw)
        if token is None:
            return NotImplemented
        try:
            return await future
        except asyncio.CancelledError:
            calls.withdraw(token)
            raise

    def set_retry(self, retry):
        super().set_retry(retry)
        self._call_retry = self.connection_pool.retry_of_calls

    def pipeline(self, transaction=True, shard_hint=None):
        return Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class Pipeline(PipelineState, redis.asyncio.client.Pipeline):
    """A pipeline of redis-py that tells which of its commands may have been executed."""

    async def _execute_transaction(self, connection, commands, raise_on_error):
        return await self._run(super()._execute_transaction, connection, commands, raise_on_error)

    async def _execute_pipeline(self, connection, commands, raise_on_error):
        return await self._run(super()._execute_pipeline, connection, commands, raise_on_error)

    async def _run(self, execute, connection, commands, raise_on_error):
        connection.keeps_fates = True
        try:
            return self._outcomes(await execute(connection, commands, raise_on_error))
        except FateReply as reply:
            raise reply.outcome() from None
        finally:
            connection.keeps_fates = False
