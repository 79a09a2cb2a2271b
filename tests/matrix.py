"""Compares the proxy with the apiserver of each Kubernetes minor. Builds the control plane of each minor that
tests/kube has versions of, runs the conformance tests below against it, and writes the results to docs/dev/COMPARED.md.

Exits with 1 if a test failed or did not run. With `--minors`, the results of other minors are kept."""

import argparse
import datetime
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BED = ROOT / "tests" / "kube"
DOCUMENT = ROOT / "docs" / "dev" / "COMPARED.md"
BEGIN, END = "<!-- written by make matrix -->\n", "<!-- as far as here -->\n"
# Tests that compare responses or streams with the apiserver's, byte for byte, and need only the test bed. Tests of load,
# faults and time do not depend on the minor: make test runs them with the newest one.
MODULES = [
    "custom", "discovery", "expired", "freshness", "gaps", "kubectl", "lists", "representations", "representations_hard",
    "rows", "tables", "transactions", "watches", "websocket",
]
BUILD_SECONDS = 3600
RUN_SECONDS = 1800


class Minor:
    """A minor of Kubernetes that tests/kube can be built with, by the name of its file of versions."""

    def __init__(self, versions):
        self.versions = versions
        text = versions.read_text()
        self.kubernetes = re.search(r"^\tk8s\.io/kubernetes v(\S+)$", text, re.M)[1]
        self.etcd = re.search(r"^\tgo\.etcd\.io/etcd/server/v3 v(\S+)$", text, re.M)[1]
        self.name = self.kubernetes.rpartition(".")[0]

    def build(self):
        """Builds the control plane, or finds it built; returns the binary."""
        is_present = self.versions.name == "go.mod"
        binary = ROOT / "target" / "testbed" / ("kube-testbed" if is_present else f"kube-testbed-{self.name}")
        command = [BED / "build.sh", BED, binary, self.versions.name]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS)
        return binary

    def run(self, arguments):
        """Runs the tests; returns the outcome of each by its name."""
        # With CI set, a test that would be skipped fails.
        environment = os.environ | {"KUBE_TESTBED": str(self.build()), "CI": "true"}
        filters = [f"{module}::" for module in MODULES]
        # The tests of `freshness` are in the nightly tier.
        programs = ["--no-fail-fast", "--test", "conformance", "--test", "conformance-nightly"]
        command = [os.environ.get("CARGO", "cargo"), "test", *programs, *arguments, "--", *filters]
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=RUN_SECONDS
        )
        print(ran.stdout)
        found = dict(re.findall(r"^test (\S+) \.\.\. (\w+)$", ran.stdout, re.M))
        return {name: outcome for name, outcome in found.items() if name.split("::")[0] in MODULES}


def minors():
    """Those that there are versions of, the newest first."""
    found = [Minor(file) for file in BED.glob("*.mod")]
    return sorted(found, key=lambda minor: [int(part) for part in minor.name.split(".")], reverse=True)


def cell(outcomes, module):
    """How many tests of a module passed, and of how many where one did not."""
    of_module = [outcome for name, outcome in outcomes.items() if name.startswith(module + "::")]
    passed = of_module.count("ok")
    return str(passed) if passed == len(of_module) else f"{passed} of {len(of_module)}"


def column(minor, outcomes):
    """What is written of a minor: its cells by their row, and a line for each test that did not pass."""
    cells = {module: cell(outcomes, module) for module in MODULES}
    cells["etcd"], cells["compared on"] = minor.etcd, datetime.date.today().isoformat()
    failed = [f"- {minor.kubernetes}: `{name}`" for name, outcome in sorted(outcomes.items()) if outcome != "ok"]
    return cells, failed


def read(written):
    """What stands in the document: the columns by the release, and the lines of what did not pass."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines() if line[:1] == "|"]
    columns = {}
    for at, release in enumerate(rows[0][1:] if rows else [], 1):
        columns[release] = {row[0].strip("`"): row[at] for row in rows[2:]}
    return columns, [line for line in written.splitlines() if line.startswith("- ")]


def write(columns, failed):
    """The same, to be put into the document."""
    releases = sorted(columns, key=lambda release: [int(part) for part in release.split(".")], reverse=True)
    lines = ["| | " + " | ".join(releases) + " |", "|---" * (len(releases) + 1) + "|"]
    for row in ["compared on", "etcd", *MODULES]:
        title = f"`{row}`" if row in MODULES else row
        lines.append(f"| {title} | " + " | ".join(columns[release].get(row, "") for release in releases) + " |")
    summary = ["", "Not passed:", "", *failed] if failed else ["", "All passed."]
    return "\n".join(["", *lines, *summary, "", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minors", default="", help="such as '1.37 1.35' [default: all]")
    parser.add_argument("arguments", nargs="*", help="for cargo test")
    options = parser.parse_args()
    known = {minor.name: minor for minor in minors()}
    chosen = options.minors.split() or list(known)
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"there are no versions of {', '.join(unknown)} in tests/kube, but of {', '.join(known)}")
    before, rest = DOCUMENT.read_text().split(BEGIN)
    written, after = rest.split(END)
    columns, failed = read(written)
    bad = False
    for name in chosen:
        minor = known[name]
        print(f"\n==> Kubernetes {minor.kubernetes}, etcd {minor.etcd}", flush=True)
        outcomes = minor.run(options.arguments)
        silent = [module for module in MODULES if not any(test.startswith(module + "::") for test in outcomes)]
        if silent:
            # Nothing is written of a run that was none.
            sys.exit(f"no test of {', '.join(silent)} has run with {minor.kubernetes}")
        for release in [release for release in columns if release.rpartition(".")[0] == name]:
            del columns[release]
            failed = [line for line in failed if not line.startswith(f"- {release}: ")]
        columns[minor.kubernetes], worse = column(minor, outcomes)
        failed += worse
        bad = bad or bool(worse)
        DOCUMENT.write_text(before + BEGIN + write(columns, failed) + END + after)
    print(write(columns, failed))
    return bad


if __name__ == "__main__":
    sys.exit(main())
