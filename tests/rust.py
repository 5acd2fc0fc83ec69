#!/usr/bin/env python3
"""Run `cargo test` with the arguments of this program. A test that fails runs once more, alone.

Tests of the real program wait for servers, timeouts and failovers. A machine that stops a process
for a second fails some of them. A test that passes alone is named at the end as flaky, and its
failure stays in the output: read it, because a rare fault of respool looks the same. The run fails
if a test fails twice, or if more than FLAKY_MAX tests are flaky.
"""

import os
import re
import subprocess
import sys

FLAKY_MAX = 2


def cargo_test(arguments, threads=None):
    """Runs cargo and passes its output on. Returns its exit code and the names of the tests that
    failed, or no names if a program ended without naming them.
    """
    environment = dict(os.environ)
    if threads is not None:
        environment["RUST_TEST_THREADS"] = str(threads)
    command = ["cargo", "test", *arguments]
    run = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    failed = set()
    listing = False
    unnamed = 0  # Programs that failed without a list of their tests.
    for line in run.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        # libtest ends with `failures:` and one indented name a line. Threads that print may divide
        # the line of a test, so its result there is no source.
        if re.match(r"error: (doc)?test failed, to rerun pass", line):
            unnamed += 1
        elif line.startswith("test result: FAILED"):
            unnamed -= 1
        if line.rstrip("\n") == "failures:":
            listing = True
        elif listing and (name := re.fullmatch(r"    (\S+)\n", line)):
            failed.add(name[1])
        elif line.strip():
            listing = False
    return run.wait(), failed if unnamed == 0 else set()


def main():
    arguments = sys.argv[1:]
    code, failed = cargo_test(arguments)
    if code == 0:
        return 0
    if not failed:
        print("tests: cargo failed before or beside its tests: see above")
        return code
    if len(failed) > FLAKY_MAX:
        print(f"tests: {len(failed)} tests failed: {', '.join(sorted(failed))}")
        return code
    print(f"tests: run again, alone: {', '.join(sorted(failed))}", flush=True)
    again, failed_again = cargo_test([*arguments, "--", "--exact", *sorted(failed)], threads=1)
    for name in sorted(failed - failed_again):
        print(f"tests: FLAKY: {name} failed, and passed alone")
    if again != 0:
        print(f"tests: failed twice: {', '.join(sorted(failed_again)) or 'cargo, see above'}")
    return again


if __name__ == "__main__":
    sys.exit(main())
