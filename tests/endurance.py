"""Endurance test: runs `fanoutctl verify` repeatedly in front of a real control plane, while a fault every few seconds
kills or stops the apiserver (`--faults apiserver`), the proxy (`proxy`), or both at once (`both`). Sums the checks of
all runs. With `--faults apiserver` the proxy keeps running, so the slopes of its memory, descriptors, tasks and threads
are printed too. Exits with 1 at the first broken promise, and keeps its record."""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTBED = ROOT / "target" / "testbed" / "kube-testbed"
READY_SECONDS = 120
FAULTS = {
    "apiserver": ["kill-apiserver", "kill-apiserver", "stop-apiserver"],
    "proxy": ["kill-proxy", "kill-proxy", "kill-proxy", "stop-proxy"],
    "both": ["kill-apiserver kill-proxy", "kill-proxy stop-apiserver"],
}
# What of /metrics is added up over the lives of a proxy.
ADDED = ("kube_fanout_feed_requests_total", "kube_fanout_watches_ended_total", "kube_fanout_history_gaps_total")


class Bed:
    """A directory with a control plane and a proxy in front of it, which commands of its own break."""

    def __init__(self, directory):
        self.dir = pathlib.Path(directory).resolve()
        self.settings = self.dir / "endurance.json"

    def start(self, binary):
        self.dir.mkdir(parents=True)
        ports = [free_port(), free_port()]
        self.settings.write_text(json.dumps({"binary": str(binary), "port": ports[0], "admin": ports[1]}))
        log = open(self.dir / "up.log", "w")
        flags = ["--apiserver-flag", "--storage-media-type=application/json"]
        self.up = subprocess.Popen([TESTBED, "up", "--dir", self.dir, *flags], stdout=log, stderr=log)
        wait_for("the control plane", lambda: (self.dir / "ready").exists())
        self.start_proxy()

    def stop(self):
        if (self.dir / "proxy.pid").exists():
            self.end("proxy.pid", signal.SIGTERM)
        self.up.terminate()
        self.up.wait(60)

    def __getattr__(self, name):
        return json.loads(self.settings.read_text())[name]

    def pid(self, file):
        return int((self.dir / file).read_text())

    def end(self, file, how):
        pid = self.pid(file)
        os.kill(pid, how)
        wait_for(f"the end of {file}", lambda: not running(pid))

    def start_proxy(self):
        log = open(self.dir / "proxy.log", "a")
        command = [self.binary, "serve", "--kubeconfig", self.dir / "admin.kubeconfig"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}", *MAPS_PRELOADED]
        command += ["--tls-cert", self.dir / "apiserver.crt", "--tls-key", self.dir / "apiserver.key"]
        env = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "NODE_NAME")}
        started = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        (self.dir / "proxy.pid").write_text(str(started.pid))
        wait_for("the proxy", lambda: self.metrics())

    def kill_proxy(self):
        self.keep_metrics()
        self.end("proxy.pid", signal.SIGKILL)
        time.sleep(random.uniform(0, 2))
        self.start_proxy()

    def kill_apiserver(self):
        self.end("apiserver.pid", signal.SIGKILL)
        time.sleep(random.uniform(0, 3))
        log = open(self.dir / "again.log", "a")
        again = [TESTBED, "apiserver", "--dir", self.dir]
        subprocess.Popen(again, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        ready = [TESTBED, "kubectl", "--kubeconfig", self.dir / "admin.kubeconfig", "get", "--raw", "/readyz"]
        wait_for("the apiserver", lambda: succeeds([*ready, "--request-timeout=5s"]))

    def pause(self, file, longest):
        pid = self.pid(file)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(random.uniform(0.2, longest))
        finally:
            os.kill(pid, signal.SIGCONT)

    def stop_proxy(self):
        self.pause("proxy.pid", 8)

    def stop_apiserver(self):
        self.pause("apiserver.pid", 20)

    def metrics(self):
        """The samples of /metrics, by name and labels; none if there is no response."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {sample: float(value) for sample, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")}

    def keep_metrics(self):
        """Stores the counters of a proxy that is about to end."""
        with open(self.dir / "lives.jsonl", "a") as lives:
            of_maps = {sample: value for sample, value in self.metrics().items() if kept(sample)}
            lives.write(json.dumps(of_maps) + "\n")


MAPS_PRELOADED = ("--preload", "configmaps")


def kept(sample):
    return sample.startswith(ADDED) and 'resource="configmaps' in sample


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def succeeds(command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def wait_for(what, is_there):
    end = time.monotonic() + READY_SECONDS
    while not is_there():
        if time.monotonic() > end:
            sys.exit(f"{what} is not there after {READY_SECONDS} s")
        time.sleep(0.05)


def break_it(directory, acts):
    """Several at once each in a thread of its own; fails if one of them does."""
    bed, failed = Bed(directory), []

    def act(name):
        try:
            getattr(bed, name.replace("-", "_"))()
        except BaseException as error:
            failed.append(f"{name}: {error}")

    threads = [threading.Thread(target=act, args=(name,)) for name in acts]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if failed:
        sys.exit("; ".join(failed))


class Sums:
    """What all runs came to."""

    def __init__(self):
        self.counts, self.judged, self.faults, self.seen = (collections.Counter() for _ in range(4))
        self.samples = []

    def add(self, output, record):
        counted = next(line for line in output.splitlines() if " events, " in line and " GETs" in line)
        self.counts.update({name: int(number) for number, name in re.findall(r"(\d+) (\w+)", counted)})
        self.judged.update({name: int(times) for name, times in re.findall(r"^\s*(\w+)\s+ok in (\d+)", output, re.M)})
        resumed = set()
        for line in open(record):
            if line.startswith('{"fault"'):
                fault = json.loads(line)["fault"]
                for act in fault["name"].split(" -- ", 1)[1].split():
                    self.faults[act] += fault["hits"]
            elif line.startswith('{"call"') and '"resumes"' in line:
                call = json.loads(line)["call"]
                # Requests to the apiserver itself are excluded: when it is killed, it forgets its history.
                if call["verb"] == "watch" and call.get("server") != "direct":
                    resumed.add(call["op"])
            elif '"code":410' in line:
                kind, record = next(iter(json.loads(line).items()))
                # A resumed watch that received 410, so its client had to relist.
                self.seen["relists"] += record["op"] in resumed
        self.seen["resumes"] += len(resumed)

    def sample(self, bed, seconds):
        metrics = bed.metrics()
        if not metrics:
            return
        status = pathlib.Path(f"/proc/{bed.pid('proxy.pid')}/status").read_text()
        threads = int(re.search(r"^Threads:\s+(\d+)", status, re.M)[1])
        memory = metrics["process_resident_memory_bytes"]
        # What feeds hold goes with the window: with how much was written in its last minutes.
        held = sum(value for name, value in metrics.items() if name.startswith("kube_fanout_memory_used_bytes"))
        files, tasks = metrics["process_open_fds"], metrics["kube_fanout_tasks"]
        self.samples.append((seconds, memory, memory - held, files, tasks, threads))

    def slopes(self):
        """What was added in an hour, by a line through the second half of the samples."""
        half = self.samples[len(self.samples) // 2 :]
        if len(half) < 3:
            return
        mean = sum(row[0] for row in half) / len(half)
        spread = sum((row[0] - mean) ** 2 for row in half)
        names = ("memory MiB", "memory besides feeds MiB", "descriptors", "tasks", "threads")
        for column, name in enumerate(names, 1):
            scale = 1 / (1 << 20) if name.endswith("MiB") else 1
            values = [row[column] * scale for row in half]
            slope = sum((row[0] - mean) * value for row, value in zip(half, values)) / spread * 3600
            yield f"{name} {values[0]:.1f} to {values[-1]:.1f}, at most {max(values):.1f}, {slope:+.1f} an hour"

    def tell(self, bed):
        bed.keep_metrics()
        lives = [json.loads(line) for line in open(bed.dir / "lives.jsonl")]
        added = collections.Counter()
        for life in lives:
            for sample, value in life.items():
                labels = dict(re.findall(r'(\w+)="([^"]*)"', sample))
                what = labels.get("purpose") or labels.get("reason") or labels.get("outcome")
                added[f"{sample.split('{')[0][len('kube_fanout_'):]} {what}"] += int(value)
        for name, counter in (
            ("counts", self.counts), ("judged", self.judged), ("faults", self.faults), ("clients", self.seen),
            (f"proxies ({len(lives)} lives)", added),
        ):
            print(f"{name}: " + ", ".join(f"{value} {key}" for key, value in sorted(counter.items())), flush=True)
        [print(slope, flush=True) for slope in self.slopes()]


def endure(arguments):
    bed, sums = Bed(arguments.dir), Sums()
    seed = arguments.seed or random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    try:
        bed.start(arguments.binary)
        began, broken = time.monotonic(), False
        while time.monotonic() - began < arguments.seconds and not broken:
            broken = not one_run(bed, sums, seed, arguments)
            seed += 1
            sums.sample(bed, time.monotonic() - began)
            seconds = time.monotonic() - began
            done = f"{sums.counts['events']} events, {dict(sums.faults)}, {dict(sums.seen)}"
            print(f"after {seconds:.0f} s: {done}", flush=True)
        sums.tell(bed)
    finally:
        bed.stop()
    if broken:
        sys.exit(1)
    shutil.rmtree(bed.dir)


def one_run(bed, sums, seed, arguments):
    """False if a promise was broken."""
    url, out = f"https://127.0.0.1:{bed.port}", bed.dir / "verify"
    etcd = f"http://127.0.0.1:{json.loads((bed.dir / 'settings.json').read_text())['etcdPort']}"
    command = [bed.binary, "verify", url, "--kubeconfig", bed.dir / "admin.kubeconfig", "--ca", bed.dir / "ca.crt"]
    command += ["--truth", f"etcd={etcd}", "--out", out, "--seed", str(seed), "--duration", f"{arguments.run_seconds}s"]
    command += ["--clients", str(arguments.clients), "--rate", str(arguments.rate), "--record-mebibytes", "4096"]
    for acts in FAULTS[arguments.faults]:
        fault = [sys.executable, __file__, "fault", str(bed.dir), "--", *acts.split()]
        command += ["--fault", shlex.join(fault)]
    command += ["--fault-every", *(f"{seconds}s" for seconds in arguments.fault_every), "--share", str(arguments.share)]
    command += ["--transports", arguments.transports] if arguments.transports else []
    command += ["--patience", f"{arguments.patience}s"] if arguments.patience else []
    command += ["--informers"] if arguments.informers else []
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    output = ran.stdout + ran.stderr
    if ran.returncode == 0:
        sums.add(output, out / "records.jsonl")
        judged = subprocess.run([*shlex.split(arguments.judge), out / "records.jsonl"]) if arguments.judge else None
        if judged and judged.returncode != 0:
            print(f"seed {seed}: {arguments.judge}: exit {judged.returncode}; {out}", flush=True)
            return False
        shutil.rmtree(out)
        return True
    print(f"seed {seed}: exit {ran.returncode}; {out}\n{output}", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    fault = verbs.add_parser("fault")
    fault.add_argument("dir")
    fault.add_argument("acts", nargs="+")
    fault.set_defaults(run=lambda given: break_it(given.dir, given.acts))
    run = verbs.add_parser("run")
    run.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "kube-fanout")
    run.add_argument("--dir", default=ROOT / "target" / "endurance")
    run.add_argument("--seconds", type=int, default=3600)
    run.add_argument("--run-seconds", type=int, default=240)
    run.add_argument("--clients", type=int, default=64)
    run.add_argument("--rate", type=int, default=50)
    run.add_argument("--informers", action="store_true", help="all clients are informers, which receive the most events")
    run.add_argument("--share", type=int, default=1, help="number of clients that share an HTTP/2 connection")
    run.add_argument("--transports", help="transports of the clients: h1, h2, ws [default: all]")
    run.add_argument("--patience", type=int, help="maximum delivery time of an event in seconds, for a busy machine")
    run.add_argument("--faults", choices=FAULTS, default="both")
    run.add_argument("--fault-every", type=int, nargs=2, default=[0, 2], help="minimum and maximum seconds between faults")
    run.add_argument("--judge", metavar="COMMAND", help="also judge each record with COMMAND RECORD")
    run.add_argument("--seed", type=int)
    run.set_defaults(run=endure)
    arguments = parser.parse_args()
    arguments.run(arguments)


main()
