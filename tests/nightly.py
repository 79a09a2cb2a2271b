#!/usr/bin/env python3
"""Runs everything that measures, storms, kills for long, or searches: `make nightly`.

Each stage is a make target. A stage that passed at this commit is not run again, so a night that was interrupted goes on
where it stopped. The summary (target/nightly/summary.md, and the terminal) lists what ran, for how long, with which seed,
and the command that repeats a failure. Exits with 1 if a stage failed, with 2 for wrong arguments."""

import argparse
import json
import os
import pathlib
import random
import shlex
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STATE = ROOT / "target" / "nightly"

# Name, arguments of make, minutes that it takes on two idle cores, whether SEED chooses what it draws. Short stages
# first: a broken build then costs minutes and not the night. The amounts fit a night of NIGHT_MINUTES; `make help`
# says how to run more by hand.
STAGES = [
    ("page", ["page"], 1, False),
    ("site", ["site"], 1, False),
    ("doc", ["doc"], 2, False),
    ("machete", ["machete"], 2, False),
    ("prose", ["prose"], 3, False),
    ("macos", ["macos"], 3, False),
    ("printed", ["printed"], 4, True),
    ("deny", ["deny"], 4, False),
    ("properties", ["properties"], 4, True),
    ("manifests-check", ["manifests-check"], 4, False),
    ("check", ["check"], 5, False),
    ("alerts", ["alerts"], 5, False),
    ("chart", ["chart"], 5, False),
    ("goaways", ["goaways", "REQUESTS=10000"], 5, False),
    ("verify", ["verify", "SECONDS=180"], 4, True),
    ("label", ["label"], 6, False),
    ("neighbours", ["neighbours"], 6, False),
    ("rebalance", ["rebalance"], 6, False),
    ("auth-costs", ["auth-costs"], 5, False),
    ("discovery", ["discovery"], 5, False),
    ("long-outage", ["long-outage"], 7, False),
    ("differential", ["differential", "SEEDS=2"], 8, True),
    ("authorization", ["authorization", "TRIPLES=10000"], 10, True),
    ("verified-tokens", ["verified-tokens", "TOKENS=20000"], 8, True),
    ("faults", ["faults", "SECONDS=300"], 8, True),
    ("robustness", ["robustness", "SECONDS=120"], 5, True),
    ("failover", ["failover", "SECONDS=300", "INFORMERS=500"], 10, True),
    ("size-check", ["size-check"], 6, False),
    ("clients", ["clients"], 6, False),
    ("ingest", ["ingest"], 6, False),
    ("hostile", ["hostile"], 4, True),
    ("neighbouring", ["neighbouring"], 10, True),
    ("judges", ["judges"], 16, False),
    ("informers", ["informers"], 10, False),
    ("strict-reads", ["strict-reads"], 3, False),
    ("informers-of-events", ["informers-of-events"], 7, False),
    ("conformance-release", ["conformance-release"], 12, False),
    ("imperfect", ["imperfect", "SECONDS=300"], 12, True),
    ("tree", ["tree", "LEAVES=100", "SECONDS=120"], 15, False),
    ("revocation", ["revocation", "TRIALS=40"], 15, False),
    ("agents-at-rest", ["agents-at-rest", "SECONDS=300"], 15, False),
    ("cluster", ["cluster", "ROUNDS=1"], 15, False),
    ("upgrade", ["upgrade"], 15, False),
    ("image-check", ["image-check"], 15, False),
    ("bench-check", ["bench-check"], 15, False),
    ("simulation", ["simulation", "SEEDS=5000"], 15, True),
    ("figures", ["figures", "ROUNDS=1", "ARGS=gentle list-json stuck"], 15, False),
    ("endurance", ["endurance", "SECONDS=240"], 5, True),
    ("outages", ["outages", "SEQUENCES=30"], 18, True),
    ("fuzz", ["fuzz", "SECONDS=30"], 18, True),
    ("matrix", ["matrix", "MINORS=1.36"], 20, False),
    ("integration", ["integration", "ARGS=client/... apimachinery/... --run Watch"], 25, False),
    ("mutants", ["mutants"], 25, False),
    ("e2e", ["e2e"], 25, False),
    ("siege", ["siege", "SECONDS=10", "STEADY=300"], 30, False),
    ("measured", ["measured"], 30, True),
]
NIGHT_MINUTES = 559
assert sum(minutes for _, _, minutes, _ in STAGES) <= NIGHT_MINUTES, "the stages do not fit a night"
NAMES = [name for name, *_ in STAGES]


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def revision():
    """The commit, with a mark when the checkout differs from it: results of another tree do not count."""
    # The stage `matrix` writes this document.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/dev/COMPARED.md")
    return git("rev-parse", "--short=12", "HEAD") + ("-changed" if changed else "")


def again(arguments, seed):
    return shlex.join(["make", *arguments] + ([f"SEED={seed}"] if seed is not None else []))


def run(name, arguments, seed, minutes_max, log):
    """Runs one stage in a process group of its own, and returns its exit code; 124 if it did not end in time."""
    environment = dict(os.environ, CARGO_TERM_COLOR="never")
    command = ["make", *arguments] + ([f"SEED={seed}"] if seed is not None else [])
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True)
        try:
            return process.wait(timeout=minutes_max * 60)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as interrupt:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if isinstance(interrupt, KeyboardInterrupt):
                raise
            print(f"{name}: did not end within {minutes_max} minutes, ended", flush=True)
            return 124


def summary(results, chosen, at):
    """The table of what ran, as Markdown."""
    rows = [f"# Nightly at {at}", "", "| stage | result | minutes | seed | to repeat |", "|---|---|---|---|---|"]
    for name, arguments, _, _ in STAGES:
        if name not in chosen:
            continue
        result = results.get(name)
        if result is None:
            rows.append(f"| {name} | not run | | | `{again(arguments, None)}` |")
            continue
        seed = "" if result["seed"] is None else result["seed"]
        outcome = "passed" if result["code"] == 0 else f"FAILED ({result['code']}), {result['log']}"
        command = again(arguments, result["seed"])
        rows.append(f"| {name} | {outcome} | {result['seconds'] / 60:.1f} | {seed} | `{command}` |")
    passed = sum(1 for name in chosen if results.get(name, {}).get("code") == 0)
    total = sum(results[name]["seconds"] for name in chosen if name in results) / 60
    rows += ["", f"{passed} of {len(chosen)} stages passed, {total:.0f} minutes"]
    return "\n".join(rows) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="STAGE", help=f"run these stages: {', '.join(NAMES)}")
    parser.add_argument("--skip", nargs="*", default=[], metavar="STAGE", help="leave these stages out")
    parser.add_argument("--seed", type=int, help="the seed of stages that draw (default: a new one each night)")
    parser.add_argument("--fresh", action="store_true", help="also run stages that passed at this commit")
    parser.add_argument("--list", action="store_true", help="list the stages and how long they take, and exit")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.only + arguments.skip) - set(NAMES))
    if unknown:
        parser.error(f"no stage is named {', '.join(unknown)} (stages: {', '.join(NAMES)})")
    chosen = [name for name in arguments.only or NAMES if name not in arguments.skip]
    if arguments.list:
        for name, make, minutes, _ in STAGES:
            print(f"{name:20} {minutes:4} min  {again(make, None)}")
        print(f"{'in all':20} {sum(minutes for _, _, minutes, _ in STAGES):4} min, at most {NIGHT_MINUTES}")
        return 0
    at = revision()
    folder = STATE / at
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "results.json"
    results = json.loads(state.read_text()) if state.exists() and not arguments.fresh else {}
    interrupted = False
    for name, make, minutes, draws in STAGES:
        if name not in chosen or results.get(name, {}).get("code") == 0:
            continue
        seed = None
        if draws:
            seed = arguments.seed if arguments.seed is not None else random.randrange(1, 2**31)
        log = folder / f"{name}.log"
        print(f"{time.strftime('%H:%M')} {name}: {again(make, seed)} (some {minutes} min)", flush=True)
        began = time.monotonic()
        try:
            # Three times what it takes on two idle cores, and builds: only what hangs is ended.
            code = run(name, make, seed, 3 * minutes + 30, log)
        except KeyboardInterrupt:
            interrupted = True
            break
        seconds = time.monotonic() - began
        results[name] = {"code": code, "seconds": seconds, "seed": seed, "log": str(log.relative_to(ROOT))}
        state.write_text(json.dumps(results, indent=1))
        print(f"{time.strftime('%H:%M')} {name}: {'passed' if code == 0 else f'FAILED ({code}), see {log}'}", flush=True)
    text = summary(results, chosen, at)
    (STATE / "summary.md").write_text(text)
    print("\n" + text, end="")
    if interrupted:
        print("interrupted; `make nightly` goes on from here")
        return 130
    return 0 if all(results.get(name, {}).get("code") == 0 for name in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
