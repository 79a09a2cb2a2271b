"""controller-runtime's own specs, of the packages that need only a cluster."""

import collections
import json
import os
import shutil
import subprocess

from world import OUT, ROOT

MODULE, VERSION = "sigs.k8s.io/controller-runtime", "v0.25.2"
PACKAGES = ["cache", "client", "source", "controller", "builder", "manager"]
NAMES = [f"controller-runtime/{package}" for package in PACKAGES]
EXPECTED = {}
# The share of specs that must pass directly.
SHARE_MIN = 0.9
FLAGS = ["-p", "1", "-vet=off", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
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


def build(name):
    """Builds the specs of a package, and returns the function that runs them in a world."""
    package = name.split("/")[1]
    folder, binary = copied(MODULE, VERSION), OUT / f"controller-runtime-{package}.test"
    go("test", "-c", *FLAGS, "-o", str(binary), f"./pkg/{package}", cwd=folder)

    def run(world, output, timeout):
        report = world.out / "specs.json"
        subprocess.run(
            [str(binary), f"--ginkgo.json-report={report}", "--ginkgo.no-color", f"--ginkgo.seed={SEED}"],
            cwd=folder / "pkg" / package, env=dict(os.environ, USE_EXISTING_CLUSTER="true", KUBECONFIG=str(world.user)),
            stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=timeout)
        return states(report)

    return run


def states(report):
    """The state of each spec by its name; a name that several have is numbered. What runs before or after all specs is
    one only if it fails."""
    if not report.exists():
        return {}
    names, found = collections.Counter(), {}
    for suite in json.loads(report.read_text()):
        for spec in suite["SpecReports"] or []:
            if spec["LeafNodeType"] != "It" and spec["State"] == "passed" or spec["State"] == "pending":
                continue
            name = " / ".join([*(spec.get("ContainerHierarchyTexts") or []), spec["LeafNodeText"]])
            names[name] += 1
            found[f"{name} ({names[name]})"] = spec["State"]
    return found
