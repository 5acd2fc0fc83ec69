"""The reports of an application in Python, and the orders to pause and to stop."""

import os
import sys
import threading

stopped, paused = threading.Event(), threading.Event()


def tell(activity, event, detail):
    # One write, without the buffers of a library; a forked job writes to the same place.
    os.write(1, f"{activity} {event} {detail}\n".encode())


def listen():
    """Reads standard input.

    `pause` and `resume` pause the senders and let them send again. Any other line stops them. The
    end of the input ends the process.
    """
    def read():
        for line in sys.stdin:
            {"pause": paused.set, "resume": paused.clear}.get(line.strip(), stopped.set)()
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()


def numbers(pace_seconds):
    """1, 2, 3, ... with pauses, until told to stop: at most one number in `pace_seconds`."""
    number = 0
    while not stopped.wait(pace_seconds):
        if not paused.is_set():
            number += 1
            yield number
    threading.Event().wait()


def server():
    """The host and port of the server, or None and the Sentinels."""
    if "REDIS_PORT" in os.environ:
        return (os.environ["REDIS_HOST"], int(os.environ["REDIS_PORT"])), None
    sentinels = [address.rsplit(":", 1) for address in os.environ["REDIS_SENTINELS"].split(",")]
    return None, ([(host, int(port)) for host, port in sentinels], os.environ["REDIS_MASTER"])
