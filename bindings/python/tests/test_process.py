"""Forks, signals, the end of the interpreter. The first line of each test is its claim."""

import os
import signal
import sys
import threading
import time
import unittest

import respool

from support import WithServer, run_program

START = """
import asyncio, os, signal, sys, threading, time
import redis, respool, respool.asyncio
client = respool.Redis(port=int(sys.argv[1]))
"""


class Process(WithServer):
    def run_code(self, code, **options):
        # A shell may have told its children to ignore Ctrl-C.
        start = START + "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        return run_program(start + code, self.server.port, **options)

    def test_child_opens_a_client_of_its_own(self):
        """A child of a fork asks by a client of its own, while its parent goes on."""
        code = """
client.set("key", 1)
stop = []
threads = [threading.Thread(target=lambda: [client.incr("count") for _ in iter(lambda: not stop, False)]) for _ in range(8)]
for thread in threads: thread.start()
children = []
with client.pubsub() as listener:
    listener.subscribe("channel")
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            ok = client.get("key") == b"1" and client.pipeline().get("key").execute() == [b"1"]
            ok = ok and asyncio.run(respool.asyncio.Redis(port=int(sys.argv[1])).get("key")) == b"1"
            os._exit(0 if ok else 1)
        children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
stop.append(1)
for thread in threads: thread.join()
print(client.get("key"))
"""
        code, out, errors = self.run_code(code)
        self.assertEqual((code, out), (0, "[0, 0, 0, 0, 0]\nb'1'\n"), errors)

    def test_child_that_exits_harms_no_parent(self):
        """A child that ends as usual, with objects of its parent, leaves the parent's client intact."""
        code = """
import multiprocessing
client.set("key", 1)
listener = client.pubsub(); listener.subscribe("channel")
def work(): print(client.incr("key"), flush=True)
for _ in range(2):
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start(); process.join(10); print(process.exitcode, flush=True)
print(client.incr("key"), listener.get_message(timeout=1)["type"])
"""
        code, out, errors = self.run_code(code)
        self.assertEqual((code, out), (0, "2\n0\n3\n0\n4 subscribe\n"), errors)

    def test_calls_under_way_fail_in_a_child(self):
        """A call of an event loop that was under way at a fork fails as Unknown in the child."""
        code = """
async def main():
    client = respool.asyncio.Redis(port=int(sys.argv[1]))
    task = asyncio.ensure_future(client.blpop("none", timeout=1))
    await asyncio.sleep(0.1)
    if os.fork() == 0:
        try:
            await task
        except respool.Unknown:
            print("unknown", respool.Redis(port=int(sys.argv[1])).ping(), flush=True)
        os._exit(0)
    os.wait()
    print(await task)
asyncio.run(main())
"""
        code, out, errors = self.run_code(code)
        self.assertEqual((code, out), (0, "unknown True\nNone\n"), errors)

    def test_subscriber_goes_on_in_a_child(self):
        """The subscriptions of a parent are opened again in the child at its next read."""
        code = """
listener = client.pubsub(); listener.subscribe("channel"); listener.get_message(timeout=1)
if os.fork() == 0:
    print(listener.get_message(timeout=1)["type"], flush=True)
    os._exit(0)
os.wait()
"""
        code, out, errors = self.run_code(code)
        self.assertEqual((code, out), (0, "subscribe\n"), errors)

    def test_interrupt_ends_a_wait(self):
        """Ctrl-C ends a call, a pipeline and a wait for messages. The client is usable behind it."""
        waits = (
            'client.blpop("none", timeout=10)',
            'client.pipeline(transaction=False).execute_command("BLPOP", "none", 10).execute()',
            "listener.get_message(timeout=10)",
            "listener.parse_response(block=True)",
        )
        for wait in waits:
            code = f"""
listener = client.pubsub(); listener.subscribe("channel"); listener.get_message(timeout=1)
client.ping()
print("ready", flush=True)
begun = time.monotonic()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", client.ping(), time.monotonic() - begun < 2)
"""
            code, out, errors = self.run_code(code, send=signal.SIGINT)
            self.assertEqual((code, out), (0, "ready\ninterrupted True True\n"), f"{wait}: {errors}")

    def test_interrupt_ends_a_write(self):
        """Ctrl-C ends the write of a pipeline for which a stuck server has no room."""
        code = """
client = respool.Redis(port=int(sys.argv[1]), socket_timeout=None)
pipeline = client.pipeline(transaction=False)
for _ in range(8): pipeline.set("large", b"x" * (16 << 20))
pipeline.connection = client.connection_pool.get_connection()
threading.Thread(target=client.execute_command, args=("DEBUG", "SLEEP", "2"), daemon=True).start()
time.sleep(0.2)
begun = time.monotonic()
print("ready", flush=True)
try:
    pipeline.execute()
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begun < 1.5)
"""
        code, out, errors = self.run_code(code, send=signal.SIGINT)
        self.assertEqual((code, out), (0, "ready\ninterrupted True\n"), errors)

    def test_handler_of_a_signal_runs_during_a_call(self):
        """The handler of a signal runs during a call, which goes on behind it."""
        code = """
signal.signal(signal.SIGUSR1, lambda *_: print("handled", time.monotonic() - begun < 0.9, flush=True))
begun = time.monotonic()
print("ready", flush=True)
print(client.blpop("none", timeout=1))
"""
        code, out, errors = self.run_code(code, send=signal.SIGUSR1)
        self.assertEqual((code, out), (0, "ready\nhandled True\nNone\n"), errors)

    def test_interpreter_ends_beside_calls(self):
        """The interpreter ends at once beside threads and tasks that wait in calls."""
        ends = {
            "threads": """
def work():
    while True: client.incr("count")
for _ in range(20): threading.Thread(target=work, daemon=True).start()
for _ in range(4): threading.Thread(target=client.blpop, args=("none", 0), daemon=True).start()
listener = client.pubsub(); listener.subscribe("channel")
threading.Thread(target=listener.parse_response, daemon=True).start()
time.sleep(0.3)
""",
            "tasks": """
async def main():
    client = respool.asyncio.Redis(port=int(sys.argv[1]))
    await client.ping()
    tasks.append(asyncio.ensure_future(client.blpop("none", 0)))
    await asyncio.sleep(0.1)
tasks = []
loop = asyncio.new_event_loop(); loop.run_until_complete(main())
""",
            "atexit": """
import atexit
atexit.register(lambda: print(client.ping()))
""",
            "nothing": "client.ping()",
            "unopened": "",
        }
        for name, code in ends.items():
            for _ in range(3 if name == "threads" else 1):
                begun = time.monotonic()
                code_, out, errors = self.run_code(code)
                self.assertEqual(code_, 0, f"{name}: {errors}")
                self.assertNotIn("Fatal", errors, name)
                self.assertLess(time.monotonic() - begun, 5, name)

    def test_last_client_leaves_no_thread(self):
        """The thread and the connections of a client end with it, also without a close."""
        client = respool.Redis(port=self.server.port)
        client.ping()
        with_client = threads_of_process()
        del client
        end = time.monotonic() + 5
        while threads_of_process() >= with_client and time.monotonic() < end:
            time.sleep(0.05)
        self.assertLess(threads_of_process(), with_client)

    def test_machine_without_the_library_has_redis_py(self):
        """Without the native half, the classes are those of redis-py, with one warning."""
        code = """
import sys, warnings
sys.modules["respool._respool"] = None
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import redis, respool, respool.asyncio, asyncio
print(len([one for one in warned if "respool" in str(one.message)]), respool.IS_NATIVE)
client = respool.Redis.from_url(f"redis://127.0.0.1:{sys.argv[1]}", respool_options={"threads": 1})
print(isinstance(client, redis.Redis), client.ping(), respool.NotSent.__mro__[1] is redis.ConnectionError)
print(redis.Redis(connection_pool=respool.ConnectionPool(port=int(sys.argv[1]))).ping())
async def main():
    async with respool.asyncio.Redis(port=int(sys.argv[1]), respool_options={}) as client: return await client.ping()
print(asyncio.run(main()))
"""
        code, out, errors = run_program(code, self.server.port)
        self.assertEqual((code, out), (0, "1 False\nTrue True True\nTrue\nTrue\n"), errors)


def threads_of_process():
    return len(os.listdir(f"/proc/{os.getpid()}/task"))


if __name__ == "__main__":
    unittest.main()
