"""Compares two runs of one suite test by test, and judges the suite.

This module runs nothing: results go in, a verdict comes out. So tests with planted results can show
that each kind of failure is found (tests/test_compare.py).
"""

import dataclasses
import re
import tomllib

PASSED, FAILED, SKIPPED, MISSING = "passed", "failed", "skipped", "missing"


@dataclasses.dataclass
class Result:
    """The outcome of one test in one run."""

    status: str
    message: str = ""
    seconds: float = 0.0


@dataclasses.dataclass
class Skip:
    """An entry of skips.toml: tests that need not pass through respool, and the reason."""

    suite: str
    test: str
    reason: str
    # The test passes now and then, so a pass is not reported.
    by_chance: bool = False
    # The kinds of servers behind respool for which the skip holds; empty: all kinds.
    kinds: tuple = ()
    # The text that the failure must contain. A failure with another text is not excused.
    said: str = ""

    def names(self, suite, test):
        return _matches(self.suite, suite) and _matches(self.test, test)

    def excuses(self, suite, test, result):
        return self.names(suite, test) and self.said in result.message


@dataclasses.dataclass
class Runs:
    """All runs of one suite: each is a dict from test to Result.

    The second runs hold only tests that ran again. Those are the tests that failed directly, and
    the tests that passed directly and failed through respool.
    """

    suite: str
    direct: dict
    proxied: dict
    direct_again: dict = dataclasses.field(default_factory=dict)
    proxied_again: dict = dataclasses.field(default_factory=dict)
    # Failures outside the tests, such as a respool that panicked or exited with an error.
    trouble: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Verdict:
    """The verdict on one suite. Lists of tests hold (test, text) pairs.

    The run fails if one of the four fields from `regressions` to `trouble` is not empty.
    """

    suite: str
    regressions: list
    skips_that_pass: list
    too_few: str
    trouble: list
    passed_directly: int
    passed_proxied: int
    skipped_with_reason: list
    skipped_by_suite: int
    failed_directly: list
    flaky_directly: list
    flaky_proxied: list

    def good(self):
        return not (self.regressions or self.skips_that_pass or self.too_few or self.trouble)


def judge(runs, skips, passed_min):
    """The verdict on one suite. `passed_min` tests must pass directly, at once or again."""
    verdict = Verdict(runs.suite, [], [], "", list(runs.trouble), 0, 0, [], 0, [], [], [])
    for test, first in sorted(runs.direct.items()):
        if first.status == SKIPPED:
            verdict.skipped_by_suite += 1
            continue
        if first.status != PASSED:
            # A test that fails directly says nothing about respool.
            again = runs.direct_again.get(test)
            flaky = again is not None and again.status == PASSED
            (verdict.flaky_directly if flaky else verdict.failed_directly).append((test, first.message))
            continue
        verdict.passed_directly += 1
        proxied = runs.proxied.get(test, Result(MISSING, "it did not run"))
        if proxied.status == PASSED:
            verdict.passed_proxied += 1
            skip = next((s for s in skips if s.names(runs.suite, test)), None)
            if skip and not skip.by_chance:
                verdict.skips_that_pass.append((test, skip.reason))
            continue
        skip = next((s for s in skips if s.excuses(runs.suite, test, proxied)), None)
        if skip:
            verdict.skipped_with_reason.append((test, skip.reason))
            continue
        again = runs.proxied_again.get(test)
        if again is not None and again.status == PASSED:
            verdict.passed_proxied += 1
            verdict.flaky_proxied.append((test, proxied.message))
        else:
            verdict.regressions.append((test, f"{proxied.status}: {proxied.message}".rstrip(": ")))
    # The minimum finds a suite with tests that do not run. A test that passed when run again did
    # run.
    passed = verdict.passed_directly + len(verdict.flaky_directly)
    if passed < max(passed_min, 1):
        verdict.too_few = f"{passed} tests passed directly, at least {max(passed_min, 1)} should"
    return verdict


def passed_min(settings, profile, server):
    """The number of tests of a suite that must pass directly.

    It depends on the server: `server` if given, else the suite's own.
    """
    if server and server != settings["server"]:
        settings = settings.get("on", {}).get(server, {})
        # Without a count for this server, one passed test is required.
        return settings.get("passed-min", {}).get(profile, 1)
    return settings["passed-min"][profile]


def stale_skips(skips, all_runs):
    """The skips that match no test that ran. Only valid after a full run of every suite."""
    return [skip for skip in skips if not any(_ran(skip, runs) for runs in all_runs)]


def regressed(direct, proxied, skips, suite):
    """The tests that run once more: passed directly, not through respool, and without a skip."""
    tests = [test for test, result in direct.items() if result.status == PASSED]
    failed = [(test, proxied.get(test, Result(MISSING))) for test in tests]
    failed = [(test, result) for test, result in failed if result.status != PASSED]
    return [test for test, result in failed if not any(skip.excuses(suite, test, result) for skip in skips)]


def read_skips(text, kind="server"):
    """The skips of a file that hold for this kind of servers. Refuses a skip without a reason."""
    skips = []
    for entry in tomllib.loads(text).get("skip", []):
        unknown = set(entry) - {"suite", "test", "tests", "reason", "by_chance", "kinds", "said"}
        tests = entry.get("tests", []) + ([entry["test"]] if "test" in entry else [])
        if unknown or not tests or not entry.get("suite") or not entry.get("reason", "").strip():
            raise ValueError(f"a skip has a suite, a test or tests, a reason, perhaps by_chance, kinds, said, and nothing else: {entry}")
        more = (entry.get("by_chance") is True, tuple(entry.get("kinds", ())))
        # Servers may word the same error differently: one skip for each text.
        said = entry.get("said", "")
        texts = said if isinstance(said, list) else [said]
        skips += [Skip(entry["suite"], test, entry["reason"], *more, text) for test in tests for text in texts]
    return [skip for skip in skips if not skip.kinds or kind in skip.kinds]


def _ran(skip, runs):
    # A test that passes by chance may also skip itself by chance.
    ran = lambda result: skip.by_chance or result.status != SKIPPED
    return any(skip.names(runs.suite, test) and ran(result) for test, result in runs.direct.items())


def _matches(pattern, name):
    # A star matches any text. Brackets and question marks are part of test names.
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
