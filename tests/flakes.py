#!/usr/bin/env python3
"""Runs the tests of `make test` repeatedly, to find those that can fail by chance: `make flakes RUNS=20`.

Busy loops use all processors during each run (--quiet: without them). --jobs N has N runs at a time. --stalls stops each program repeatedly for some
seconds, like an overcommitted machine. --alone runs each test once in its own process. Each failure is printed with its
output and kept in target/flakes. Nothing is retried. A test may pass only because some time-out ended a hang; so each
test that took very long is printed too. Exits with 1 if anything failed."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / "target" / "flakes"
# Ends a hang, and nothing else: the slowest program takes minutes beside busy loops.
HANG_SECONDS = 3600
# A test that takes longer is printed as slow: a watch without bookmarks, for example, is ended after 90 seconds.
SLOW_SECONDS = 45
# For --report-time, which the test harness of stable Rust has, but does not offer.
REPORT_TIME = ["-Z", "unstable-options", "--report-time"]
# How long a program runs between two stalls, and how long it is stopped for.
RUNS_SECONDS = (3, 15)
STALL_SECONDS = (1, 5)


def programs(cargo_arguments):
    """Builds the tests and returns (name, path) of each program."""
    command = [os.environ.get("CARGO", "cargo"), "test", "--no-run", "--message-format=json-render-diagnostics",
               *cargo_arguments]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit("the tests do not build")
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
            target = message["target"]
            is_daemon = target["name"] == "kube_fanout"
            found.append(("lib" if is_daemon else target["name"], message["executable"]))
    return found


def tests_of(path):
    listed = subprocess.run([path, "--list", "--format", "terse"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line[: -len(": test")] for line in listed.stdout.splitlines() if line.endswith(": test")]


def stall(process):
    """Stops a process again and again until it has ended."""
    drawn = random.Random()
    while True:
        time.sleep(drawn.uniform(*RUNS_SECONDS))
        for sent in (signal.SIGSTOP, signal.SIGCONT):
            if process.poll() is not None:
                return
            process.send_signal(sent)
            if sent == signal.SIGSTOP:
                time.sleep(drawn.uniform(*STALL_SECONDS))


def run(path, arguments, stalls=False):
    """Runs a test program once, and returns whether it passed, its output, and the tests that failed."""
    process = subprocess.Popen([path, *REPORT_TIME, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.STDOUT, errors="replace")
    if stalls:
        threading.Thread(target=stall, args=(process,), daemon=True).start()
    try:
        output, code = process.communicate(timeout=HANG_SECONDS)[0], process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, code = process.communicate()[0] + f"\nhung: ended after {HANG_SECONDS} s\n", 124
    failed = sorted(set(re.findall(r"^    (\S+)$", output.rpartition("\nfailures:\n")[2], re.M))) if code else []
    return code == 0, output, failed


def slow_in(output):
    """(seconds, test) of each test that took long, the slowest first."""
    took = re.findall(r"^test (\S+) .*<([0-9.]+)s>$", output, re.M)
    return sorted(((float(seconds), test) for test, seconds in took if float(seconds) > SLOW_SECONDS), reverse=True)


def output_of(test, output):
    """What a test printed, as the test program shows it at its end; all of it where that cannot be found."""
    found = re.search(rf"^---- {re.escape(test)} stdout ----\n(.*?)(?=^---- |\nfailures:\n)", output, re.M | re.S)
    return found.group(1) if found else output[-4000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="how many times all of them run (default: 20)")
    parser.add_argument("--quiet", action="store_true", help="without busy loops")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time (default: 1)")
    parser.add_argument("--stalls", action="store_true", help="stop each program again and again for some seconds")
    parser.add_argument("--alone", action="store_true", help="also run each test once in a process of its own")
    parser.add_argument("--only", nargs="*", default=[], metavar="PROGRAM", help="lib, direct, conformance, …")
    parser.add_argument("--filter", nargs="*", default=[], metavar="NAME", help="only tests whose names contain this")
    parser.add_argument("cargo", nargs="*", help="arguments for cargo, after --")
    arguments = parser.parse_args()
    chosen = [(name, path) for name, path in programs(arguments.cargo) if not arguments.only or name in arguments.only]
    if not chosen:
        parser.error(f"no test program is named {', '.join(arguments.only)}")
    KEPT.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 2
    os.environ.setdefault("RUST_TEST_THREADS", str(2 * cores))
    os.environ["RUSTC_BOOTSTRAP"] = "1"
    loops = [] if arguments.quiet else [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(cores)]
    failures = []

    def note(what, name, output, failed):
        log = KEPT / f"{what.replace(' ', '-')}-{name}.log"
        log.write_text(output)
        for test in failed or ["(the program itself)"]:
            failures.append(f"{what}: {name} {test}, see {log.relative_to(ROOT)}")
            print(f"\n==== FAILED, {what}: {name} {test}\n{output_of(test, output)}", flush=True)

    def run_all(nth):
        for name, path in chosen:
            began = time.monotonic()
            passed, output, failed = run(path, arguments.filter, arguments.stalls)
            result = re.search(r"^test result: (.*?) finished in", output, re.M)
            outcome = result.group(1) if result else "no result"
            slow = "".join(f"\n  slow: {name} {test}: {seconds:.0f} s" for seconds, test in slow_in(output))
            print(f"run {nth} of {arguments.runs}: {name}: {outcome} {time.monotonic() - began:.0f} s{slow}", flush=True)
            if not passed:
                note(f"run {nth}", name, output, failed)

    try:
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(run_all, range(1, arguments.runs + 1)))
        if arguments.alone:
            for name, path in chosen:
                tests = [t for t in tests_of(path) if not arguments.filter or any(f in t for f in arguments.filter)]
                print(f"alone: {name}: {len(tests)} tests", flush=True)
                for test in tests:
                    passed, output, failed = run(path, ["--exact", test])
                    if not passed:
                        note(f"alone {test.replace('::', '.')}", name, output, failed)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print(f"\n{len(failures)} failures in {arguments.runs} runs"
          + ("" if arguments.quiet else f" beside {cores} busy loops"))
    print("".join(f"  {failure}\n" for failure in failures), end="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
