"""Each promise of docs/guarantees.md has tests in docs/guarantees.toml, and each test exists.

A promise is one list item: `- **order-1**: One sentence. [Details](page.md)`. The checks:
- ids are unique, and there are at most 80;
- both files have the same ids in the same order;
- each id has a test, and each test is a function with `#[test]` in the crate that it names.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMISES_MAX = 80

PROMISE = re.compile(r"^- \*\*([a-z]+-[0-9]+)\*\*: ((?:.|\n  )+)$", re.MULTILINE)
DETAILS = re.compile(r"\s+\[Details\]\([^)]+\)$")
TEST = re.compile(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn ([a-z0-9_]+)\(")


def sentences(text):
    """The sentences of a promise, without the link to its details."""
    return re.split(r"\.\s", DETAILS.sub("", text.strip()).rstrip("."))


def tests_of(crate):
    sources = (ROOT / "crates" / crate).glob("**/*.rs")
    return {name for path in sources for name in TEST.findall(path.read_text())}


def problems(page, table):
    promises = PROMISE.findall(page)
    ids = [name for name, _ in promises]
    if not ids:
        yield "guarantees.md has no promise"
    if len(ids) > PROMISES_MAX:
        yield f"guarantees.md has {len(ids)} promises: merge some, {PROMISES_MAX} at most"
    if page.count("\n- ") != len(ids):
        yield "guarantees.md has a list item that is no promise: `- **id-1**: Sentence.`"
    for name in sorted({name for name in ids if ids.count(name) > 1}):
        yield f"{name} stands twice in guarantees.md"
    for name, text in promises:
        if len(sentences(text)) != 1:
            yield f"{name} is more than one sentence: move its details to the linked page"
    for name in set(ids) - set(table):
        yield f"{name} has no tests: add it to guarantees.toml"
    for name in set(table) - set(ids):
        yield f"{name} of guarantees.toml is no promise in guarantees.md"
    if set(ids) == set(table) and ids != list(table):
        yield "guarantees.toml has another order than guarantees.md"
    known = {}
    for name, tests in table.items():
        if not tests:
            yield f"{name} has no tests in guarantees.toml"
        for test in tests:
            crate, _, function = test.partition("::")
            if function not in known.setdefault(crate, tests_of(crate)):
                yield f"{name} names the test {test}, which does not exist"


def main():
    page = (ROOT / "docs/guarantees.md").read_text()
    table = tomllib.loads((ROOT / "docs/guarantees.toml").read_text())
    found = list(problems(page, table))
    if found:
        sys.exit("guarantees: " + "\nguarantees: ".join(found))
    tests = {test for tests in table.values() for test in tests}
    print(f"guarantees: ok, {len(table)} promises, {len(tests)} tests")


main()
