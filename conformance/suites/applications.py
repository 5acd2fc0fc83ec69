"""Applications that start, work, lose their server and recover, directly and through respool.

A unit is one disturbance of one application:

    restart    the server ends, and is back after half a second
    kill       SIGKILL, and the server is back after a second
    outage     SIGKILL, and the server is back after five seconds, longer than `outage-hold-ms`
    failover   SENTINEL FAILOVER promotes the replica

An application is one process or several (`roles`), see `applications/`. Each process gets the
address of its server from the environment: REDIS_HOST and REDIS_PORT. In the unit `failover` the
direct side gets REDIS_SENTINELS and REDIS_MASTER instead. A process prints one line per event:

    ACTIVITY sent N         the server has accepted message, job or request N
    ACTIVITY done N         N was executed, received or answered
    ACTIVITY error TEXT     the application got an error

At a line on standard input, a process stops sending. At the end of standard input, it ends. An
application with the setting `at-rest` pauses at the line `pause`, until the line `resume`. Servers
write each request to disk before they reply, so a restart may lose nothing.
"""

import collections
import hashlib
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import threading
import time

from compare import FAILED, PASSED, Result
from sides import server_program, servers
from suites.processes import RUNNING, kill_session, run_checked

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "applications"
# The minimum number of items of each activity before the disturbance, and after it.
ITEMS_MIN = 10
# The time in which a worker records the end of a job, also on a busy machine.
REST_SECONDS = 1
STOP_SECONDS = 1
START_SECONDS_MAX = 60
# A Sentinel demotes the old primary some ten seconds after the failover. Until then an application
# may stay connected to it.
PATIENCE_SECONDS = 40
DRAIN_SECONDS_MAX = 15
END_SECONDS_MAX = 20
# One request of each activity may be in flight when the server ends. The direct side may have none
# in flight at that moment.
TOLERATED = {"errors": 1, "lost": 0, "twice": 0}
# After `outage-hold-ms` respool fails each request at once, and a client that sends more gets an
# error for each. On the direct side the client waits for a connection instead. So errors are not
# compared.
FAILS_FAST = {"outage"}
# A message that is published while the server is away has no receiver, on either side.
MAY_BE_LOST = {"pubsub"}


class Application:
    """One application. A test is one requirement on one of its activities."""

    starts_servers = True
    several_args = []

    def __init__(self, settings, _pins, cache):
        self.settings = settings
        self.language = LANGUAGES[settings["language"]](cache)
        self.program = settings.get("program", settings["name"])
        # The highest counts of the direct side's runs, by unit.
        self.direct = {}

    def prepare(self, _requirements):
        """Installs the libraries and builds the application, unless the cache has them."""
        made_of = self.language.made_of()
        stamp = self.language.folder / "stamp"
        if stamp.exists() and stamp.read_text() == made_of:
            return
        shutil.rmtree(self.language.folder, ignore_errors=True)
        shutil.copytree(self.language.sources, self.language.folder)
        self.language.build()
        stamp.write_text(made_of)

    def run(self, unit, side, _only, folder):
        """Runs the application through one disturbance."""
        folder.mkdir(parents=True, exist_ok=True)
        with Servers(unit, side) as there:
            commands = [self.language.command(self.program, role) for role in self.settings["roles"]]
            processes = [Process(command, there.environment, folder / f"{role}.log", self.language.folder)
                         for command, role in zip(commands, self.settings["roles"])]
            try:
                counted, results = self.observe(unit, there, processes)
            finally:
                for process in processes:
                    process.kill()
        results.update(self.compared(unit, side.name, counted))
        # Tests of all units are kept in one table.
        return {f"{unit}: {name}": result for name, result in results.items()}, there.trouble

    def observe(self, unit, there, processes):
        """The disturbance, and the lines that the application printed about it."""
        activities, lines = self.settings["activities"], Lines(processes)
        everything_works = lambda: all(len(lines.done(activity)) >= ITEMS_MIN for activity in activities)
        started = wait_until(everything_works, START_SECONDS_MAX, processes)
        results = {"starts": said(started, "not every activity did its first items: " + lines.tail())}
        if self.settings.get("at-rest"):
            # The worker must be idle: in the middle of a job it would end directly, too.
            tell(processes, "pause")
            time.sleep(STOP_SECONDS)
            rests = wait_until(lambda: not any(lines.lost(activity) for activity in activities), START_SECONDS_MAX, processes)
            if not rests:
                raise RuntimeError("the worker did not finish its jobs: " + lines.tail())
            time.sleep(REST_SECONDS)
        # Errors during the start are not compared.
        lines.forget_errors()
        getattr(there, unit)(lambda: self.resume(processes))
        before = {activity: lines.last(activity) for activity in activities}
        fresh = lambda activity: [number for number in lines.done(activity) if number > before[activity]]
        wait_until(lambda: all(len(fresh(activity)) >= ITEMS_MIN for activity in activities), PATIENCE_SECONDS, processes)
        for activity in activities:
            text = f"{len(fresh(activity))} new items were done in {PATIENCE_SECONDS} s: {lines.tail()}"
            results[f"{activity} goes on"] = said(len(fresh(activity)) >= ITEMS_MIN, text)
        tell(processes, "stop")
        # Waits for items in flight.
        time.sleep(STOP_SECONDS)
        lost = lambda: sum(len(lines.lost(activity)) for activity in activities if activity not in MAY_BE_LOST)
        wait_until(lambda: not lost(), DRAIN_SECONDS_MAX, processes)
        alive = [process for process in processes if process.alive()]
        results["lives"] = said(len(alive) == len(processes), "a process has ended: " + lines.tail())
        for process in processes:
            process.end()
        counted = {}
        for activity in activities:
            if unit not in FAILS_FAST:
                counted[activity, "errors"] = lines.errors(activity)
            counted[activity, "twice"] = lines.twice(activity)
            if activity not in MAY_BE_LOST:
                counted[activity, "lost"] = lines.lost(activity)
        return counted, results

    def resume(self, processes):
        """Lets the senders of an application at rest send again."""
        if self.settings.get("at-rest"):
            tell(processes, "resume")

    def compared(self, unit, side_name, counted):
        """Checks that respool adds no errors, losses or repetitions to those of the direct side."""
        results = {}
        for (activity, outcome), found in counted.items():
            text = f"{len(found)} {outcome}: " + "; ".join(f"{times} x {item}" for item, times in collections.Counter(found).items())
            name = {"errors": "has no more errors", "lost": "loses nothing more", "twice": "does nothing more twice"}[outcome]
            direct = self.direct.setdefault(unit, {})
            if side_name == "direct":
                direct[activity, outcome] = max(direct.get((activity, outcome), 0), len(found))
                results[f"{activity} {name}"] = Result(PASSED, text)
            else:
                tolerated = {**TOLERATED, **self.settings.get("tolerated", {})}[outcome]
                allowed = direct.get((activity, outcome), 0) + tolerated
                results[f"{activity} {name}"] = said(len(found) <= allowed, f"{text} (directly {allowed - tolerated})")
        return results


def tell(processes, word):
    for process in processes:
        process.say(word)


def said(good, text):
    return Result(PASSED, text) if good else Result(FAILED, text)


class Servers:
    """The server and respool behind the application on one side, and the ways to disturb them.

    Each way calls `is_away` as soon as the server no longer serves.
    """

    def __init__(self, unit, side):
        self.unit, self.side = unit, side
        self.trouble = ""
        self.respool = None

    def __enter__(self):
        name = self.side.server_name
        if self.unit == "failover":
            self.server = servers.Several("sentinel", name)
            self.environment = {"REDIS_SENTINELS": ",".join(self.server.addresses), "REDIS_MASTER": self.server.backend.rsplit("/", 1)[1]}
        else:
            port = low_port()
            args = ["--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always"]
            self.server = servers.Server(server_program(name), *args)
            self.server.backend = f"redis://127.0.0.1:{port}"
            self.environment = {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(port)}
        if self.side.name == "proxied":
            try:
                self.respool = servers.Respool(self.server, *self.side.respool_args)
            except BaseException:
                self.server.close()
                raise
            self.environment = {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(self.respool.port)}
        return self

    def __exit__(self, *_):
        try:
            if self.respool:
                self.respool.close()
        except Exception as error:  # noqa: BLE001: the report shows any error
            self.trouble = str(error)
        finally:
            self.server.close()

    def restart(self, is_away):
        self.server.process.terminate()
        self.server.process.wait(servers.PATIENCE_SECONDS)
        is_away()
        time.sleep(0.5)
        self.server.start()

    def kill(self, is_away):
        self.server.kill()
        is_away()
        time.sleep(1)
        self.server.start()

    def outage(self, is_away):
        self.server.kill()
        is_away()
        time.sleep(5)
        self.server.start()

    def failover(self, is_away):
        name = self.server.backend.rsplit("/", 1)[1]
        asked = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]
        old = ask(self.server.addresses[0], *asked)
        answer = ask(self.server.addresses[0], "SENTINEL", "FAILOVER", name)
        if not answer.startswith(b"+OK"):
            raise RuntimeError(f"SENTINEL FAILOVER: {answer}")
        moved = lambda: all(ask(address, *asked) != old for address in self.server.addresses)
        if not wait_until(moved, PATIENCE_SECONDS, []):
            raise RuntimeError("the Sentinels named no other primary")
        is_away()


class Process:
    """One process of an application. A thread stores its output lines."""

    def __init__(self, command, environment, log, folder):
        self.lines = []
        self.log = open(log, "w", encoding="utf-8")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen([str(word) for word in command], cwd=folder, env={**os.environ, **environment},
                                        start_new_session=True, text=True, errors="replace", **pipes)
        RUNNING.add(self.process)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            self.log.write(f"{time.strftime('%H:%M:%S')} {line}")
        self.log.close()

    def alive(self):
        return self.process.poll() is None

    def say(self, text):
        try:
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def end(self):
        """Asks the process to end: closes its standard input, and sends SIGTERM."""
        try:
            self.process.stdin.close()
            self.process.terminate()
            self.process.wait(END_SECONDS_MAX)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass

    def kill(self):
        kill_session(self.process)
        self.process.wait()
        self.reader.join()
        RUNNING.discard(self.process)


class Lines:
    """The lines that the processes of one application have printed."""

    def __init__(self, processes):
        self.processes = processes
        self.forgotten = collections.Counter()

    def numbers(self, activity, event):
        head = f"{activity} {event} "
        return [int(line[len(head):]) for process in self.processes for line in list(process.lines) if line.startswith(head)]

    def done(self, activity):
        return set(self.numbers(activity, "done"))

    def last(self, activity):
        return max([*self.numbers(activity, "done"), *self.numbers(activity, "sent")], default=0)

    def lost(self, activity):
        return sorted(set(self.numbers(activity, "sent")) - self.done(activity))

    def twice(self, activity):
        return sorted(number for number, times in collections.Counter(self.numbers(activity, "done")).items() if times > 1)

    def errors(self, activity):
        head = f"{activity} error "
        found = [line[len(head):] for process in self.processes for line in list(process.lines) if line.startswith(head)]
        return found[self.forgotten[activity]:]

    def forget_errors(self):
        for line in [line for process in self.processes for line in list(process.lines)]:
            if " error " in line:
                self.forgotten[line.split(" ", 1)[0]] += 1

    def tail(self):
        """The last lines that are not about items."""
        kept = [line for process in self.processes for line in list(process.lines)[-300:] if " done " not in line and " sent " not in line]
        return " | ".join(kept[-8:])


class Python:
    """Applications in Python, with their libraries in a virtual environment of their own."""

    def __init__(self, cache):
        self.sources = SOURCES / self.name()
        self.folder = cache / "applications" / self.name()

    def name(self):
        return type(self).__name__.lower()

    def made_of(self):
        """A digest of the sources, which name the pinned libraries."""
        texts = [path.read_bytes() for path in sorted(self.sources.iterdir()) if path.is_file()]
        return hashlib.sha256(b"\0".join(texts)).hexdigest()

    def build(self):
        run_checked([sys.executable, "-m", "venv", self.folder / "venv"])
        pip = [self.folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        run_checked([*pip, "-r", self.folder / "requirements.txt"])

    def command(self, application, role):
        return [self.folder / "venv/bin/python", "-B", "-u", self.folder / f"{application}_application.py", role]


class Node(Python):
    """Applications in JavaScript."""

    def build(self):
        run_checked(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=self.folder)

    def command(self, application, role):
        return ["node", self.folder / f"{application}.mjs", role]


class Go(Python):
    """Applications in Go: one program, which gets the application's name."""

    def build(self):
        run_checked(["go", "build", "-o", "applications", "."], cwd=self.folder)

    def command(self, application, role):
        return [self.folder / "applications", application, role]


class Java(Python):
    """Applications in Java: one program, which gets the application's name."""

    def build(self):
        run_checked(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"], cwd=self.folder)
        run_checked(["javac", "-cp", "jars/*", "-d", ".", *self.folder.glob("*.java")], cwd=self.folder)

    def command(self, application, role):
        return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{self.folder}:{self.folder}/jars/*", "Applications", application, role]


LANGUAGES = {"python": Python, "node": Node, "go": Go, "java": Java}


def wait_until(look, seconds, processes):
    """Waits until `look` returns true. Gives up after `seconds`, or when a process has ended."""
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline or any(not process.alive() for process in processes):
            return False
        time.sleep(0.05)
    return True


def ask(address, *words):
    """Sends one request and returns the first bytes of its reply."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words))
        return connection.recv(1 << 12)


def low_port():
    """A free port below the range of outgoing connections.

    In that range a client of a server that is away may connect to itself.
    """
    while True:
        port = random.randint(20000, 31000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
