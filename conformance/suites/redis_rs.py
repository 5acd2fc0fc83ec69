"""redis-rs' own tests, from its crate.

Each test starts a server with the program `redis-server` in PATH. Through respool, that program is
server_or_respool.py: it starts the server and becomes a respool before it.
"""

import json
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile
import time

from compare import FAILED, PASSED, SKIPPED, Result
from sides import server_args, server_program, servers
from suites.processes import checked_sha256, run_bounded, run_checked

TEST_SECONDS_MAX = 30
FEATURES = "tokio-comp,connection-manager,cache-aio,json,r2d2"
# The support code of the tests asks for the client of a Cluster as soon as there is TLS.
TLS_FEATURES = "cluster-async,tls-rustls-insecure,tokio-rustls-comp"

# The published crate lacks two crates that its tests use. One of them is published separately. The
# other one, a macro, is not published: our crate async_test replaces it.
ADDED = """
[dev-dependencies.redis-test]
version = "={test_version}"

[dev-dependencies.test-macros]
path = "{macros}"

[patch.crates-io.redis]
path = "."
"""

# A stand-in for openssl that makes keys of 2,048 bits instead of 4,096.
SHORT_KEYS = """#!/bin/sh
for word do
    shift
    [ "$word" = 4096 ] && word=2048
    set -- "$@" "$word"
done
exec "{openssl}" "$@"
"""


class RedisRs:
    """A unit is a test program. The name of a test is its unit and its path in the unit."""

    starts_servers = True
    several_args = []

    def __init__(self, settings, pins, cache):
        self.settings = settings
        self.pin = pins["redis-rs"]
        self.cache = cache
        self.tls = settings.get("tls", False)
        self.features = f"{FEATURES},{TLS_FEATURES}" if self.tls else FEATURES
        self.source = cache / f"redis-rs-{self.pin['version']}{'-tls' if self.tls else ''}"
        self.programs = {}

    def prepare(self, _requirements):
        """Downloads the crate and builds its tests, unless the cache has them."""
        macros = pathlib.Path(__file__).with_name("async_test")
        units = sorted(set(sum(self.settings["units"].values(), [])))
        stamp = self.source / "programs.json"
        made_of = json.dumps([self.pin, self.features, ADDED, units, (macros / "src/lib.rs").read_text()])
        if stamp.exists():
            made = json.loads(stamp.read_text())
            if made["of"] == made_of and all(pathlib.Path(path).exists() for path in made["programs"].values()):
                self.programs = made["programs"]
                return
        shutil.rmtree(self.source, ignore_errors=True)
        with tarfile.open(self.download()) as tar:
            tar.extractall(self.cache / "unpacking-redis-rs", filter="data")
        (self.cache / "unpacking-redis-rs" / f"redis-{self.pin['version']}").rename(self.source)
        shutil.rmtree(self.cache / "unpacking-redis-rs")
        shutil.copytree(macros, self.source / "async_test")
        with open(self.source / "Cargo.toml", "a", encoding="utf-8") as file:
            file.write(ADDED.format(test_version=self.pin["test-version"], macros="async_test"))
        command = ["cargo", "test", "--no-run", "--features", self.features, "--message-format", "json", "--quiet"]
        command += [word for unit in units for word in ("--test", unit)]
        # The suite has its own target folder: respool's folder may be in use, and holds crates of
        # another lock file.
        environment = {**os.environ, "CARGO_TARGET_DIR": str(self.cache / "redis-rs-target"), "CARGO_PROFILE_TEST_DEBUG": "0"}
        for line in run_checked(command, cwd=self.source, env=environment).splitlines():
            built = json.loads(line)
            if built.get("executable") and built["target"]["kind"] == ["test"]:
                self.programs[built["target"]["name"]] = built["executable"]
        stamp.write_text(json.dumps({"of": made_of, "programs": self.programs}))

    def download(self):
        """The crate as published, in cargo's cache."""
        name = f"redis-{self.pin['version']}.crate"
        home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
        with tempfile.TemporaryDirectory(prefix="respool-") as folder:
            folder = pathlib.Path(folder)
            (folder / "src").mkdir()
            (folder / "src/lib.rs").touch()
            package = '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n'
            (folder / "Cargo.toml").write_text(f'{package}[dependencies]\nredis = "={self.pin["version"]}"\n')
            run_checked(["cargo", "fetch", "--quiet"], cwd=folder)
        found = sorted(home.glob(f"registry/cache/*/{name}"))
        if not found:
            raise RuntimeError(f"cargo has fetched {name}, but it is not in {home}/registry/cache")
        archive = shutil.copy(found[0], self.cache / name)
        checked_sha256(pathlib.Path(archive), self.pin["sha256"])
        return archive

    def run(self, unit, side, only, folder):
        """Runs all or some tests of a program, each in its own process.

        So a test that hangs does not delay the others.
        """
        folder.mkdir(parents=True, exist_ok=True)
        program = self.programs[unit]
        named = [test.split("::", 1)[1] for test in only] if only else list_tests(program)
        left_out = self.settings.get("leave-out", [])
        results, trouble = {}, ""
        with tempfile.TemporaryDirectory(prefix="respool-") as temporary:
            started = pathlib.Path(temporary)
            environment = self.environment(side, started)
            for name in named:
                if name in left_out:
                    continue
                log = folder / f"{name.replace('::', '.')}.log"
                began = time.monotonic()
                late = run_bounded([program, "--exact", name], TEST_SECONDS_MAX, log, environment, self.source)
                results[f"{unit}::{name}"] = read_libtest(log, late, time.monotonic() - began)
            for said in started.glob("respool-*.log"):
                text = said.read_text(errors="replace")
                if "panicked at" in text:
                    trouble = f"a respool panicked:\n{text}"
        return results, trouble

    def environment(self, side, folder):
        """The environment of the tests: the replacement of redis-server, and its settings."""
        stand_in = folder / "redis-server"
        ours = pathlib.Path(__file__).with_name("server_or_respool.py")
        stand_in.write_text(f"#!/bin/sh\nexec {sys.executable} -B {ours} \"$@\"\n")
        stand_in.chmod(0o755)
        if self.tls:
            # Each test makes a CA. A key of 4,096 bits takes seconds.
            openssl = folder / "openssl"
            openssl.write_text(SHORT_KEYS.format(openssl=shutil.which("openssl") or "/usr/bin/openssl"))
            openssl.chmod(0o755)
        return {
            "PATH": f"{folder}:{os.environ.get('PATH', '')}",
            "REDISRS_SERVER_BIN": str(stand_in),
            "REDISRS_SERVER_TYPE": "tcp+tls" if self.tls else "tcp",
            "PROTOCOL": f"RESP{self.settings['protocol']}",
            "RUST_BACKTRACE": "0",
            "TMPDIR": str(folder),
            "CONFORMANCE_SERVER": server_program(side.server_name),
            "CONFORMANCE_SERVER_ARGS": json.dumps(server_args(side.server_name)),
            "CONFORMANCE_RESPOOL": servers.respool_program() if side.name == "proxied" else "",
            "CONFORMANCE_RESPOOL_ARGS": json.dumps(self.settings.get("respool-args", [])),
            "CONFORMANCE_FOLDER": str(folder),
        }


def list_tests(program):
    """The names of a program's tests."""
    lines = run_checked([program, "--list", "--format", "terse"]).splitlines()
    return [line.removesuffix(": test") for line in lines if line.endswith(": test")]


def read_libtest(path, late, seconds):
    """The result of the one test that ran."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if late:
        return Result(FAILED, f"it did not end within {TEST_SECONDS_MAX} s", seconds)
    if "test result: ok. 1 passed" in text:
        return Result(PASSED, "", seconds)
    if "test result: ok. 0 passed; 0 failed; 1 ignored" in text:
        return Result(SKIPPED, "", seconds)
    said = text.split("stdout ----\n", 1)[-1].split("\nfailures:\n", 1)[0]
    return Result(FAILED, said.strip()[:2000], seconds)
