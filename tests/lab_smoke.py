"""The experiment at its smallest: it ends well, writes its files, and they hold what they should. Never how fast.

Usage: lab_smoke.py RESPOOL_LAB
"""

import json
import pathlib
import subprocess
import sys
import tempfile

CASES = 10  # SET and GET, one by one and by 20, direct and proxied; and two with three threads


def main():
    lab = pathlib.Path(sys.argv[1]).resolve()
    respool = lab.with_name("respool")
    check(respool.exists(), f"{respool} is built")
    with tempfile.TemporaryDirectory(prefix="respool-") as folder:
        folder = pathlib.Path(folder) / "out"
        command = [lab, "eight", "--rounds=1", "--seconds=0.3", "--warmup=0.1", f"--respool={respool}", f"--out={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        print(done.stdout)
        check(done.returncode == 0, f"it ends with 0, not {done.returncode}: {done.stderr}")

        report = json.loads((folder / "report.json").read_text())
        check(len(report["cases"]) == CASES, f"report.json has {CASES} cases")
        rounds = (folder / "rounds.csv").read_text().splitlines()
        check(len(rounds) == 1 + CASES, "rounds.csv has a header and a line for each case")
        page = (folder / "report.html").read_text()
        check(page.count("<figure") > CASES, "report.html has a picture for each case and of them all")
        check("src=" not in page and "href=\"http" not in page, "report.html needs no other file")
        check((folder / "table.txt").read_text() in done.stdout, "the terminal shows table.txt")
    print("lab smoke: ok")


def check(holds, claim):
    if not holds:
        sys.exit(f"lab smoke: FAILED: {claim}")


main()
