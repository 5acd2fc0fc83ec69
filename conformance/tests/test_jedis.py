"""Tests how the reports of Jedis' tests are read, with planted reports."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from compare import FAILED, PASSED, SKIPPED
from suites.jedis import name_of, read_report, split_pom

CLASS = "[engine:junit-jupiter]/[class-template:redis.clients.jedis.GeoTest]/[class-template-invocation:#2]"
REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="JUnit Jupiter" tests="4" skipped="1" failures="1" errors="1" time="1.5">
{cases}
</testsuite>
"""
CASE = """<testcase name="x()" classname="GeoTest" time="1,234.5">{inside}
<system-out><![CDATA[
unique-id: {id}
display-name: x()
]]></system-out></testcase>
"""


class Named(unittest.TestCase):
    def test_parameters_of_classes_and_methods_are_in_the_name(self):
        """Each invocation of a test has a name of its own."""
        self.assertEqual(name_of(f"{CLASS}/[method:geoadd()]"), "GeoTest#2::geoadd")
        template = f"{CLASS}/[test-template:dump(byte[], int)]/[test-template-invocation:#3]"
        self.assertEqual(name_of(template), "GeoTest#2::dump(byte[], int)#3")
        nested = "[engine:junit-jupiter]/[class:a.Outer]/[nested-class:Inner]/[method:m()]"
        self.assertEqual(name_of(nested), "Outer.Inner::m")


class Read(unittest.TestCase):
    def test_each_status_is_read(self):
        """A test has passed only if its report has no failure, no error and no skip."""
        insides = ["", '<failure type="T" message="said"/>', '<error type="E" message="broke"/>', "<skipped/>"]
        cases = [CASE.format(inside=inside, id=f"{CLASS}/[method:m{at}()]") for at, inside in enumerate(insides)]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "TEST-x.xml")
            path.write_text(REPORT.format(cases="".join(cases)), encoding="utf-8")
            found = {test: (one, result) for test, one, result in read_report(path)}
        self.assertEqual([found[f"GeoTest#2::m{at}"][1].status for at in range(4)], [PASSED, FAILED, FAILED, SKIPPED])
        self.assertEqual(found["GeoTest#2::m1"][1].message, "T: said")
        self.assertEqual(found["GeoTest#2::m3"][0], f"{CLASS}/[method:m3()]")
        self.assertEqual(found["GeoTest#2::m0"][1].seconds, 1234.5)


class Changed(unittest.TestCase):
    def test_the_binding_joins_the_dependencies_of_the_project(self):
        """The list of managed versions is another list."""
        managed = "<dependencyManagement><dependencies>m</dependencies></dependencyManagement>"
        head, tail = split_pom(f"{managed}<dependencies>own</dependencies><profiles><dependencies>p</dependencies>")
        self.assertEqual(head, f"{managed}<dependencies>own")
        self.assertEqual(tail, "</dependencies><profiles><dependencies>p</dependencies>")


if __name__ == "__main__":
    unittest.main()
