"""Opens watches as the programs of a cluster have them, each with its own user and agent, until it is interrupted.

python3 tests/page/watches.py URL TOKEN-FILE [COUNT]

URL is a proxy's (http://HOST:PORT) with `auth: delegated`, and the token that of somebody who may impersonate others.
"""

import itertools
import select
import socket
import sys
import urllib.parse

KUBELET = "kubelet/v1.37.1 (linux/amd64) kubernetes/4c9d2b1"
PODS, SERVICES, SLICES = "/api/v1/pods", "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"


def programs():
    """Users, agents and paths, the most frequent of a cluster most often."""
    for nth in itertools.count():
        node = f"node-{nth:03}"
        yield f"system:node:{node}", KUBELET, f"{PODS}?fieldSelector=spec.nodeName%3D{node}"
        yield f"system:node:{node}", KUBELET, f"{SERVICES}?"
        yield "system:serviceaccount:kube-system:kube-proxy", "kube-proxy/v1.37.1 (linux/amd64)", f"{SERVICES}?"
        yield "system:serviceaccount:kube-system:kube-proxy", "kube-proxy/v1.37.1 (linux/amd64)", f"{SLICES}?"
        yield "system:serviceaccount:kube-system:cilium", "cilium-agent/1.18.2 (go1.25)", f"{PODS}?"
        if nth % 10 == 0:
            yield "system:serviceaccount:monitoring:prometheus-k8s", "Prometheus/3.7.0", f"{PODS}?"
            yield "system:serviceaccount:argocd:argocd-application-controller", "argocd-application-controller/v3.1.8", f"{PODS}?"
            yield "system:serviceaccount:ingress:ingress-nginx", "nginx-ingress-controller/v1.13.3", f"{SLICES}?"
            yield "alice", "kubectl/v1.37.1 (darwin/arm64)", "/api/v1/namespaces/default/pods?"


def main():
    url, token_file, *count = sys.argv[1:]
    place = urllib.parse.urlsplit(url)
    with open(token_file, encoding="utf-8") as file:
        token = file.read().strip()
    watches = []
    for user, agent, path in itertools.islice(programs(), int(count[0]) if count else 400):
        watch = socket.create_connection((place.hostname, place.port))
        watch.sendall("\r\n".join([
            f"GET {path}&watch=true&allowWatchBookmarks=true HTTP/1.1", f"Host: {place.netloc}",
            f"Authorization: Bearer {token}", f"Impersonate-User: {user}", "Impersonate-Group: system:masters",
            f"User-Agent: {agent}", "Accept: application/json", "", "",
        ]).encode())
        watches.append(watch)
    # Some read slowly, as it happens.
    slow, read = watches[60::97], 0
    poll = select.poll()
    for watch in set(watches) - set(slow):
        poll.register(watch, select.POLLIN)
    by_number = {watch.fileno(): watch for watch in watches}
    while True:
        for number, _ in poll.poll():
            if not by_number[number].recv(1 << 18):
                poll.unregister(number)
            read += 1


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
