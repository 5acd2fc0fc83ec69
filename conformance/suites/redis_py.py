"""redis-py's own tests, from its source distribution."""

import json
import os
import pathlib
import shutil
import sys
import tarfile

from compare import FAILED, PASSED, SKIPPED, Result
from suites.processes import checked_sha256, run_bounded, run_checked

# Without the tests that need modules, TLS, identity providers or several databases.
MARKS = "not redismod and not ssl and not cp_integration and not multidb_integration"
TEST_SECONDS_MAX = 20
# The package respool, for suites with `library`.
LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "bindings/python/python"
UNIT_SECONDS_MAX = 900


class RedisPy:
    """A unit is a file of tests. Tests have their pytest names."""

    starts_servers = False
    # Options of a respool before several servers. A request that a server refuses for a while
    # (LOADING, READONLY) is sent again until its deadline. Then its client gets the server's error.
    # The client itself gives up after 5 seconds, so the deadline is shorter.
    several_args = ["--request-timeout-ms=3s"]

    def __init__(self, settings, pins, cache):
        self.settings = settings
        self.pin = pins["redis-py"]
        self.cache = cache
        self.source = cache / f"redis-{self.pin['version']}"
        self.python = cache / "venv" / "bin" / "python"

    def prepare(self, requirements):
        """Downloads the suite and its packages, if they are not cached."""
        if self.settings.get("library") and not list(LIBRARY.glob("respool/_respool*.so")):
            raise RuntimeError(f"{LIBRARY}/respool has no native library: run make python-library")
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
        """Runs all or some tests of a file, and returns the result of each."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = folder / "results.jsonl"
        lines.unlink(missing_ok=True)
        command = [str(self.python), "-m", "pytest", "-q", "-p", "suites.pytest_results"]
        only_one = "not onlynoncluster" if self.settings.get("cluster-clients") else "not onlycluster"
        command += ["-m", f"{MARKS} and {only_one}"]
        if side.tls:
            command += ["-p", "suites.pytest_tls"]
        is_library = self.settings.get("library") and side.name == "proxied"
        if is_library:
            command += ["-p", "suites.pytest_respool"]
        command += ["-o", f"cache_dir={folder}/pytest-cache", "--tb=short", "--timeout", str(TEST_SECONDS_MAX)]
        # Port 1 has no listener, so tests that need TLS or modules fail at once.
        command += ["--redis-url", f"redis://127.0.0.1:{side.port}/0", "--redis-ssl-url", "rediss://127.0.0.1:1"]
        # The suite waits for this number of Cluster nodes: six servers, or one respool.
        command += ["--redis-cluster-nodes", "1" if side.respool else "6"]
        command += ["--redis-mod-url", "redis://127.0.0.1:1", "--sentinels", "127.0.0.1:1"]
        command += ["--protocol", str(self.settings["protocol"])]
        for test in self.settings.get("leave-out", []):
            command += ["--deselect", test]
        # The length of a command line is bounded. For very many tests the whole file runs again.
        command += only if only and len(only) <= 500 else [unit]
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {"PYTHONPATH": f"{self.source}:{here}", "PYTHONDONTWRITEBYTECODE": "1", "CONFORMANCE_RESULTS": str(lines)}
        if is_library:
            environment["PYTHONPATH"] += f":{LIBRARY}"
        if side.tls:
            environment["CONFORMANCE_CA"] = side.ca
        if self.settings.get("cluster-clients"):
            environment["CONFORMANCE_CLUSTER_CLIENTS"] = "yes"
        trouble = run_bounded(command, UNIT_SECONDS_MAX, folder / "output.log", environment, self.source)
        return read_results(lines), trouble


def read_results(path):
    """One result for all phases of a test: failed before skipped, skipped before passed."""
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
