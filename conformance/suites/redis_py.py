"""redis-py's own tests, from its source distribution."""

import json
import os
import shutil
import sys
import tarfile

from compare import FAILED, PASSED, SKIPPED, Result
from suites.processes import checked_sha256, run_bounded, run_checked

# Tests of other set-ups than one server: modules, Cluster, TLS, identity providers.
MARKS = "not redismod and not ssl and not cp_integration and not multidb_integration"
TEST_SECONDS_MAX = 20
UNIT_SECONDS_MAX = 900


class RedisPy:
    """A unit is a file of tests; a test is named as pytest names it."""

    starts_servers = False
    # What respool is told where several servers stand behind it, and somebody may take a server's place. What a server refuses for
    # a while (LOADING, READONLY) is asked again until its deadline, and then its client gets the server's word: here before the
    # client itself gives up, after 5 seconds.
    several_args = ["--request-timeout-ms=3s"]

    def __init__(self, settings, pins, cache):
        self.settings = settings
        self.pin = pins["redis-py"]
        self.cache = cache
        self.source = cache / f"redis-{self.pin['version']}"
        self.python = cache / "venv" / "bin" / "python"

    def prepare(self, requirements):
        """Downloads the suite and what it needs, unless the cache has them."""
        installed = self.cache / "venv" / "installed.txt"
        if not installed.exists() or installed.read_text() != requirements.read_text():
            run_checked([sys.executable, "-m", "venv", "--clear", str(self.cache / "venv")])
            run_checked([self.python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-r", str(requirements)])
            installed.write_text(requirements.read_text())
        if self.source.exists():
            return
        archive = self.cache / f"redis-{self.pin['version']}.tar.gz"
        if not archive.exists():
            pip = [self.python, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
            run_checked([*pip, "--no-binary", "redis", "-d", str(self.cache), f"redis=={self.pin['version']}"])
        checked_sha256(archive, self.pin["sha256"])
        unpacked = self.cache / "unpacking-redis-py"
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
        (unpacked / self.source.name).rename(self.source)
        shutil.rmtree(unpacked)

    def run(self, unit, side, only, folder):
        """Runs a file of tests, or only some of its tests, and says what became of each."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = folder / "results.jsonl"
        lines.unlink(missing_ok=True)
        command = [str(self.python), "-m", "pytest", "-q", "-p", "suites.pytest_results"]
        only_one = "not onlynoncluster" if self.settings.get("cluster-clients") else "not onlycluster"
        command += ["-m", f"{MARKS} and {only_one}"]
        command += ["-o", f"cache_dir={folder}/pytest-cache", "--tb=short", "--timeout", str(TEST_SECONDS_MAX)]
        # Nobody listens on port 1: what wants TLS or modules is told so at once.
        command += ["--redis-url", f"redis://127.0.0.1:{side.port}/0", "--redis-ssl-url", "rediss://127.0.0.1:1"]
        # The suite waits for so many nodes of a Cluster: the servers are six, and respool is one.
        command += ["--redis-cluster-nodes", "1" if side.respool else "6"]
        command += ["--redis-mod-url", "redis://127.0.0.1:1", "--sentinels", "127.0.0.1:1"]
        command += ["--protocol", str(self.settings["protocol"])]
        for test in self.settings.get("leave-out", []):
            command += ["--deselect", test]
        # A command line has an end: for very many the whole file is run again.
        command += only if only and len(only) <= 500 else [unit]
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {"PYTHONPATH": f"{self.source}:{here}", "PYTHONDONTWRITEBYTECODE": "1", "CONFORMANCE_RESULTS": str(lines)}
        if self.settings.get("cluster-clients"):
            environment["CONFORMANCE_CLUSTER_CLIENTS"] = "yes"
        trouble = run_bounded(command, UNIT_SECONDS_MAX, folder / "output.log", environment, self.source)
        return read_results(lines), trouble


def read_results(path):
    """The phases of each test, made one: failed if any failed, skipped if any was skipped, else passed."""
    results = {}
    if not path.exists():
        return results
    for line in path.read_text(encoding="utf-8").splitlines():
        phase = json.loads(line)
        result = results.setdefault(phase["test"], Result(PASSED))
        result.seconds += phase["seconds"]
        if phase["status"] == FAILED and result.status != FAILED:
            result.status, result.message = FAILED, phase["message"]
        elif phase["status"] == SKIPPED and result.status == PASSED:
            result.status = SKIPPED
    return results
