#!/usr/bin/env python3
"""The ratios of several runs of `respool-lab eight` in one table, as docs/measured.md has it: tools/ratios.py DIR...

Each folder has the report.json of one run. A ratio is taken within each round, to the server asked directly and to the echo
server in the same round; the table shows medians.
"""

import json
import pathlib
import statistics
import sys

HEAD = ["server", "generator", "case", "conns", "requests/s ÷", "p50 ÷", "server CPU ÷", "proxy CPU ÷ floor", "rounds"]


def main():
    rows = [HEAD]
    for folder in sys.argv[1:] or sys.exit(__doc__):
        report = json.loads((pathlib.Path(folder) / "report.json").read_text())
        by_target = {}
        for case in report["cases"]:
            target = case["case"]["target"]["kind"]
            rounds = {r["number"]: r for r in case["rounds"]}
            # Of those with more workers than others, the first.
            by_target.setdefault(json.dumps(case["case"]["workload"]), {}).setdefault(target, rounds)
        generator = report["generator"].rsplit(" ", 1)[0]
        for workload, targets in by_target.items():
            workload = json.loads(workload)
            verb = workload["verb"]
            name = verb if isinstance(verb, str) else f"MGET {verb['MGET']}"
            proxied, direct, floor = (targets.get(kind, {}) for kind in ("respool", "direct", "floor"))
            rows.append([
                report["server"]["version"],
                generator,
                f"{name} P{workload['pipeline']}",
                str(workload["connections"]),
                ratio(proxied, direct, lambda r: r["requests_per_s"]),
                ratio(proxied, direct, lambda r: dict(r["latency"]["percentiles"])[50.0]),
                ratio(proxied, direct, lambda r: r["server"]["used_s"] / r["requests"]),
                ratio(proxied, floor, lambda r: r["proxy"]["used_s"] / r["requests"]),
                str(len(proxied)),
            ])
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" if at < 3 else f"{cell:>{width}}" for at, (cell, width) in enumerate(zip(row, widths))))


def ratio(one, other, of):
    both = [of(one[number]) / of(other[number]) for number in one if number in other]
    return f"{statistics.median(both):.2f}" if both else ""


main()
