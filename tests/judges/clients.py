#!/usr/bin/env python3
"""Client libraries of four languages follow a collection through kills of proxy and apiserver: `make clients`.

Each client (CLIENTS) is a small program that lists ConfigMaps and follows them by what its library offers for that, and
prints a line for each state it learns: `set KEY VERSION VALUE` or `gone KEY VERSION`. All follow the same changes: while
both servers run, while the proxy is killed and started again, and while the apiserver is. A client passes if it never
goes back to an older version of an object, and ends with the apiserver's state. The lists that it sends after the proxy
was killed are counted from the proxy's audit log.

Exits with 1 if a client fails, with 2 for wrong arguments. A client whose language is not installed is skipped, or an
error if CI is set."""

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
import threading
import time

from world import OUT, ROOT, TESTBED, Server, kubeconfig_server, world

PROGRAMS = pathlib.Path(__file__).resolve().parent / "clients"
NAMESPACE = "followed"
# Only ends a hang: a client learns of a change in seconds, or after its own back-off in a minute.
SECONDS_MAX = 180
# The state of an object that is deleted.
GONE = "gone"


def python_client(kind):
    folder = OUT / "python"
    stamp, wanted = folder / "requirements.txt", PROGRAMS / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "-q", "--disable-pip-version-check", "-r", str(wanted)], check=True)
        shutil.copy(wanted, stamp)
    return [str(folder / "bin/python"), str(PROGRAMS / "follow.py"), kind]


def node_client(_):
    if not shutil.which("npm"):
        return None
    folder = OUT / "node"
    if not (folder / "node_modules").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "tests/node/package.json", folder)
        subprocess.run(["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund",
                        "--loglevel=error"], cwd=folder, check=True)
    # A module is looked up from where the program is.
    shutil.copy(PROGRAMS / "follow.js", folder)
    return ["node", str(folder / "follow.js")]


def java_client(kind):
    if not (shutil.which("java") and shutil.which("mvn")):
        return None
    folder = OUT / "java"
    if not folder.exists():
        partial = OUT / "java.partial"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(["mvn", "-q", "-f", str(ROOT / "tests/java/pom.xml"), "dependency:copy-dependencies",
                        f"-DoutputDirectory={partial}"], check=True)
        partial.rename(folder)
    return ["java", "-cp", f"{folder}/*", str(PROGRAMS / "Follow.java"), kind]


def ruby_client(_):
    if not shutil.which("ruby") and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "-qq", "update"], check=False)
        subprocess.run(["apt-get", "-qq", "install", "-y", "ruby-kubeclient"], check=False, stdout=subprocess.DEVNULL)
    return ["ruby", str(PROGRAMS / "follow.rb")] if shutil.which("ruby") else None


CLIENTS = {
    "fabric8-vertx": java_client, "fabric8-jdk": java_client, "fabric8-okhttp": java_client, "client-java": java_client,
    "client-node": node_client, "kubernetes": python_client, "kubernetes-asyncio": python_client,
    "lightkube": python_client, "kopf": python_client, "kubeclient": ruby_client,
}


# It prints only the last of several states that arrive within a tenth of a second.
SKIPPING = {"kopf"}
# Its informer lists again after each lost connection.
LISTING = {"client-java"}


class Client:
    """A running program, and what it has learned."""

    def __init__(self, name, command, kubeconfig, out):
        self.name, self.state, self.versions, self.older = name, {}, collections.Counter(), []
        self.states = collections.defaultdict(list)
        self.log = open(out / f"{name}.log", "wb")
        environment = dict(os.environ, KUBECONFIG=str(kubeconfig))
        self.process = subprocess.Popen(
            [*command, str(kubeconfig), NAMESPACE], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self.log, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            kind, *values = line.split()
            if kind not in ("set", "gone"):
                continue
            key, version = values[0], int(values[1])
            if version < self.versions[key]:
                self.older.append((key, version, self.versions[key]))
            self.versions[key] = max(version, self.versions[key])
            if kind == "set":
                self.state[key] = values[2]
            else:
                self.state.pop(key, None)
            self.states[key].append(values[2] if kind == "set" else GONE)

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


class Proxy:
    """The proxy at one address, however often it is killed."""

    def __init__(self, binary, servers, out):
        self.binary, self.servers, self.out, self.lives = binary, servers, out, 0
        self.port = 0
        self.start()

    def start(self):
        self.lives += 1
        log = self.out / f"proxy-{self.lives}.log"
        plane = self.servers.plane
        self.server = Server(
            [str(self.binary), "serve", "--kubeconfig", str(self.servers.apiserver), "--listen", f"127.0.0.1:{self.port}",
             "--admin", "127.0.0.1:0", "--auth", "delegated", "--tls-cert", str(plane / "apiserver.crt"), "--tls-key",
             str(plane / "apiserver.key"), "--cache-sensitive", "configmaps", "--audit-log", str(self.audit())], log)
        address = self.server.until(lambda: re.search(r"^serving on (\S+)$", log.read_text(), re.M))[1]
        self.port = int(address.rsplit(":", 1)[1])

    def audit(self):
        return self.out / f"audit-{self.lives}.jsonl"

    def kill(self):
        self.server.process.kill()
        self.server.process.wait()

    def reads(self, name):
        """The verbs of a client's reads of the collection in this life."""
        records = [json.loads(line) for line in self.audit().read_text().splitlines()]
        return [record["verb"] for record in records if record["user"]["username"] == account(name)
                and record.get("objectRef", {}).get("resource") == "configmaps"
                and (record["verb"] == "watch") == (record["stage"] == "ResponseStarted")]


def account(name):
    """The account of a client: not every library lets a program choose its user agent."""
    return f"system:serviceaccount:{NAMESPACE}:{name}"


class Objects:
    """The collection, as kubectl writes it to the apiserver."""

    def __init__(self, kubeconfig):
        self.kubectl, self.values = [str(TESTBED), "kubectl", "--kubeconfig", str(kubeconfig)], {}
        self.states = collections.defaultdict(list)
        self.run("create", "namespace", NAMESPACE)
        self.run("create", "clusterrolebinding", NAMESPACE, "--clusterrole=cluster-admin",
                 f"--group=system:serviceaccounts:{NAMESPACE}")

    def run(self, *arguments):
        return subprocess.run([*self.kubectl, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout

    def token(self, name):
        """The token of a new account."""
        self.run("-n", NAMESPACE, "create", "serviceaccount", name)
        return self.run("-n", NAMESPACE, "create", "token", name).strip()

    def change(self, values, deleted=()):
        """Writes these values, and deletes objects."""
        items = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": key, "namespace": NAMESPACE},
                  "data": {"value": value}} for key, value in values.items()]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()
        subprocess.run([*self.kubectl, "apply", "--server-side", "--force-conflicts", "-f", "-"], input=text, check=True,
                       stdout=subprocess.DEVNULL)
        for key in deleted:
            self.run("-n", NAMESPACE, "delete", "configmap", key)
            self.values.pop(key)
            self.states[key].append(GONE)
        self.values.update(values)
        for key, value in values.items():
            self.states[key].append(value)

    def round(self, number):
        """Changes every object, adds one and deletes one."""
        kept = sorted(self.values)[1:]
        deleted = sorted(self.values)[:1]
        self.change({key: f"v{number}" for key in [*kept, f"k{number:03}"]}, deleted)


def learned(clients, objects):
    """Waits until every client has the apiserver's state. Returns those that have not, after SECONDS_MAX."""
    for _ in range(SECONDS_MAX * 10):
        behind = [client for client in clients if client.state != objects.values]
        if not behind or all(client.process.poll() is not None for client in behind):
            return behind
        time.sleep(0.1)
    return behind


def follow(names, commands, proxy, servers, out):
    """Runs the clients through all changes. Returns how often each listed after the proxy was killed, and what failed."""
    objects = Objects(servers.apiserver)
    objects.change({f"a{number:02}": "v0" for number in range(20)})
    original = servers.apiserver.read_text().replace(
        kubeconfig_server(servers.apiserver), f"https://127.0.0.1:{proxy.port}")
    clients = []
    for name in names:
        user = out / f"{name}.kubeconfig"
        user.write_text(re.sub(r"token: .*", f"token: {objects.token(name)}", original))
        clients.append(Client(name, commands[name], user, out))
    failed = collections.defaultdict(list)

    def check(moment):
        print(f"  {moment}", flush=True)
        for client in learned(clients, objects):
            of_both = client.state.items() ^ objects.values.items()
            failed[client.name].append(f"{moment}: {len(of_both)} differences from the apiserver's state")

    try:
        check("start")
        objects.round(1)
        check("changes")
        proxy.kill()
        objects.round(2)
        proxy.start()
        objects.round(3)
        check("after the proxy was killed")
        os.kill(int((servers.plane / "apiserver.pid").read_text()), signal.SIGKILL)
        apiserver = Server([str(TESTBED), "apiserver", "--dir", str(servers.plane)], out / "apiserver.log")
        try:
            ready = [*objects.kubectl, "get", "--raw", "/readyz", "--request-timeout=5s"]
            apiserver.until(lambda: subprocess.run(ready, capture_output=True).returncode == 0)
            objects.round(4)
            check("after the apiserver was killed")
            reads = {name: proxy.reads(name) for name in names}
        finally:
            apiserver.end()
    finally:
        for client in clients:
            client.end()
    for client in clients:
        failed[client.name] += judged(client, reads[client.name], objects)
        failed[client.name] += [f"{key} went back from {newer} to {older}" for key, older, newer in client.older]
    return {name: verbs.count("list") for name, verbs in reads.items()}, failed


def judged(client, reads, objects):
    """What is wrong with how a client went on after the proxy was killed, and with the states that it learned on the way."""
    if "watch" not in reads:
        yield "opened no watch after the proxy was killed"
    if "list" in reads and client.name not in LISTING:
        yield "listed again after the proxy was killed"
    if "list" not in reads and client.name not in SKIPPING:
        for key in sorted(objects.states.keys() | client.states.keys()):
            if client.states[key] != objects.states[key]:
                yield f"{key} was {' '.join(client.states[key])}, not {' '.join(objects.states[key])}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help=f"{', '.join(CLIENTS)} (default: all)")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/kube-fanout", help="the proxy")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in CLIENTS]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(CLIENTS)}")
    OUT.mkdir(parents=True, exist_ok=True)
    # The servers are ended in this case, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    commands = {name: CLIENTS[name](name) for name in arguments.names or CLIENTS}
    missing = [name for name, command in commands.items() if command is None]
    if missing:
        print(f"SKIPPED, because their language is not installed: {', '.join(missing)}", flush=True)
    names = [name for name in commands if name not in missing]
    out = OUT / "clients"
    with world("direct", out, None) as servers:
        proxy = Proxy(arguments.binary.resolve(), servers, out)
        try:
            lists, failed = follow(names, commands, proxy, servers, out)
        finally:
            proxy.kill()
    print("\n| client | lists after the proxy was killed | result |", "|---|---|---|", sep="\n")
    for name in names:
        print(f"| {name} | {lists[name]} | {'; '.join(failed[name]) or 'as the apiserver'} |")
    return 1 if any(failed.values()) or (missing and os.environ.get("CI")) else 0


if __name__ == "__main__":
    sys.exit(main())
