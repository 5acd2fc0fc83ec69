"""The verdicts as a table for people and as JSON for programs."""

import dataclasses
import json

LISTED_MAX = 400


def as_json(verdicts, stale, about):
    """All verdicts, test by test."""
    suites = [{**dataclasses.asdict(verdict), "good": verdict.good()} for verdict in verdicts]
    whole = {"about": about, "good": good(verdicts, stale), "suites": suites}
    whole["stale_skips"] = [dataclasses.asdict(skip) for skip in stale]
    return json.dumps(whole, indent=1)


def as_text(verdicts, stale, about):
    """The table, then the failures of each suite and the notes on it, then the stale skips."""
    lines = [f"{key}: {value}" for key, value in about.items()]
    heads = ["suite", "direct", "through respool", "skipped", "regressions", "flaky", "fail directly", "left out by suite"]
    rows = []
    for v in verdicts:
        flaky = len(v.flaky_proxied)
        failed = len(v.failed_directly) + len(v.flaky_directly)
        row = [v.suite, v.passed_directly, v.passed_proxied, len(v.skipped_with_reason), len(v.regressions)]
        rows.append([str(cell) for cell in [*row, flaky, failed, v.skipped_by_suite]])
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines.append("")
    for row in [heads, *rows]:
        cells = [row[0].ljust(widths[0])] + [row[i].rjust(widths[i]) for i in range(1, len(row))]
        lines.append("  ".join(cells))
    for v in verdicts:
        if v.too_few:
            lines.append(f"\nFAIL {v.suite}: {v.too_few}")
        _list(lines, "FAIL", v.suite, "went wrong beside the tests", [(text, "") for text in v.trouble])
        _list(lines, "FAIL", v.suite, "pass directly and not through respool", v.regressions)
        _list(lines, "FAIL", v.suite, "are in skips.toml and pass", v.skips_that_pass)
        _list(lines, "note", v.suite, "passed through respool only when run again", v.flaky_proxied)
        _list(lines, "note", v.suite, "skipped with a reason", v.skipped_with_reason)
        _list(lines, "note", v.suite, "fail directly", v.failed_directly)
        _list(lines, "note", v.suite, "passed directly only when run again", v.flaky_directly)
    _list(lines, "FAIL", "skips.toml", "name no test that ran", [(f"{s.suite}: {s.test}", s.reason) for s in stale])
    passed = sum(v.passed_proxied for v in verdicts)
    failed = sum(len(v.regressions) + len(v.skips_that_pass) + len(v.trouble) + bool(v.too_few) for v in verdicts)
    skipped = sum(len(v.skipped_with_reason) for v in verdicts)
    lines.append(f"\nconformance: {passed} passed, {failed + len(stale)} failed, {skipped} skipped")
    return "\n".join(lines) + "\n"


def good(verdicts, stale):
    """Whether the whole run passes."""
    return bool(verdicts) and all(verdict.good() for verdict in verdicts) and not stale


def _list(lines, kind, suite, label, pairs):
    if not pairs:
        return
    lines.append(f"\n{kind} {suite}: {len(pairs)} {label}")
    for test, text in pairs[:LISTED_MAX]:
        lines.append(f"  {test}" + (f"\n      {one_line(text)}" if text else ""))
    if len(pairs) > LISTED_MAX:
        lines.append(f"  ... and {len(pairs) - LISTED_MAX} more; the JSON has them all")


def one_line(text, width=200):
    """A message as one line of at most `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."
