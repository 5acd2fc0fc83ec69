"""go-redis' own tests, from its Go module: Ginkgo specs, and plain tests such as "Truth"."""

import collections
import json
import pathlib
import re
import shutil

from compare import FAILED, PASSED, SKIPPED, Result
from suites.processes import run_bounded, run_checked

MODULE = "github.com/redis/go-redis/v9"
UNIT_SECONDS_MAX = 580
ONLY_MAX = 300

# The changes in the tested copy: old text, new text, and the number of places.
EDITS = {
    "main_test.go": [
        # The port of the server under test.
        ('redisStackPort = "6379"', 'redisStackPort = os.Getenv("REDIS_PORT")', 1),
        # Before and after all specs, the suite connects to shards, Sentinels and a Cluster on fixed
        # ports. The specs for those are not run.
        ("\tif !RECluster {\n", '\tif os.Getenv("REDIS_RING") != "" {\n', 2),
    ],
    # Clients without TLS get it, if the suite runs with TLS: conformance_tls.go.
    "options.go": [("func (opt *Options) init() {\n", "func (opt *Options) init() {\n\topt.conformanceTLS()\n", 1)],
}
OURS = ["conformance_test.go", "conformance_tls.go"]


class GoRedis:
    """A unit is a file of specs. A spec is named by its texts, and by a number if they repeat."""

    starts_servers = False
    # The clients of the suite wait longer than respool's default deadline.
    several_args = []

    def __init__(self, settings, pins, cache):
        self.settings = settings
        self.pin = pins["go-redis"]
        self.source = cache / f"go-redis-{self.pin['version']}"
        self.program = cache / f"go-redis-{self.pin['version']}.test"

    def prepare(self, _requirements):
        """Downloads the module, checks its sum and builds its tests, if they are not cached."""
        ours = [pathlib.Path(__file__).with_name(name) for name in OURS]
        stamp = self.program.with_suffix(".stamp")
        made_of = json.dumps([self.pin, EDITS, *(file.read_text() for file in ours)])
        if stamp.exists() and stamp.read_text() == made_of:
            return
        found = json.loads(run_checked(["go", "mod", "download", "-json", f"{MODULE}@{self.pin['version']}"]))
        if found["Sum"] != self.pin["sum"]:
            raise RuntimeError(f"{MODULE} is not the pinned one: its sum is {found['Sum']}, suites.toml has {self.pin['sum']}")
        shutil.rmtree(self.source, ignore_errors=True)
        # Go keeps modules read-only.
        run_checked(["cp", "-r", found["Dir"], self.source])
        run_checked(["chmod", "-R", "u+w", self.source])
        for name, edits in EDITS.items():
            text = (self.source / name).read_text()
            for old, new, times in edits:
                if text.count(old) != times:
                    raise RuntimeError(f"{name} of {MODULE} has {old!r} {text.count(old)} times, expected {times}")
                text = text.replace(old, new)
            (self.source / name).write_text(text)
        for file in ours:
            shutil.copy(file, self.source)
        run_checked(["go", "test", "-c", "-vet=off", "-o", self.program, "."], cwd=self.source)
        stamp.write_text(made_of)

    def run(self, unit, side, _only, folder):
        """Runs a whole file of specs: a spec depends on the data of earlier ones."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = folder / "results.jsonl"
        lines.unlink(missing_ok=True)
        command = [self.program, "-test.run", "^TestGinkgoSuite$", "--ginkgo.no-color", "--ginkgo.seed=1"]
        command += [f"--ginkgo.timeout={UNIT_SECONDS_MAX - 20}s", f"--ginkgo.focus-file=/{re.escape(unit)}$"]
        if left_out := self.settings.get("leave-out"):
            command += [f"--ginkgo.skip={'|'.join(left_out)}"]
        environment = {**self.environment(side), "CONFORMANCE_RESULTS": str(lines)}
        trouble = run_bounded(command, UNIT_SECONDS_MAX, folder / "output.log", environment, self.source)
        return read_specs(lines, unit), trouble

    def environment(self, side):
        """The environment of the suite: the server's port and version, and the CA of its certificate."""
        certificates = {"CONFORMANCE_CA": side.ca} if side.tls else {}
        return {"REDIS_PORT": str(side.port), "REDIS_VERSION": side.server_name.rsplit("-", 1)[1], **certificates}


class GoRedisTests(GoRedis):
    """A unit is an expression that names plain tests of Go."""

    def run(self, unit, side, only, folder):
        """Runs all or some tests that the expression names."""
        folder.mkdir(parents=True, exist_ok=True)
        pattern = unit
        if only and len(only) <= ONLY_MAX:
            # A subtest runs with its parent test.
            pattern = "^(" + "|".join(sorted({go_escape(test.split("/")[0]) for test in only})) + ")$"
        left_out = "^(" + "|".join(["TestGinkgoSuite", *self.settings.get("leave-out", [])]) + ")$"
        command = [self.program, "-test.run", pattern, "-test.skip", left_out, "-test.v=test2json", "-test.count=1"]
        command += ["-test.timeout", f"{UNIT_SECONDS_MAX - 20}s"]
        log = folder / "output.log"
        trouble = run_bounded(command, UNIT_SECONDS_MAX, log, self.environment(side), self.source)
        events = run_checked(["go", "tool", "test2json", "cat", log], cwd=self.source)
        return read_events(events), trouble


def read_specs(path, unit):
    """The specs that ran. A spec that Ginkgo's filters left out has no message."""
    results, seen = {}, collections.Counter()
    if not path.exists():
        return results
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        spec = json.loads(line)
        if spec["state"] in ("skipped", "pending"):
            if not spec["message"]:
                continue
            status = SKIPPED
        else:
            status = PASSED if spec["state"] == "passed" else FAILED
        name = f"{unit}: {spec['test']}"
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name} #{seen[name]}"
        results[name] = Result(status, spec["message"][:2000], spec["seconds"])
    return results


def read_events(text):
    """The tests of `go tool test2json`. A test without an end crashed the program."""
    results, output = {}, collections.defaultdict(list)
    for line in text.splitlines():
        event = json.loads(line)
        test, action = event.get("Test"), event["Action"]
        if not test:
            continue
        if action == "run":
            results[test] = Result(FAILED, "it did not end")
        elif action == "output":
            output[test].append(event["Output"])
        elif action in ("pass", "fail", "skip"):
            status = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}[action]
            message = "" if status == PASSED else "".join(output[test])[-2000:]
            results[test] = Result(status, message, event.get("Elapsed", 0.0))
    return results


def go_escape(text):
    """Like re.escape, in the dialect of Go, which refuses a backslash before a space."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)
