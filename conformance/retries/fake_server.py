"""A server that answers chosen requests with an error or by closing, and records each attempt."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

VERSION = "7.2.4"
NODE_ID = "a" * 40


@dataclass
class Plan:
    """The answer to each request that names one key, and its outcome."""

    # An error's text, without the leading dash; or nothing.
    error: str | None
    # Whether the connection is closed: after the error if there is one, else in place of a reply.
    closes: bool = False
    # The request succeeds after this time of refusals.
    seconds: float = 10.0
    # The time and connection of each attempt.
    attempts: list = field(default_factory=list)
    # How often the request that stands beside the planned one in a pipeline came.
    others: int = 0
    # Connections that the client closed, and requests of other kinds, since the first attempt.
    closed_by_client: int = 0
    asked_between: list = field(default_factory=list)


class FakeServer:
    """Runs in a thread of its own. One plan at a time is in force."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.plan = None
        self.key = None
        self.connections = {}
        self.connection_ids = 0
        self.closed_by_us = set()
        self.lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self.thread.start()
        started.wait()

    def stop(self):
        """Closes every connection and the listener."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def follow(self, key, plan):
        """Puts a plan in force for requests that name `key`."""
        with self.lock:
            self.key, self.plan = key, plan

    def close_connections(self):
        """Closes all connections while they are idle."""
        done = threading.Event()

        def close():
            for number, writer in list(self.connections.items()):
                self.closed_by_us.add(number)
                writer.close()
            done.set()

        self.loop.call_soon_threadsafe(close)
        done.wait()

    def _run(self, started):
        asyncio.set_event_loop(self.loop)
        listener = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = listener.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()
        listener.close()
        for writer in self.connections.values():
            writer.transport.abort()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.01))

    async def _serve(self, reader, writer):
        self.connection_ids += 1
        number = self.connection_ids
        self.connections[number] = writer
        state = {"protocol": 2}
        try:
            while request := await read_request(reader):
                if not await self._answer(number, state, request, writer):
                    self.closed_by_us.add(number)
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            del self.connections[number]
            with self.lock:
                if self.plan and self.plan.attempts and number not in self.closed_by_us:
                    self.plan.closed_by_client += 1
            writer.close()

    async def _answer(self, number, state, request, writer):
        """Writes the reply. Returns false if the connection is to be closed."""
        name = request[0].upper()
        planned = False
        with self.lock:
            plan = self.plan
            if plan and name in ("GET", "INCR", "INCRBY") and request[1] == self.key:
                plan.attempts.append((time.monotonic(), number))
                planned = time.monotonic() - plan.attempts[0][0] < plan.seconds
            elif plan and name in ("GET", "INCR", "INCRBY") and request[1] == "{" + self.key + "}other":
                plan.others += 1
            elif plan and plan.attempts:
                plan.asked_between.append(" ".join(request[:2]).upper() if name in ("CLUSTER", "CLIENT") else name)
        if planned:
            if plan.error:
                writer.write(f"-{plan.error}\r\n".encode())
                await writer.drain()
            return not plan.closes
        writer.write(self._reply(number, state, name, request[1:]))
        await writer.drain()
        return name != "QUIT"

    def _reply(self, number, state, name, rest):
        subcommand = rest[0].upper() if rest else ""
        match name:
            case "HELLO":
                if rest:
                    state["protocol"] = int(rest[0])
                return encode(
                    {
                        "server": "redis",
                        "version": VERSION,
                        "proto": state["protocol"],
                        "id": number,
                        "mode": "cluster" if self.cluster else "standalone",
                        "role": "master",
                        "modules": [],
                    },
                    state["protocol"],
                )
            case "GET":
                return encode("1", 2)
            case "INCR" | "INCRBY":
                return b":1\r\n"
            case "PING":
                return encode(rest[0], 2) if rest else b"+PONG\r\n"
            case "ECHO":
                return encode(rest[0], 2)
            case "INFO":
                return encode(self._info(), 2)
            case "ROLE":
                return encode(["master", 0, []], 2)
            case "COMMAND" if subcommand in ("", "INFO"):
                return encode(COMMANDS, 2)
            case "CLIENT" if subcommand == "ID":
                return encode(number, 2)
            case "CLIENT" if subcommand == "INFO":
                return encode(f"id={number} addr=127.0.0.1:1 name= db=0", 2)
            case "CLIENT" if subcommand == "MAINT_NOTIFICATIONS":
                return b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"
            case "CLUSTER" if not self.cluster:
                return b"-ERR This instance has cluster support disabled\r\n"
            case "CLUSTER":
                return encode(self._topology(subcommand), state["protocol"])
            case "SELECT" | "AUTH" | "CLIENT" | "READONLY" | "READWRITE" | "ASKING" | "QUIT" | "SET":
                return b"+OK\r\n"
            case _:
                return f"-ERR unknown command '{name}', with args beginning with:\r\n".encode()

    def _info(self):
        return (
            f"# Server\r\nredis_version:{VERSION}\r\nredis_mode:{'cluster' if self.cluster else 'standalone'}\r\n"
            f"tcp_port:{self.port}\r\n# Clients\r\nconnected_clients:1\r\n# Persistence\r\nloading:0\r\n"
            f"# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\n"
            f"# Cluster\r\ncluster_enabled:{int(self.cluster)}\r\n"
        )

    def _topology(self, subcommand):
        if subcommand == "SLOTS":
            return [[0, 16383, ["127.0.0.1", self.port, NODE_ID, []]]]
        if subcommand == "SHARDS":
            node = {
                "id": NODE_ID,
                "port": self.port,
                "ip": "127.0.0.1",
                "endpoint": "127.0.0.1",
                "role": "master",
                "replication-offset": 0,
                "health": "online",
            }
            return [{"slots": [0, 16383], "nodes": [node]}]
        if subcommand == "NODES":
            bus = self.port - 10000 if self.port > 20000 else self.port + 10000
            return f"{NODE_ID} 127.0.0.1:{self.port}@{bus} myself,master - 0 0 1 connected 0-16383\n"
        if subcommand == "MYID":
            return NODE_ID
        if subcommand == "INFO":
            return "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_known_nodes:1\r\ncluster_size:1\r\n"
        return "OK"


def command(name, arity, flags, key):
    """One entry of the reply to COMMAND."""
    return [name, arity, flags, key, key, key, [], [], [], []]


COMMANDS = [
    command("get", 2, ["readonly", "fast"], 1),
    command("incr", 2, ["write", "denyoom", "fast"], 1),
    command("incrby", 3, ["write", "denyoom", "fast"], 1),
    command("set", -3, ["write", "denyoom"], 1),
    command("ping", -1, ["fast"], 0),
    command("cluster", -2, [], 0),
    command("info", -1, [], 0),
]


async def read_request(reader):
    """The next request's words. Nothing at the end of the stream."""
    line = await reader.readline()
    if not line:
        return None
    if line[:1] != b"*":
        return line.decode().split()
    words = []
    for _ in range(int(line[1:])):
        length = int((await reader.readline())[1:])
        words.append((await reader.readexactly(length + 2))[:-2].decode("utf-8", "replace"))
    return words


def encode(value, protocol):
    """The value in the wire protocol of version 2 or 3."""
    if isinstance(value, int):
        return f":{value}\r\n".encode()
    if isinstance(value, str):
        return f"${len(value.encode())}\r\n{value}\r\n".encode()
    if isinstance(value, list):
        return f"*{len(value)}\r\n".encode() + b"".join(encode(item, protocol) for item in value)
    head = f"%{len(value)}\r\n" if protocol == 3 else f"*{2 * len(value)}\r\n"
    return head.encode() + b"".join(encode(item, protocol) for pair in value.items() for item in pair)
