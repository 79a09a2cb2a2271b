#!/usr/bin/env python3
"""How many events a second one feed takes, and the CPU of each: `make ingest`.

An upstream that costs as little as possible sends events that were prepared before: pods in protobuf, and custom
resources of the same content in JSON. Everything else, such as discovery, goes to a real control plane. A client watches
everything, and checks that it gets each event once and in order; further clients watch nodes to which no object belongs.
All connections are plain HTTP/1.1. The figure is the proxy's CPU, because the machine runs client and upstream as well.

Exits with 1 if a client does not get exactly the events that were sent."""

import argparse
import base64
import http.client
import json
import multiprocessing
import os
import pathlib
import re
import socket
import ssl
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "judges"))
from ingest_frames import FIRST, JsonFrames, ProtobufFrames, exemplar  # noqa: E402
from world import Server, kubeconfig_server, world  # noqa: E402

OUT = ROOT / "target" / "ingest"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "exemplars.ingest.example"},
    "spec": {
        "group": "ingest.example", "scope": "Namespaced",
        "names": {"plural": "exemplars", "singular": "exemplar", "kind": "Exemplar", "listKind": "ExemplarList"},
        "versions": [{
            "name": "v1", "served": True, "storage": True, "selectableFields": [{"jsonPath": ".spec.nodeName"}],
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": True,
                "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True,
                                        "properties": {"nodeName": {"type": "string"}}}}}},
        }],
    },
}
# Only ends a hang.
SECONDS_MAX = 120


class Apiserver:
    """Requests to the control plane as its administrator."""

    def __init__(self, kubeconfig):
        text = kubeconfig.read_text()
        self.address = kubeconfig_server(kubeconfig).removeprefix("https://")
        authority = base64.b64decode(re.search(r"certificate-authority-data: (\S+)", text)[1]).decode()
        self.tls = ssl.create_default_context(cadata=authority)
        self.user = {"Authorization": "Bearer " + re.search(r"token: (\S+)", text)[1]}

    def open(self, method, path, headers, body=None):
        connection = http.client.HTTPSConnection(self.address, context=self.tls)
        connection.request(method, path, body, {**self.user, **headers})
        return connection.getresponse()

    def create(self, path, value):
        response = self.open("POST", path, {"Content-Type": "application/json"}, json.dumps(value))
        text = response.read()
        if response.status != 201:
            sys.exit(f"cannot create {path}: {text.decode()}")


class Upstream:
    """Answers reads of one collection from prepared frames, and passes all other requests on."""

    def __init__(self, apiserver, frames):
        self.apiserver, self.frames = apiserver, frames
        self.start, self.last = threading.Event(), FIRST
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            reader = connection.makefile("rb")
            while line := reader.readline():
                method, path, _ = line.decode().split()
                headers = {}
                while (header := reader.readline().decode().strip()):
                    name, value = header.split(":", 1)
                    headers[name.lower()] = value.strip()
                body = reader.read(int(headers.get("content-length", 0)))
                self.respond(connection, method, path, headers, body)
        except (OSError, http.client.HTTPException):
            pass  # One side has ended.
        finally:
            connection.close()

    def respond(self, connection, method, path, headers, body):
        if path.split("?")[0] != self.frames.collection:
            wanted = {name: value for name, value in headers.items() if name in ("accept", "content-type", "if-none-match")}
            response = self.apiserver.open(method, path, wanted, body or None)
            self.head(connection, response.status, response.getheader("Content-Type", ""), response.getheader("ETag"))
            while part := response.read1(65536):
                self.chunk(connection, part)
        elif "watch=" not in path:
            self.head(connection, 200, self.frames.content_type)
            self.chunk(connection, self.frames.empty_list(self.last))
        else:
            self.head(connection, 200, self.frames.watch_type)
            if "sendInitialEvents=true" in path:
                self.chunk(connection, self.frames.bookmark(self.last))
            self.start.wait()
            for part in self.frames.parts:
                self.chunk(connection, part)
            self.last = FIRST + self.frames.count
            # The stream stays open, as an apiserver's does.
            connection.recv(1)
        connection.sendall(b"0\r\n\r\n")

    def head(self, connection, status, content_type, etag=None):
        extra = f"ETag: {etag}\r\n" if etag else ""
        connection.sendall(
            f"HTTP/1.1 {status} x\r\nContent-Type: {content_type}\r\n{extra}Transfer-Encoding: chunked\r\n\r\n".encode())

    def chunk(self, connection, part):
        connection.sendall(b"%x\r\n" % len(part))
        connection.sendall(part)
        connection.sendall(b"\r\n")


def opened(address, path, accept):
    """Opens a watch, and returns its connection and what was read after the head."""
    connection = socket.create_connection(address)
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {address[0]}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode())
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, rest = received.split(b"\r\n\r\n", 1)
    if b" 200 " not in head.split(b"\r\n")[0]:
        sys.exit(f"cannot watch: {head.decode()}")
    return connection, rest


def follow(address, path, accept, count, version, ready, results):
    """Reads a watch up to the last event, and returns when that was, and whether all came in order."""
    connection, rest = opened(address, path, accept)
    parts, last = [rest], str(FIRST + count).encode()
    ready.set()
    connection.settimeout(SECONDS_MAX)
    while last not in parts[-1] and not (len(parts) > 1 and last in parts[-2][-20:] + parts[-1][:20]):
        part = connection.recv(1 << 20)
        if not part:
            break
        parts.append(part)
    ended, text, at, body = time.monotonic(), b"".join(parts), 0, []
    while (end := text.find(b"\r\n", at)) > 0:
        length = int(text[at:end], 16)
        body.append(text[end + 2:end + 2 + length])
        at = end + 4 + length
    versions = [int(version) for version in re.findall(version, b"".join(body))]
    results.put((ended, versions == list(range(FIRST + 1, FIRST + count + 1)), len(versions)))


def watch_nodes(address, path, accept, watches, ready, done):
    """Opens watches of nodes that have no objects, and keeps them until the end."""
    connections = [opened(address, f"{path}&fieldSelector=spec.nodeName%3Dother-{n}", accept)[0] for n in range(watches)]
    ready.set()
    done.wait()
    for connection in connections:
        connection.close()


def cpu_seconds(process):
    """The CPU of a process so far: its own, and that of the kernel for it."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in fields[11:13]]


def measure(apiserver, frames, lanes, out, proxy):
    """One run with a new proxy. Returns events per second, and the CPU of each in microseconds, as cpu_seconds."""
    upstream = Upstream(apiserver, frames)
    user = out / "upstream.kubeconfig"
    user.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: '%s'}\n"
        "contexts:\n- name: c\n  context: {cluster: c, user: c}\nusers:\n- {name: c, user: {}}\n" % upstream.url)
    server = Server(
        [str(proxy), "serve", "--kubeconfig", str(user), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
        out / "proxy.log")
    context = multiprocessing.get_context("fork")
    done = context.Event()
    try:
        listens = re.compile(r"^serving on (\S+)$", re.M)
        found = server.until(lambda: listens.search((out / "proxy.log").read_text()))
        host, port = found[1].removeprefix("http://").rsplit(":", 1)
        path = f"{frames.collection}?watch=1&resourceVersion={FIRST}"
        results, clients = context.Queue(), []
        for target, last in [(follow, (frames.count, frames.version)), (watch_nodes, (lanes,))]:
            ready = context.Event()
            extra = (results,) if target is follow else (done,)
            clients.append(context.Process(
                target=target, args=((host, int(port)), path, frames.content_type, *last, ready, *extra)))
            clients[-1].start()
            if not ready.wait(SECONDS_MAX):
                sys.exit(f"no watch was opened: {out / 'proxy.log'}")
        before, started = cpu_seconds(server.process.pid), time.monotonic()
        upstream.start.set()
        ended, is_complete, received = results.get(timeout=2 * SECONDS_MAX)
        spent = [1e6 * (after - before) / frames.count
                 for after, before in zip(cpu_seconds(server.process.pid), before)]
        if not is_complete:
            print(f"  of {frames.count} events, {received} came, or not in order", flush=True)
        return frames.count / (ended - started), spent, is_complete
    finally:
        done.set()
        server.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/kube-fanout", help="the proxy")
    parser.add_argument("--events", type=int, default=100_000, help="events of each run (default: 100000)")
    arguments = parser.parse_args()
    rows, is_failed = [], False
    with world("direct", OUT / "plane", None) as servers:
        apiserver = Apiserver(servers.apiserver)
        apiserver.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
        for kind in (ProtobufFrames, JsonFrames):
            for size in (600, 2_000, 14_500):
                frames = kind(apiserver, exemplar(size), arguments.events)
                for lanes in (0, 1_000):
                    rate, (own, kernel), is_complete = measure(apiserver, frames, lanes, OUT / "plane", arguments.binary.resolve())
                    rows.append(f"| {frames.name} | {frames.object_bytes:,} | {lanes:,} | {rate:,.0f} | {own:.1f} | {kernel:.1f} |")
                    print(rows[-1], flush=True)
                    is_failed |= not is_complete
    print("\n| encoding | bytes | watches of other nodes | events/s | CPU of an event, µs | the kernel's |", "|---|---|---|---|---|---|", *rows, sep="\n")
    return 1 if is_failed else 0


if __name__ == "__main__":
    sys.exit(main())
