"""Tests the comparison with planted results: regressions fail a run, excused failures do not."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import report
from compare import FAILED, PASSED, SKIPPED, Result, Runs, Skip, judge, passed_min, read_skips, regressed, stale_skips


def results(**statuses):
    return {name: Result(status, f"{name} {status}") for name, status in statuses.items()}


def names(pairs):
    return [test for test, _ in pairs]


class Counted(unittest.TestCase):
    def test_each_server_has_counts_of_its_own(self):
        """The required number of passed tests depends on the server. Without a count it is one."""
        settings = {"server": "a", "passed-min": {"full": 9, "several": 5}, "on": {"b": {"passed-min": {"full": 7}}}}
        self.assertEqual([passed_min(settings, "full", server) for server in (None, "a", "b", "c")], [9, 9, 7, 1])
        self.assertEqual(passed_min(settings, "several", "b"), 1)


class Judged(unittest.TestCase):
    def test_equal_runs_are_good(self):
        """A suite that passes on both sides is good, and counted."""
        runs = Runs("s", results(a=PASSED, b=PASSED, c=SKIPPED), results(a=PASSED, b=PASSED, c=SKIPPED))
        verdict = judge(runs, [], 2)
        self.assertTrue(verdict.good())
        self.assertEqual((verdict.passed_directly, verdict.passed_proxied, verdict.skipped_by_suite), (2, 2, 1))

    def test_a_regression_is_reported(self):
        """A test that passes directly and fails, is skipped or is missing through respool fails the run."""
        direct = results(a=PASSED, b=PASSED, c=PASSED, d=PASSED)
        verdict = judge(Runs("s", direct, results(a=PASSED, b=FAILED, c=SKIPPED)), [], 1)
        self.assertEqual(names(verdict.regressions), ["b", "c", "d"])
        self.assertFalse(verdict.good())
        self.assertIn("missing", verdict.regressions[2][1])

    def test_a_skip_with_a_reason_excuses_a_failure(self):
        """A failure that skips.toml names does not fail the run, and its reason is kept."""
        runs = Runs("s", results(a=PASSED, b=PASSED), results(a=PASSED, b=FAILED))
        verdict = judge(runs, [Skip("s", "b", "because")], 1)
        self.assertTrue(verdict.good())
        self.assertEqual(verdict.skipped_with_reason, [("b", "because")])

    def test_a_skip_of_another_suite_excuses_nothing(self):
        """A skip counts for its own suites alone."""
        runs = Runs("s2", results(a=PASSED, b=PASSED), results(a=PASSED, b=FAILED))
        self.assertFalse(judge(runs, [Skip("s1", "b", "because")], 1).good())
        self.assertTrue(judge(runs, [Skip("s*", "b", "because")], 1).good())

    def test_a_passing_skip_is_reported(self):
        """A listed skip that passes through respool fails the run."""
        runs = Runs("s", results(a=PASSED), results(a=PASSED))
        verdict = judge(runs, [Skip("s", "a", "because")], 1)
        self.assertEqual(names(verdict.skips_that_pass), ["a"])
        self.assertFalse(verdict.good())

    def test_a_skip_by_chance_may_pass(self):
        """A test with a skip by chance may pass or fail. Other tests may not fail."""
        skips = [Skip("s", "a", "because", by_chance=True), Skip("s", "b", "because", by_chance=True)]
        runs = Runs("s", results(a=PASSED, b=PASSED, c=PASSED), results(a=PASSED, b=FAILED, c=PASSED))
        verdict = judge(runs, skips, 1)
        self.assertTrue(verdict.good())
        self.assertEqual(names(verdict.skipped_with_reason), ["b"])
        runs = Runs("s", results(c=PASSED), results(c=FAILED))
        self.assertFalse(judge(runs, skips, 1).good())

    def test_skip_excuses_only_failures_with_its_text(self):
        """A failure without the text of its skip is a regression, and the test runs again."""
        runs = Runs("s", results(a=PASSED, b=PASSED), {"a": Result(FAILED, "CROSSSLOT"), "b": Result(FAILED, "timeout")})
        skips = [Skip("s", "a", "because", said="CROSSSLOT"), Skip("s", "b", "because", said="CROSSSLOT")]
        verdict = judge(runs, skips, 1)
        self.assertEqual((names(verdict.skipped_with_reason), names(verdict.regressions)), (["a"], ["b"]))
        self.assertEqual(regressed(runs.direct, runs.proxied, skips, "s"), ["b"])
        # A skip whose test passes is reported even if it has a text.
        runs = Runs("s", results(a=PASSED), results(a=PASSED))
        self.assertEqual(names(judge(runs, skips[:1], 1).skips_that_pass), ["a"])

    def test_a_skip_may_expect_one_of_several_texts(self):
        text = """
            [[skip]]
            suite = "s"
            tests = ["a", "b", "c"]
            reason = "because"
            said = ["in one server's words", "in another's"]
            """
        runs = Runs("s", results(a=PASSED, b=PASSED, c=PASSED, d=PASSED), {"d": Result(PASSED)})
        for test, message in [("a", "said in one server's words"), ("b", "said in another's"), ("c", "said otherwise")]:
            runs.proxied[test] = Result(FAILED, message)
        verdict = judge(runs, read_skips(text), 1)
        self.assertEqual((names(verdict.skipped_with_reason), names(verdict.regressions)), (["a", "b"], ["c"]))

    def test_a_skip_holds_where_it_says(self):
        """A skip with kinds of servers holds for these. A skip without kinds holds for all."""
        text = """
            [[skip]]
            suite = "s"
            test = "a"
            reason = "because"
            kinds = ["cluster"]
            [[skip]]
            suite = "s"
            test = "b"
            reason = "because"
        """
        tests = {kind: [skip.test for skip in read_skips(text, kind)] for kind in ("server", "cluster")}
        self.assertEqual(tests, {"server": ["b"], "cluster": ["a", "b"]})

    def test_direct_failure_does_not_count(self):
        """A test that fails directly, once or twice, is reported apart from the others."""
        direct = results(a=FAILED, b=FAILED, c=PASSED)
        runs = Runs("s", direct, results(a=FAILED, b=FAILED, c=PASSED), direct_again=results(a=FAILED, b=PASSED))
        verdict = judge(runs, [], 1)
        self.assertTrue(verdict.good())
        self.assertEqual((names(verdict.failed_directly), names(verdict.flaky_directly)), (["a"], ["b"]))
        self.assertEqual(verdict.passed_directly, 1)

    def test_direct_pass_at_the_second_run_counts(self):
        """The minimum finds tests that do not run. A test that passed when run again did run."""
        runs = Runs("s", results(a=FAILED, b=FAILED, c=PASSED), results(c=PASSED), direct_again=results(a=FAILED, b=PASSED))
        self.assertEqual(judge(runs, [], 2).too_few, "")
        self.assertEqual(judge(runs, [], 3).too_few, "2 tests passed directly, at least 3 should")

    def test_a_proxied_failure_that_passes_again_is_flaky(self):
        """A failure through respool is flaky if the second run passes, else a regression."""
        runs = Runs("s", results(a=PASSED, b=PASSED), results(a=FAILED, b=FAILED), proxied_again=results(a=PASSED, b=FAILED))
        verdict = judge(runs, [], 1)
        self.assertEqual((names(verdict.flaky_proxied), names(verdict.regressions)), (["a"], ["b"]))
        self.assertEqual(verdict.passed_proxied, 1)

    def test_a_suite_that_ran_too_little_fails(self):
        """A suite that ran no test, or too few, fails even if all of them passed."""
        self.assertFalse(judge(Runs("s", {}, {}), [], 0).good())
        self.assertFalse(judge(Runs("s", results(a=PASSED), results(a=PASSED)), [], 2).good())
        self.assertFalse(judge(Runs("s", results(a=FAILED), results(a=FAILED)), [], 1).good())

    def test_trouble_beside_the_tests_fails(self):
        """A respool that panicked fails the run although every test passed."""
        runs = Runs("s", results(a=PASSED), results(a=PASSED), trouble=["respool ended with 101"])
        self.assertFalse(judge(runs, [], 1).good())


class Skips(unittest.TestCase):
    def test_a_stale_skip_is_found(self):
        """A skip is stale if its test does not exist or was skipped by the suite."""
        runs = [Runs("s", results(a=PASSED, b=SKIPPED, c=FAILED), {})]
        skips = [Skip("s", name, "because") for name in ["a", "b", "c", "gone"]] + [Skip("other", "a", "because")]
        self.assertEqual([(s.suite, s.test) for s in stale_skips(skips, runs)], [("s", "b"), ("s", "gone"), ("other", "a")])
        by_chance = [Skip("s", name, "because", by_chance=True) for name in ["b", "gone"]]
        self.assertEqual([s.test for s in stale_skips(by_chance, runs)], ["gone"])
        self.assertFalse(report.good([judge(Runs("s", results(a=PASSED), results(a=PASSED)), [], 1)], skips[3:4]))

    def test_only_a_star_is_special(self):
        """Brackets, dots and question marks of a test's name stand for themselves."""
        self.assertTrue(Skip("s", "t[a-?]*", "r").names("s", "t[a-?] and more"))
        self.assertFalse(Skip("s", "t[ab]", "r").names("s", "ta"))
        self.assertFalse(Skip("s", "t.a", "r").names("s", "t-a"))
        self.assertFalse(Skip("s", "t", "r").names("s", "ta"))

    def test_a_skip_without_a_reason_is_refused(self):
        """skips.toml is refused if a skip lacks its reason, its test or its suite, or has an unknown word."""
        good = '[[skip]]\nsuite = "s"\ntests = ["a", "b"]\nreason = "because"\n'
        self.assertEqual([s.test for s in read_skips(good)], ["a", "b"])
        for bad in [good.replace("because", " "), good.replace("tests", "test_s"), good.replace("suite", "sweet"), good + "x = 1\n"]:
            with self.assertRaises(ValueError):
                read_skips(bad)

    def test_only_failures_through_respool_run_again(self):
        """A test runs again if it passed directly, failed through respool, and has no skip."""
        direct = results(a=PASSED, b=PASSED, c=FAILED, d=PASSED, e=PASSED)
        proxied = results(a=PASSED, b=FAILED, c=FAILED, e=FAILED)
        self.assertEqual(regressed(direct, proxied, [Skip("s", "e", "r")], "s"), ["b", "d"])


class Reported(unittest.TestCase):
    def test_report_names_the_failures(self):
        """The text and the JSON name the regression, and the last line counts it."""
        verdict = judge(Runs("s", results(a=PASSED, b=PASSED), results(a=PASSED, b=FAILED)), [], 1)
        text = report.as_text([verdict], [], {"server": "x"})
        self.assertIn("FAIL s: 1 pass directly and not through respool\n  b\n", text)
        self.assertTrue(text.endswith("conformance: 1 passed, 1 failed, 0 skipped\n"))
        self.assertIn('"good": false', report.as_json([verdict], [], {}))

    def test_a_run_of_nothing_is_no_success(self):
        """A run without a suite fails."""
        self.assertFalse(report.good([], []))


if __name__ == "__main__":
    unittest.main()
