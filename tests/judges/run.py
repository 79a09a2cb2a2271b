#!/usr/bin/env python3
"""Runs the specs of clients that others have written, directly and through the proxy: `make judges`.

Each judge is a published Go module with its own tests (JUDGES), in the version below. It is copied to target/judges,
where each package is built once, and runs twice: against a control plane of its own, and against another with a proxy
before it, which caches whatever is read and authenticates every caller. A spec that passes directly must pass through
the proxy. Results, logs and the proxy's metrics are in target/judges.

Exits with 1 if a spec differs, if too few of a package pass directly to compare anything, or if its proxy answered
nothing from its cache; with 2 for wrong arguments."""

import argparse
import base64
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
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "target" / "judges"
TESTBED = ROOT / "target" / "testbed" / "kube-testbed"
# The module, its version, and the packages whose specs need only a cluster.
JUDGES = {
    "controller-runtime": ("sigs.k8s.io/controller-runtime", "v0.25.2",
                           ["cache", "client", "source", "controller", "builder", "manager"]),
}
FLAGS = ["-p", "1", "-vet=off", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
# Only ends a hang: the longest package takes two minutes.
MINUTES_MAX = 15
# Both sides run in the same order.
SEED = 1


def go(*arguments, cwd):
    """Runs Go as tests/kube does, and returns what it prints."""
    command = [str(ROOT / "tests/kube/go.sh"), *arguments]
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True).stdout


def copied(module, version):
    """Returns a copy of a published module, because Go does not build tests in its module cache."""
    copy = OUT / f"{module.rsplit('/', 1)[-1]}@{version}"
    if not copy.exists():
        original = json.loads(go("mod", "download", "-json", f"{module}@{version}", cwd=OUT))["Dir"]
        partial = OUT / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(["cp", "-r", "--no-preserve=mode", original, partial], check=True)
        partial.rename(copy)
    return copy


class Server:
    """A process that is ended by its number, and by nothing else."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def until(self, look):
        """Returns what `look` finds, once it finds something. The bound only ends a hang."""
        for _ in range(1200):
            if found := look():
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"{self.process.args[0]} did not start: {self.log}")

    def end(self):
        self.process.terminate()
        self.process.wait()


def kubeconfig(original, url, certificate):
    """The same user with another server."""
    text = re.sub(r"server: .*", f"server: {url}", original.read_text())
    authority = base64.b64encode(certificate.read_bytes()).decode()
    return re.sub(r"certificate-authority-data: .*", f"certificate-authority-data: {authority}", text)


def run(binary, package, side, out, proxy):
    """Runs the specs of a package on a control plane of their own. Returns the state of each, and what was cached."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # Short, because etcd's unix socket is below it.
    plane = pathlib.Path(tempfile.mkdtemp(prefix="judges-"))
    servers, metrics = [Server([str(TESTBED), "up", "--dir", str(plane)], out / "plane.log")], ""
    try:
        servers[0].until(lambda: (plane / "ready").exists())
        user, admin = plane / "admin.kubeconfig", None
        if side == "proxy":
            certificate = out / "proxy.crt"
            servers.append(Server(
                [str(proxy), "serve", "--kubeconfig", str(user), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                 "--auth", "delegated", "--tls-self-signed", "--tls-self-signed-out", str(certificate),
                 "--cache-sensitive", "secrets,configmaps"], out / "proxy.log"))
            listens = re.compile(r"^serving on (\S+)\nmetrics and health on (\S+)$", re.M)
            url, admin = servers[1].until(lambda: listens.search((out / "proxy.log").read_text())).groups()
            user = out / "kubeconfig"
            user.write_text(kubeconfig(plane / "admin.kubeconfig", url, certificate))
        environment = dict(os.environ, USE_EXISTING_CLUSTER="true", KUBECONFIG=str(user))
        with open(out / "specs.log", "wb") as output:
            subprocess.run(
                [str(binary), f"--ginkgo.json-report={out / 'specs.json'}", "--ginkgo.no-color", f"--ginkgo.seed={SEED}"],
                cwd=package, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                timeout=MINUTES_MAX * 60)
    except subprocess.TimeoutExpired:
        print(f"  {side}: no end after {MINUTES_MAX} minutes", flush=True)
        return {}, 0
    else:
        if admin:
            metrics = urllib.request.urlopen(f"{admin}/metrics").read().decode()
            (out / "metrics").write_text(metrics)
    finally:
        for server in reversed(servers):
            server.end()
        shutil.rmtree(plane, ignore_errors=True)
    served = sum(int(value) for value in re.findall(r"^kube_fanout_served_total{.*} (\d+)", metrics, re.M))
    return states(out / "specs.json"), served


def states(report):
    """The state of each spec by its name; a name that several have is numbered. What runs before or after all specs is
    one only if it fails."""
    if not report.exists():
        return {}
    names, found = collections.Counter(), {}
    for suite in json.loads(report.read_text()):
        for spec in suite["SpecReports"] or []:
            if spec["LeafNodeType"] != "It" and spec["State"] == "passed":
                continue
            name = " / ".join([*(spec.get("ContainerHierarchyTexts") or []), spec["LeafNodeText"]])
            names[name] += 1
            found[f"{name} ({names[name]})"] = spec["State"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("packages", nargs="*", help="JUDGE/PACKAGE, such as controller-runtime/cache (default: all)")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/kube-fanout", help="the proxy")
    arguments = parser.parse_args()
    known = [f"{judge}/{package}" for judge, (_, _, packages) in JUDGES.items() for package in packages]
    if unknown := [name for name in arguments.packages if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    OUT.mkdir(parents=True, exist_ok=True)
    # The servers are ended in this case, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    rows, is_failed = [], False
    for name in arguments.packages or known:
        judge, package = name.split("/")
        module, version, _ = JUDGES[judge]
        folder, binary = copied(module, version), OUT / f"{judge}-{package}.test"
        print(f"{name}: building", flush=True)
        go("test", "-c", *FLAGS, "-o", str(binary), f"./pkg/{package}", cwd=folder)
        sides = {}
        for side in ("direct", "proxy"):
            print(f"{name}: {side}", flush=True)
            out = OUT / side / f"{judge}-{package}"
            sides[side], served = run(binary, folder / "pkg" / package, side, out, arguments.binary.resolve())
        direct, proxied = sides["direct"], sides["proxy"]
        differing = [spec for spec, state in direct.items() if state == "passed" and proxied.get(spec) != "passed"]
        for spec in differing:
            print(f"  DIFFERS: {spec}: {proxied.get(spec, 'not run')} through the proxy", flush=True)
        passed = [sum(state == "passed" for state in side.values()) for side in (direct, proxied)]
        # If what runs before all specs fails, they are skipped.
        ran = sum(state != "pending" for state in direct.values())
        rows.append(f"| {name} {version} | {ran} | {passed[0]} | {passed[1]} | {len(differing)} | {served} |")
        is_comparable = ran > 0 and passed[0] >= 0.9 * ran
        if not is_comparable:
            print("  fewer than nine of ten specs passed directly: nothing is compared", flush=True)
        is_failed |= bool(differing) or not served or not is_comparable
    print("\n| package | specs | passed directly | passed through the proxy | differences | answers from the cache |")
    print("|---|---|---|---|---|---|", *rows, sep="\n")
    return 1 if is_failed else 0


if __name__ == "__main__":
    sys.exit(main())
