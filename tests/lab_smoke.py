"""Runs the smallest experiments and checks their exit codes and files. It asserts no speed.

Usage: lab_smoke.py RESPOOL_LAB
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROUNDS_AGAINST = 12  # six quadruples: the fewest that make an interval
SMALL = ["--rounds=1", "--seconds=0.3", "--warmup=0.1"]

# Arguments, and cases that come of them.
EXPERIMENTS = [
    (["eight"], 10),  # SET and GET, one by one and by 20, direct and proxied; and two with three threads
    (["mget", "--mget=1,100,5000"], 6),
    (["skew", "--keys=20000", "--connections=20"], 5),
    (["skew", "--keys=20000", "--connections=20", "--variant=held=--flush-rule=server-cpu --max-delay-us=900"], 6),
    (["window", "--connections=20", "--rates=500,2000"], 3 * 4),  # two rates and the closed loop; direct and three rules
]


def main():
    lab = pathlib.Path(sys.argv[1]).resolve()
    respool = lab.with_name("respool")
    check(respool.exists(), f"{respool} is built")
    with tempfile.TemporaryDirectory(prefix="respool-") as folder:
        for words, cases in EXPERIMENTS:
            run([lab, *words, *SMALL, f"--respool={respool}"], cases, pathlib.Path(folder) / f"{words[0]}-{cases}")
    against(lab, respool)
    print("lab smoke: ok")


def run(command, cases, folder):
    done = subprocess.run([*command, f"--out={folder}"], capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout)
    check(done.returncode == 0, f"it ends with 0, not {done.returncode}: {done.stderr}")

    report = json.loads((folder / "report.json").read_text())
    check(len(report["cases"]) == cases, f"report.json has {cases} cases")
    rounds = (folder / "rounds.csv").read_text().splitlines()
    check(len(rounds) == 1 + cases, "rounds.csv has a header and a line for each case")
    page = (folder / "report.html").read_text()
    check(page.count("<figure") > cases, "report.html has a picture for each case and of them all")
    check("src=" not in page and "href=\"http" not in page, "report.html needs no other file")
    check((folder / "table.txt").read_text() in done.stdout, "the terminal shows table.txt")
    # Cases with a respool have its counters. Direct cases have the server's own counters.
    for case in report["cases"]:
        is_respool = case["case"]["target"]["kind"] in ("respool", "variant")
        check(is_respool == (case["rounds"][0]["counters"] is not None), f"{case['id']}: only a respool is asked for its counters")
        check(not is_respool or case["rounds"][0]["counters"]["batches"] > 0, f"{case['id']}: requests leave in batches")
        if case["case"]["target"]["kind"] == "direct" and report["experiment"] != "eight":
            verb = case["case"]["workload"]["verb"]
            keys = 1 if verb == "GET" else verb["MGET"]
            answered = case["rounds"][0]["answered"]
            check(case["rounds"][0]["server_commands"] == answered, f"{case['id']}: a command for each request")
            check(case["rounds"][0]["server_key_reads"] == answered * keys, f"{case['id']}: a look-up for each key")


def against(lab, respool):
    with tempfile.TemporaryDirectory(prefix="respool-") as folder:
        folder = pathlib.Path(folder) / "out"
        command = [lab, "against", f"--base={respool}", f"--respool={respool}", "--verbs=get", "--pipeline=1"]
        command += [f"--rounds={ROUNDS_AGAINST}", "--seconds=0.1", "--warmup=0.1", f"--out={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        print(done.stdout)

        check((folder / "report.json").exists(), f"it writes report.json: {done.stderr}")
        report = json.loads((folder / "report.json").read_text())
        check([case["id"] for case in report["cases"]] == ["get-p1-c50-respool-t1", "get-p1-c50-base-t1"], "both builds are measured")
        starts = sorted((each["start_s"], build) for build, case in enumerate(report["cases"]) for each in case["rounds"])
        order = [build for _, build in starts]
        check(order == [0, 1, 1, 0, 1, 0, 0, 1] * (ROUNDS_AGAINST // 4), f"they take turns, the second time the other way round: {order}")
        check(len(report["comparisons"]) == 1, "report.json has one comparison for each case")
        found = report["comparisons"][0]
        low, high = found["proxy"]["interval"]
        check(found["proxy"]["quadruples"] == ROUNDS_AGAINST // 2, "two rounds make a quadruple")
        check(0 < low <= found["proxy"]["median"] <= high, "the median is in its interval")
        # Both builds are the same one, in a short run, so any verdict may come. The exit code must
        # match it.
        check(found["verdict"] in ("at-most", "more", "cannot-tell"), f"the verdict is one of three: {found['verdict']}")
        check(done.returncode == (found["verdict"] == "more"), f"it ends with 1 for more alone, not {done.returncode}: {done.stderr}")
        check((folder / "table.txt").read_text() in done.stdout, "the terminal shows table.txt")
        broken = subprocess.run([lab, "against", "--base=no-such-file"], capture_output=True, text=True, timeout=60, check=False)
        check(broken.returncode == 2, f"an impossible measurement ends with 2, not {broken.returncode}")


def check(holds, claim):
    if not holds:
        sys.exit(f"lab smoke: FAILED: {claim}")


main()
