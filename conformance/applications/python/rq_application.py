"""RQ: its own worker, which waits for jobs by BLMOVE or BLPOP, and a producer of jobs."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from reporting import listen, numbers, server, tell  # noqa: E402

ADDRESS, SENTINELS = server()
# The worker takes this module as its settings.
if ADDRESS:
    REDIS_URL = f"redis://{ADDRESS[0]}:{ADDRESS[1]}/0"
else:
    SENTINEL = {"INSTANCES": SENTINELS[0], "MASTER_NAME": SENTINELS[1]}


def work(number):
    tell("jobs", "done", number)


def producer():
    import redis
    from rq import Queue

    listen()
    if ADDRESS:
        connection = redis.Redis(*ADDRESS)
    else:
        connection = redis.Sentinel(SENTINELS[0]).master_for(SENTINELS[1])
    queue = Queue(connection=connection)
    for number in numbers(0.3):
        try:
            queue.enqueue("rq_application.work", number)
            tell("jobs", "sent", number)
        except Exception as error:  # noqa: BLE001: every error is reported
            tell("jobs", "error", repr(error))


def worker():
    from rq.cli import main

    sys.argv = ["rq", "worker", "-c", "rq_application", "--path", os.path.dirname(os.path.abspath(__file__))]
    main()


if __name__ == "__main__":
    {"producer": producer, "worker": worker}[sys.argv[1]]()
