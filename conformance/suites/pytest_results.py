"""A pytest plugin for redis-py's tests: one JSON line for each phase of each test.

It writes each line at once, so a crash loses no results.
"""

import json
import os
import tracemalloc

import pytest

# The suite records the origin of every object. No test uses the records, and they take half of the
# suite's time.
tracemalloc.start = lambda *_: None


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    # The suite chooses Cluster clients if INFO reports a Cluster. The environment decides instead.
    session.config.REDIS_INFO["cluster_enabled"] = "CONFORMANCE_CLUSTER_CLIENTS" in os.environ


def pytest_runtest_logreport(report):
    status = "failed" if report.failed else "skipped" if report.skipped else "passed"
    message = ""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash else str(report.longrepr)
    line = {"test": report.nodeid, "status": status, "message": message[:2000], "seconds": report.duration}
    with open(os.environ["CONFORMANCE_RESULTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
