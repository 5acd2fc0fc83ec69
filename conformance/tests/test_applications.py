"""Tests the counts of an application's lines and their comparison, with planted lines."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from compare import FAILED, PASSED
from suites.applications import Application, Lines


class Printed:
    """A process that has printed these lines."""

    def __init__(self, *lines):
        self.lines = list(lines)


def application():
    settings = {"name": "a", "language": "python", "roles": ["client"], "activities": ["jobs"]}
    return Application(settings, {}, pathlib.Path("nowhere"))


class Counted(unittest.TestCase):
    def test_lines_of_all_processes_are_counted_together(self):
        """Sent and done items are counted over all processes. An item without `done` is lost."""
        lines = Lines([Printed("jobs sent 1", "jobs sent 2", "jobs sent 3"), Printed("jobs done 1", "noise", "jobs done 3", "jobs done 3")])
        self.assertEqual((lines.lost("jobs"), lines.twice("jobs"), lines.last("jobs")), ([2], [3], 3))

    def test_errors_of_the_start_are_forgotten(self):
        """Errors count from the disturbance on."""
        process = Printed("jobs error early")
        lines = Lines([process])
        lines.forget_errors()
        process.lines += ["jobs done 1", "jobs error late"]
        self.assertEqual(lines.errors("jobs"), ["late"])


class Compared(unittest.TestCase):
    def test_one_error_more_than_directly_is_allowed(self):
        """One request may be in flight when the server goes; a second error fails."""
        for through, status in ((3, PASSED), (4, FAILED)):
            tried = application()
            tried.compared("kill", "direct", {("jobs", "errors"): ["refused"] * 2})
            results = tried.compared("kill", "proxied", {("jobs", "errors"): ["refused"] * through})
            self.assertEqual(results["jobs has no more errors"].status, status)

    def test_losses_and_repetitions_are_none_more_than_directly(self):
        """A job lost or done twice through respool alone fails. The message names the job."""
        for outcome, name in (("lost", "jobs loses nothing more"), ("twice", "jobs does nothing more twice")):
            tried = application()
            self.assertEqual(tried.compared("kill", "direct", {("jobs", outcome): []})[name].status, PASSED)
            result = tried.compared("kill", "proxied", {("jobs", outcome): [7]})[name]
            self.assertEqual(result.status, FAILED)
            self.assertIn("7", result.message)

    def test_units_are_compared_by_themselves(self):
        """Errors of a kill on the direct side do not excuse errors of a restart."""
        tried = application()
        tried.compared("kill", "direct", {("jobs", "errors"): ["refused"] * 5})
        tried.compared("restart", "direct", {("jobs", "errors"): []})
        results = tried.compared("restart", "proxied", {("jobs", "errors"): ["refused"] * 2})
        self.assertEqual(results["jobs has no more errors"].status, FAILED)


if __name__ == "__main__":
    unittest.main()
