#!/usr/bin/env python3
"""Compares `fanoutctl size` with what a proxy in front of a real control plane takes: `make size-check`.

Each set-up is a load of `fanoutctl bench`: agents with one watch each. Memory is that with open watches, after
the writes. Exits with 1 if memory or bytes differ by more than a fifth. CPU is only printed, because it depends on the
machine; the calculator's is that of two cores of a virtual machine."""

import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "judges"))
from world import kubeconfig_server, world  # noqa: E402

OUT = ROOT / "target" / "size"
OBJECT_BYTES = 2500
WARMUP, SECONDS = 3, 15
# Agents, whether each watches everything or the objects of one node, changes per second, objects.
SETUPS = {
    "everything": {"agents": 800, "whole": 1, "changes": 40, "objects": 1000},
    "own node": {"agents": 1000, "whole": 0, "changes": 150, "objects": 10000},
    "many objects": {"agents": 100, "whole": 1, "changes": 20, "objects": 30000},
}
ERROR_MAX = 0.2


def measured(setup, out, binaries):
    """The memory, bytes and CPU of a proxy under the load."""
    with world("proxy", out, binaries / "kube-fanout") as servers:
        spread = ["--select", "all"] if setup["whole"] else ["--select", "node", "--spread", str(setup["agents"])]
        command = [
            str(binaries / "fanoutctl"), "bench", "--target", kubeconfig_server(servers.user), "--ca", str(out / "proxy.crt"),
            "--kubeconfig", str(servers.apiserver), "--pid", str(servers.proxy), "--json", str(out / "bench.json"),
            "--watches", str(setup["agents"]), "--rate", str(setup["changes"]), "--objects", str(setup["objects"]),
            "--object-bytes", str(OBJECT_BYTES), "--warmup", str(WARMUP), "--seconds", str(SECONDS), "--patience", "300",
            *spread]
        memory = None
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as bench:
            for line in bench.stdout:
                if "cleaning up" in line:
                    status = pathlib.Path(f"/proc/{servers.proxy}/status").read_text()
                    memory = 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])
        if bench.returncode or memory is None:
            sys.exit(f"the load failed: {' '.join(command)}")
    figures = json.loads((out / "bench.json").read_text())["outcomes"][0]["figures"]
    return {"memory": memory, "bytes/s": figures["bytes_per_s"], "cores": figures["cpu_cores"]}


def calculated(setup, binaries):
    """The same by `fanoutctl size`: one proxy on the only node, or one that serves an agent of each node."""
    nodes = 1 if setup["whole"] else setup["agents"]
    text = subprocess.run(
        [str(binaries / "fanoutctl"), "size", "--json", "--nodes", str(nodes), "--agents", str(setup["agents"] // nodes),
         "--whole", str(setup["whole"]), "--own", str(1 - setup["whole"]), "--resources", "1", "--replicas", "1",
         "--objects", str(setup["objects"]), "--object-bytes", str(OBJECT_BYTES), "--changes", str(setup["changes"]),
         "--window", f"{WARMUP + SECONDS}s"],
        stdout=subprocess.PIPE, text=True, check=True).stdout
    size = next(size for size in json.loads(text) if size["form"] == "central")
    return {"memory": size["memoryBytes"], "bytes/s": size["sentBytesPerSecond"], "cores": size["cores"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target/release", help="folder of the programs")
    binaries = parser.parse_args().binaries.resolve()
    rows, is_wrong = [], False
    for name, setup in SETUPS.items():
        print(f"{name}: {setup}", flush=True)
        found, expected = measured(setup, OUT / name.replace(" ", "-"), binaries), calculated(setup, binaries)
        for what, value in found.items():
            error = expected[what] / value - 1
            is_wrong |= what != "cores" and abs(error) > ERROR_MAX
            rows.append(f"| {name} | {what} | {expected[what]:,.3g} | {value:,.3g} | {error:+.0%} |")
    print("\n| set-up | what | calculated | measured | error |", "|---|---|---|---|---|", *rows, sep="\n")
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
