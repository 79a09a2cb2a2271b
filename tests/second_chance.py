#!/usr/bin/env python3
"""Repeats failed tests once, each alone: second_chance.py LOG, where LOG is the output of `cargo test`.

The run passes if at most a few tests failed and each passes now. It still prints them, with the command that searches
for the cause: a test that fails by chance is wrong, or has found a rare bug. `make flakes` counts each first failure,
and the mutants are judged without a repetition."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What breaks more tests than this at once is no chance.
TESTS_MAX = 2
# Ends a hang, and nothing else.
HANG_SECONDS = 900


def failed_tests(log):
    """The tests that failed, as (program, test); None if anything else did: a build, a crash, a documentation test."""
    programs = re.split(r"^ +Running .*\((\S+)\)$", log, flags=re.M)[1:]
    failed = []
    for path, output in zip(programs[::2], programs[1::2]):
        results = re.findall(r"^test result: .*? (\d+) failed;", output, re.M)
        names = sorted(set(re.findall(r"^    (\S+)$", output.rpartition("\nfailures:\n")[2], re.M)))
        if "\nfailures:\n" not in output:
            names = []
        if not results or sum(map(int, results)) != len(names):
            return None
        failed += [(path, name) for name in names]
    ended = len(re.findall(r"^error: test failed, to rerun pass", log, re.M))
    return failed if failed and ended == len({path for path, _ in failed}) else None


def passes(path, test):
    try:
        command = [path, "--exact", test, "--nocapture"]
        return subprocess.run(command, cwd=ROOT, timeout=HANG_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main():
    failed = failed_tests(pathlib.Path(sys.argv[1]).read_text(errors="replace"))
    if failed is None or len(failed) > TESTS_MAX:
        return 1
    # As cargo sets it for a test program.
    os.environ["CARGO_MANIFEST_DIR"] = str(ROOT)
    again = [(path, test) for path, test in failed if not passes(path, test)]
    for _, test in failed:
        print(f"!!! FAILED ONCE: {test} (make flakes ARGS='--filter {test}')")
    return 1 if again else 0


if __name__ == "__main__":
    sys.exit(main())
