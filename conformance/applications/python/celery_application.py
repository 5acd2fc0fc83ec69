"""Celery: its own worker, which waits for jobs by BRPOP, and a producer, which waits for results by SUBSCRIBE."""

import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from celery import Celery  # noqa: E402
from reporting import listen, numbers, server, tell  # noqa: E402

ADDRESS, SENTINELS = server()
if ADDRESS:
    URL = f"redis://{ADDRESS[0]}:{ADDRESS[1]}/0"
else:
    URL = ";".join(f"sentinel://{host}:{port}/0" for host, port in SENTINELS[0])

app = Celery("celery_application", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True
if SENTINELS:
    app.conf.broker_transport_options = {"master_name": SENTINELS[1]}
    app.conf.result_backend_transport_options = {"master_name": SENTINELS[1]}


@app.task
def work(number):
    tell("jobs", "done", number)


@app.task
def echo(number):
    return number


def produce_jobs():
    for number in numbers(0.1):
        try:
            work.delay(number)
            tell("jobs", "sent", number)
        except Exception as error:  # noqa: BLE001: every error is reported
            tell("jobs", "error", repr(error))


def ask_for_results():
    for number in numbers(0.1):
        try:
            if echo.delay(number).get(timeout=10) == number:
                tell("results", "done", number)
        except Exception as error:  # noqa: BLE001: every error is reported
            tell("results", "error", repr(error))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        app.worker_main(["worker", "-c", "2", "-l", "INFO"])
    listen()
    threading.Thread(target=ask_for_results, daemon=True).start()
    produce_jobs()
