#!/usr/bin/env python3
"""Runs Kubernetes' integration tests directly and with the proxy in front of each test apiserver: `make integration`.

The packages test/integration/client, apimachinery and apiserver come from the Go module proxy, in the version of
tests/kube/go.mod. In a copy of the module, proxy.go is added to the test server, which calls it. Each package is built
once and runs twice; the environment variable KUBE_FANOUT_BINARY decides whether the proxy is there. A test that passes
directly must pass with the proxy, unless differences.txt lists it. Results, logs and binaries are in
target/integration.

Exits with 1 if a difference is not listed, if too few tests pass directly to compare anything, or if no request was
answered from the cache; with 2 for wrong arguments."""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = ROOT / "tests" / "integration"
OUT = ROOT / "target" / "integration"
BASE = "k8s.io/kubernetes/test/integration/"
SERVER = "cmd/kube-apiserver/app/testing"
# Those of tests/kube/build.sh: most packages are compiled already.
FLAGS = ["-p", "1", "-trimpath", "-buildvcs=false", "-tags=selinux,notest,grpcnotrace", "-ldflags=-s -w"]
DIFFERENCES = HERE / "differences.txt"

# Files of the Kubernetes module, and the text before which other text is inserted. If it does not occur exactly once,
# the run stops: the patch then has to follow the new release.
START = "stopProxy, err := {package}StartProxy({config}, {options})\n\tif err != nil {{\n\t\t{fail}\n\t}}\n\t"
PATCHES = {
    f"{SERVER}/testserver.go": [
        ("result.ServerOpts = s\n",
         START.format(package="", config="result.ClientConfig", options="s", fail="return result, err")),
        ("if instanceOptions.DisableInvariantChecks {\n", "defer stopProxy()\n\t\t"),
    ],
    "test/integration/framework/test_server.go": [
        ('"k8s.io/kubernetes/cmd/kube-apiserver/app/options"\n', f'servertesting "k8s.io/kubernetes/{SERVER}"\n\t'),
        ("kubeAPIServerClient, err := client.NewForConfig(kubeAPIServerClientConfig)\n",
         START.format(
             package="servertesting.", config="kubeAPIServerClientConfig", options="opts", fail="t.Fatal(err)")),
        ("// Calling cancel function is stopping apiserver", "stopProxy()\n\t\t"),
    ],
    # At the end of a package, the check for leaked goroutines spins for ten minutes. Its result is not used.
    "test/integration/framework/goleak.go": [("600 * time.Second\n\tstart", "5 * time.Second // ")],
}


def go(*arguments, **options):
    """Runs Go as tests/kube does, in the module of target/integration, and returns what it prints."""
    environment = dict(os.environ, GOTOOLCHAIN="local", GOWORK="off", GOFLAGS="-mod=mod", CGO_ENABLED="0")
    environment["PATH"] = f"{ROOT}/target/toolchain/go/bin:{environment['PATH']}"
    return subprocess.run(
        ["go", *arguments], cwd=OUT, env=environment, stdout=subprocess.PIPE, text=True, check=True, **options).stdout


def patched_kubernetes():
    """Makes a module that uses the Kubernetes of tests/kube with its test server patched, and returns that folder.

    Because Go refuses overlays below its module cache, the folder is a copy."""
    for name in ("go.mod", "go.sum"):
        shutil.copy(ROOT / "tests" / "kube" / name, OUT / name)
    go("mod", "download", "k8s.io/kubernetes")
    name, original = go("list", "-m", "-f", "{{.Path}}@{{.Version}} {{.Dir}}", "k8s.io/kubernetes").split()
    with open(OUT / "go.mod", "a") as module:
        module.write(f"replace k8s.io/kubernetes => ./{name}\n")
    kubernetes = OUT / name
    if not kubernetes.exists():
        partial = OUT / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(["cp", "-r", "--no-preserve=mode", original, partial], check=True)
        kubernetes.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(kubernetes)
    shutil.copy(HERE / "proxy.go", kubernetes / SERVER)
    # Module archives do not keep the mode of files.
    (kubernetes / "test/integration/client/testdata/exec-plugin.sh").chmod(0o755)
    for file, insertions in PATCHES.items():
        text = (pathlib.Path(original) / file).read_text()
        for line, insertion in insertions:
            if text.count(line) != 1:
                sys.exit(f"{file}: {line.strip()!r} occurs {text.count(line)} times, not once (PATCHES in {__file__})")
            text = text.replace(line, insertion + line)
        (kubernetes / file).write_text(text)
    return kubernetes


def build(package):
    """Builds the test binary of a package, unless it is up to date as far as Go knows, and returns its path."""
    binary = OUT / "bin" / (package.removeprefix(BASE).replace("/", "_") + ".test")
    # Without vet, which would read all of Kubernetes.
    go("test", "-c", "-vet=off", *FLAGS, "-o", str(binary), package)
    return binary


def run(package, directory, kubernetes, binary, side, arguments):
    """Runs the tests of a package, and returns the result of each: pass, fail or skip; fail for one without an end."""
    out = OUT / side / binary.stem
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # Short, because etcd's unix socket is below it.
    temporary = tempfile.mkdtemp(prefix="integration-")
    environment = dict(os.environ, PATH=f"{OUT}/bin:{os.environ['PATH']}", TMPDIR=temporary, KUBE_FANOUT_DIR=str(out))
    # Where Kubernetes finds its files, as the binaries do not say it (-trimpath).
    environment.update(TEST_SRCDIR=str(OUT), TEST_WORKSPACE=".", KUBE_ROOT=str(kubernetes))
    environment.update(KUBE_CACHE_MUTATION_DETECTOR="true", KUBE_PANIC_WATCH_DECODE_ERROR="false")
    # An etcd for each package: nothing that runs on the machine is used.
    environment["KUBE_INTEGRATION_ETCD_URL"] = "http://127.0.0.1:1"
    environment.pop("KUBE_FANOUT_BINARY", None)
    if side == "proxy":
        environment["KUBE_FANOUT_BINARY"] = str(arguments.binary)
    command = [str(binary), "-test.v=test2json", "-test.short", f"-test.timeout={arguments.minutes}m"]
    command += [f"-test.run={arguments.run}"] if arguments.run else []
    with open(out / "output", "wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True)
        try:
            process.wait(timeout=(arguments.minutes + 5) * 60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Servers and proxies of tests that did not end, too.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            shutil.rmtree(temporary, ignore_errors=True)
    results = {}
    events = go("tool", "test2json", "-p", package, stdin=open(out / "output", "rb"))
    (out / "events").write_text(events)
    for event in map(json.loads, events.splitlines()):
        if test := event.get("Test"):
            if event["Action"] in ("pass", "fail", "skip"):
                results[test] = event["Action"]
            else:
                results.setdefault(test, "fail")
    return results


def served(binaries):
    """Adds up what the proxies answered from the cache and passed through, from the metrics that each left behind."""
    sums = collections.Counter()
    for file in (file for binary in binaries for file in (OUT / "proxy" / binary.stem).glob("proxy-*/metrics")):
        sums["proxies"] += 1
        for name, value in re.findall(r"^kube_fanout_(served|forwarded)_total(?:{.*})? (\d+)", file.read_text(), re.M):
            sums[name] += int(value)
    return sums


def listed():
    """The documented differences: (package, test) and the reason."""
    differences = {}
    for line in DIFFERENCES.read_text().splitlines():
        if line and not line.startswith("#"):
            package, test, reason = line.split(None, 2)
            differences[package, test] = reason
    return differences


def compare(package, direct, proxied, reasons):
    """Prints one line for each test that passed directly only, and returns (listed, unlisted)."""
    broken = [test for test, result in direct.items() if result == "pass" and proxied.get(test) != "pass"]
    # A test fails with its subtests: these say more.
    leaves = [test for test in broken if not any(other.startswith(test + "/") for other in broken)]
    counts = [0, 0]
    for test in leaves:
        parents = ["/".join(test.split("/")[:length]) for length in range(1, test.count("/") + 2)]
        reason = next((reasons[package, parent] for parent in parents if (package, parent) in reasons), None)
        outcome = proxied.get(test, "not run")
        print(f"  {'differs as listed' if reason else 'DIFFERS'}: {test}: {outcome} behind the proxy"
              + (f" ({reason})" if reason else ""), flush=True)
        counts[reason is None] += 1
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "packages", nargs="*", help="below test/integration, such as client or apiserver/apply (default: all)")
    parser.add_argument("--run", help="only the tests that this regular expression matches")
    parser.add_argument("--minutes", type=int, default=60, help="how long a package may take on one side (60)")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/kube-fanout", help="the proxy")
    parser.add_argument("--side", choices=["direct", "proxy"], help="run this side; keep the results of the other")
    arguments = parser.parse_args()
    arguments.binary = arguments.binary.resolve()

    OUT.mkdir(parents=True, exist_ok=True)
    kubernetes = patched_kubernetes()
    go("build", *FLAGS, "-o", "bin/etcd", "go.etcd.io/etcd/server/v3")
    patterns = arguments.packages or ["client/...", "apimachinery/...", "apiserver/..."]
    packages = go("list", "-f", "{{.ImportPath}} {{.Dir}}", *(BASE + pattern for pattern in patterns)).splitlines()

    reasons = listed()
    rows, binaries, totals = [], [], collections.Counter()
    for package, directory in (line.split() for line in packages):
        short = package.removeprefix(BASE)
        print(f"{short}: building", flush=True)
        binary = build(package)
        binaries.append(binary)
        sides = {}
        for side in ("direct", "proxy"):
            results = OUT / f"{binary.stem}.{side}.json"
            if arguments.side in (None, side):
                print(f"{short}: {side}", flush=True)
                sides[side] = run(package, directory, kubernetes, binary, side, arguments)
                results.write_text(json.dumps(sides[side], indent=1))
            else:
                sides[side] = json.loads(results.read_text())
        known, unknown = compare(short, sides["direct"], sides["proxy"], reasons)
        count = {side: sum(result == "pass" for result in sides[side].values()) for side in sides}
        ran = sum(result != "skip" for result in sides["direct"].values())
        rows.append(f"| {short} | {ran} | {count['direct']} | {count['proxy']} | {known} | {unknown} |")
        totals.update(ran=ran, passed=count["direct"], unknown=unknown)
    print("\n| package | tests | passed directly | passed behind the proxy | listed differences | others |")
    print("|---|---|---|---|---|---|", *rows, sep="\n")
    sums = served(binaries)
    print(f"\n{sums['proxies']} proxies: {sums['served']} requests answered from the cache, "
          f"{sums['forwarded']} passed through")
    if totals["passed"] < 0.9 * totals["ran"]:
        print("fewer than nine of ten tests passed directly: nothing is compared (is the machine busy?)")
        return 1
    return 1 if totals["unknown"] or not sums["served"] else 0


if __name__ == "__main__":
    sys.exit(main())
