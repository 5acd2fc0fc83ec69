"""Running what is not ours: builds that must succeed, suites that must end."""

import hashlib
import os
import signal
import subprocess
import threading

# What run_bounded waits for now, so that an interrupted run can end all of it.
RUNNING = set()
STOPPED = threading.Event()


def checked_sha256(path, expected):
    """Refuses, and removes, a file that is not the pinned one."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        path.unlink()
        raise RuntimeError(f"{path.name} is not the pinned one: its sha256 is {found}, suites.toml has {expected}")


def run_checked(command, **options):
    """Runs a command that must succeed, and returns what it printed; all it said is in the error if it does not."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", check=False, **options)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{said}")
    return done.stdout


def run_bounded(command, seconds, log, environment, folder):
    """Runs a suite, whatever its exit code, with all it says in the file `log`. Says so if it had to be stopped."""
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
    """Ends every suite that runs, and lets no further one start."""
    STOPPED.set()
    for process in list(RUNNING):
        kill_session(process)


def kill_session(process):
    """Ends a suite with all that it started: its session is its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
