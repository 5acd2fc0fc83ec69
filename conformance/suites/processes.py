"""Runs programs of other projects: builds that must succeed, and suites within a time limit."""

import hashlib
import os
import signal
import subprocess
import threading

# The running processes of suites and applications. An interrupted run ends all of them.
RUNNING = set()
STOPPED = threading.Event()


def checked_sha256(path, expected):
    """Removes a file with another digest than the pinned one, and raises an error."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        path.unlink()
        raise RuntimeError(f"{path.name} is not the pinned one: its sha256 is {found}, suites.toml has {expected}")


def run_checked(command, **options):
    """Runs a command that must succeed, and returns its output. The error contains the output."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", check=False, **options)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{said}")
    return done.stdout


def run_bounded(command, seconds, log, environment, folder):
    """Runs a suite with its output in the file `log`, and ignores its exit code.

    Returns a text if it stopped the suite after `seconds`, else an empty one.
    """
    if STOPPED.is_set():
        raise InterruptedError("the run was interrupted")
    with open(log, "wb") as output:
        process = subprocess.Popen([str(word) for word in command], cwd=folder, env={**os.environ, **environment},
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    RUNNING.add(process)
    try:
        process.wait(seconds)
        return ""
    except subprocess.TimeoutExpired:
        return f"{' '.join(map(str, command))[:200]} was stopped after {seconds} s"
    finally:
        RUNNING.discard(process)
        kill_session(process)
        process.wait()


def stop_all():
    """Ends every running suite, and prevents the start of further ones."""
    STOPPED.set()
    for process in list(RUNNING):
        kill_session(process)


def kill_session(process):
    """Ends a suite and its child processes, which share a process group of their own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
