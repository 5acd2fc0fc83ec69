"""Jedis' own tests, with plain Jedis and with the Java binding of respool.

The sources of the tests are not published in Maven Central. So this clones the tag of Jedis that
bindings/java/pom.xml names. JEDIS_SOURCES names a folder with these sources instead. The copy has a
few changed lines: it gets its clients from RespoolSide.java.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import xml.etree.ElementTree

from compare import FAILED, PASSED, SKIPPED, Result
from suites.processes import run_bounded, run_checked

REPOSITORY = "https://github.com/redis/jedis"
BINDING = pathlib.Path(__file__).resolve().parents[2] / "bindings/java"
SIDE = pathlib.Path(__file__).with_name("RespoolSide.java")
UNIT_SECONDS_MAX = 900
TEST_SECONDS_MAX = 20
# A command line has room for this number of tests. For more of them the whole unit runs again.
NAMED_MAX = 300
# The password of the server in Jedis' tests. Some of them have it as a literal.
PASSWORD = "foobared"

# Tests of several servers, and tests that need a module built from C.
OTHERS = r".*\.(Cluster|Sentinel|Failover|Migrate|Module)\w*"
# Packages of tests that need modules.
MODULES = ["bloom", "json", "search", "timeseries"]

COMMANDS = "src/test/java/redis/clients/jedis/commands"
# File, pattern, replacement, and how often the pattern occurs.
CHANGES = [
    (
        f"{COMMANDS}/jedis/JedisCommandsTestBase.java",
        r"new Jedis\(endpoint\.getHostAndPort\(\), ",
        "new Jedis(RespoolSide.sockets(endpoint), ",
        2,
    ),
    (
        # The second client of the tests.
        f"{COMMANDS}/jedis/ClientCommandsTest.java",
        r"new Jedis\(endpoint\.getHostAndPort\(\),",
        "new Jedis(RespoolSide.sockets(endpoint),",
        5,
    ),
    (
        f"{COMMANDS}/unified/client/RedisClientCommandsTestHelper.java",
        r"return RedisClient\.builder\(\)\.hostAndPort\((\w+)\.getHostAndPort\(\)\)",
        r"if (RespoolSide.isRespool()) return RespoolSide.client(\1, redisProtocol);\n    \g<0>",
        2,
    ),
    (
        # A test that waits for its subscription to be closed has five minutes.
        f"{COMMANDS}/jedis/PublishSubscribeCommandsTest.java",
        r"@Timeout\(value = 5, unit = TimeUnit.MINUTES\)",
        f"@Timeout({TEST_SECONDS_MAX})",
        1,
    ),
    (
        f"{COMMANDS}/commandobjects/CommandObjectsTestBase.java",
        r"new DefaultCommandExecutor\(connectionProvider\)",
        r"RespoolSide.executor(endpoint, protocol, \g<0>)",
        1,
    ),
]

DEPENDENCY = """
		<dependency>
			<groupId>io.respool</groupId>
			<artifactId>respool</artifactId>
			<version>0</version>
			<scope>system</scope>
			<systemPath>{jar}</systemPath>
		</dependency>
"""


class Jedis:
    """A unit is a package of tests. The name of a test is its class, its parameters and its method."""

    starts_servers = False
    several_args = []

    def __init__(self, settings, pins, cache):
        self.settings = settings
        self.console_version = pins["jedis"]["junit-console"]
        self.version = re.search(r"<jedis.version>(.*)</", (BINDING / "pom.xml").read_text()).group(1)
        self.cache = cache
        self.source = cache / f"jedis-{self.version}"
        self.ids = {}

    def prepare(self, _requirements):
        """Clones and builds the tests, unless the cache has them, and finds the binding."""
        jars = sorted((BINDING / "target").glob("respool-*.jar"))
        if not jars:
            raise RuntimeError(f"{BINDING}/target has no jar: run make java")
        self.jar = jars[-1]
        of = json.dumps([self.version, self.console_version, CHANGES, SIDE.read_text(), os.environ.get("JEDIS_SOURCES")])
        stamp = self.source / "built-of"
        if not stamp.exists() or stamp.read_text() != of:
            self.build()
            stamp.write_text(of)
        self.classpath = (self.source / "classpath").read_text()

    def build(self):
        shutil.rmtree(self.source, ignore_errors=True)
        named = os.environ.get("JEDIS_SOURCES")
        if named:
            shutil.copytree(named, self.source)
        else:
            run_checked(["git", "clone", "--quiet", "--depth", "1", "--branch", f"v{self.version}", REPOSITORY, self.source])
        for name, pattern, replacement, count in CHANGES:
            path = self.source / name
            text, changed = re.subn(pattern, replacement, path.read_text(encoding="utf-8"))
            if changed != count:
                raise RuntimeError(f"{name} has {pattern} {changed} times and not {count} times")
            text = text.replace("\nimport ", "\nimport redis.clients.jedis.RespoolSide;\nimport ", 1)
            path.write_text(text, encoding="utf-8")
        shutil.copy(SIDE, self.source / "src/test/java/redis/clients/jedis")
        pom = self.source / "pom.xml"
        text = pom.read_text(encoding="utf-8")
        head, tail = split_pom(text)
        pom.write_text(f"{head}{DEPENDENCY.format(jar=self.jar)}{tail}", encoding="utf-8")
        maven = ["mvn", "-q", "-B", "-Dformatter.skip"]
        classpath = ["dependency:build-classpath", f"-Dmdep.outputFile={self.source}/classpath"]
        run_checked([*maven, "test-compile", *classpath], cwd=self.source)
        console = f"org.junit.platform:junit-platform-console-standalone:{self.console_version}"
        run_checked([*maven, "dependency:copy", f"-Dartifact={console}", f"-DoutputDirectory={self.source}"], cwd=self.source)

    def run(self, unit, side, only, folder):
        """Runs all or some tests of a package in one virtual machine."""
        folder.mkdir(parents=True, exist_ok=True)
        set_password(side.port)
        endpoints = folder / "endpoints.json"
        endpoint = {"tls": False, "password": PASSWORD, "endpoints": [f"redis://127.0.0.1:{side.port}"]}
        endpoints.write_text(json.dumps({"standalone0": endpoint}))
        is_respool = "true" if side.name == "proxied" else "false"
        classes = [self.source / "target/test-classes", self.source / "target/classes", self.classpath, self.jar]
        command = ["java", f"-Dconformance.respool={is_respool}", "-jar"]
        command += [self.source / f"junit-platform-console-standalone-{self.console_version}.jar", "execute"]
        command += ["--class-path", ":".join(map(str, classes)), "--reports-dir", folder]
        command += ["--details", "none", "--disable-banner", "--disable-ansi-colors"]
        command += ["--config", f"junit.jupiter.execution.timeout.default={TEST_SECONDS_MAX}s"]
        # A test that ignores its interrupt does not delay the others.
        command += ["--config", "junit.jupiter.execution.timeout.thread.mode.default=SEPARATE_THREAD"]
        ids = [self.ids[test] for test in only or [] if test in self.ids]
        if 0 < len(ids) <= NAMED_MAX:
            command += [word for one in ids for word in ("--select-unique-id", one)]
        else:
            command += ["--select-package", unit, "--exclude-classname", OTHERS, "--include-classname", ".*"]
            command += [word for name in MODULES for word in ("--exclude-package", f"{unit}.{name}")]
        environment = {"REDIS_ENDPOINTS_CONFIG_PATH": str(endpoints), "TEST_ENV_PROVIDER": "oss-source"}
        trouble = run_bounded(command, UNIT_SECONDS_MAX, folder / "output.log", environment, self.source)
        results = {}
        for report in folder.glob("TEST-*.xml"):
            for test, one, result in read_report(report):
                self.ids[test] = one
                results[test] = result
        return results, trouble


def split_pom(text):
    """The pom before and after the end of its list of dependencies, which follows the managed ones."""
    end = re.search(r"</dependencyManagement>.*?(</dependencies>)", text, re.DOTALL)
    return text[: end.start(1)], text[end.start(1) :]


def set_password(port):
    with socket.create_connection(("127.0.0.1", port)) as server:
        server.sendall(f"CONFIG SET requirepass {PASSWORD}\r\n".encode())
        reply = server.recv(100)
    if not reply.startswith(b"+OK"):
        raise RuntimeError(f"the server takes no password: {reply}")


def read_report(path):
    """The name, the unique id and the result of each test in a report of JUnit."""
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        said = "".join(part.text or "" for part in case.findall("system-out"))
        one = re.search(r"unique-id: (.*)", said).group(1).strip()
        broken = next((part for name in ("failure", "error") for part in case.findall(name)), None)
        if broken is not None:
            result = Result(FAILED, f"{broken.get('type')}: {broken.get('message')}"[:2000])
        else:
            result = Result(SKIPPED if case.find("skipped") is not None else PASSED)
        result.seconds = float(case.get("time", "0").replace(",", ""))
        yield name_of(one), one, result


def name_of(one):
    """The short name of a test: GeoCommandsTest#2::geoadd for the second parameters of a class."""
    name = ""
    for kind, value in re.findall(r"\[([a-z-]+):((?:[^\[\]]|\[\])*)\]", one):
        if kind in ("class", "class-template"):
            name += value.rsplit(".", 1)[1]
        elif kind == "nested-class":
            name += f".{value}"
        elif kind in ("method", "test-template"):
            name += f"::{value.removesuffix('()')}"
        elif kind.endswith("-invocation"):
            name += value
    return name
