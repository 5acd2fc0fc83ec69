"""Every test that docs/guarantees.md names is there, under that name: a promise whose test was renamed or removed fails here."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main():
    text = (ROOT / "docs/guarantees.md").read_text()
    named = set(re.findall(r"`(?:[\w.]+::)*([a-z][a-z0-9]*(?:_[a-z0-9]+){3,})`", text))
    sources = "".join(path.read_text() for path in (ROOT / "crates").glob("**/*.rs"))
    there = set(re.findall(r"\bfn ([a-z0-9_]+)\(", sources))
    missing = sorted(named - there)
    if not named or missing:
        sys.exit(f"docs/guarantees.md names tests that are not there: {missing}")
    print(f"guarantees: ok, {len(named)} tests named")


main()
