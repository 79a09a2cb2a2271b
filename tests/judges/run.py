#!/usr/bin/env python3
"""Runs tests that others have written, directly and through the proxy: `make judges`.

Each judge is published code with its own tests (JUDGES). It is built once in target/judges, and runs twice: against a
control plane of its own, and against another with a proxy before it, which caches whatever is read and authenticates
every caller. A test that passes directly must pass through the proxy, unless its judge lists it with a reason. Results,
logs and the proxy's metrics are in target/judges.

Exits with 1 if a test differs, if too few pass directly to compare anything, or if a proxy answered nothing from its
cache; with 2 for wrong arguments."""

import argparse
import pathlib
import signal
import subprocess
import sys

import controller_runtime
import kube_rs
import storage_suite
from world import OUT, ROOT, world

JUDGES = [controller_runtime, storage_suite, kube_rs]
# Only ends a hang: the longest takes three minutes.
SECONDS_MAX = 900


def run(tests, side, out, proxy):
    """Runs the tests in a world of their own. Returns the state of each, and how many answers came from the cache."""
    with world(side, out, proxy) as servers, open(out / "tests.log", "wb") as output:
        try:
            states = tests(servers, output, SECONDS_MAX)
        except subprocess.TimeoutExpired:
            print(f"  {side}: no end after {SECONDS_MAX} seconds", flush=True)
            return {}, 0
        return states, servers.served()


def compared(direct, proxied, expected):
    """The tests that pass directly and not through the proxy without a reason, and the reasons that apply no longer."""
    differing = {test: proxied.get(test, "not run") for test, state in direct.items()
                 if state == "passed" and proxied.get(test) != "passed"}
    unexplained = {test: state for test, state in differing.items() if test not in expected}
    return differing, unexplained, [test for test in expected if test not in differing]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    known = {name: judge for judge in JUDGES for name in judge.NAMES}
    parser.add_argument("names", nargs="*", help=f"{', '.join(known)} (default: all)")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/kube-fanout", help="the proxy")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    OUT.mkdir(parents=True, exist_ok=True)
    # The servers are ended in this case, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    rows, is_failed = [], False
    for name in arguments.names or known:
        judge = known[name]
        print(f"{name}: building", flush=True)
        tests, sides = judge.build(name), {}
        for side in ("direct", "proxy"):
            print(f"{name}: {side}", flush=True)
            out = OUT / side / name.replace("/", "-")
            sides[side], served = run(tests, side, out, arguments.binary.resolve())
        direct, proxied = sides["direct"], sides["proxy"]
        differing, unexplained, outdated = compared(direct, proxied, judge.EXPECTED)
        for test, state in unexplained.items():
            print(f"  DIFFERS: {test}: {state} through the proxy", flush=True)
        for test in outdated:
            print(f"  listed, but passed: {test} ({judge.EXPECTED[test]})", flush=True)
        passed = [sum(state == "passed" for state in side.values()) for side in (direct, proxied)]
        # If what runs before all tests fails, they are skipped.
        rows.append(f"| {name} {judge.VERSION} | {len(direct)} | {passed[0]} | {passed[1]} | {len(differing)} | {served} |")
        is_comparable = len(direct) > 0 and passed[0] >= judge.SHARE_MIN * len(direct)
        if not is_comparable:
            print("  too few tests passed directly: nothing is compared", flush=True)
        is_failed |= bool(unexplained) or not served or not is_comparable
    print("\n| judge | tests | passed directly | passed through the proxy | differences | answers from the cache |")
    print("|---|---|---|---|---|---|", *rows, sep="\n")
    return 1 if is_failed else 0


if __name__ == "__main__":
    sys.exit(main())
