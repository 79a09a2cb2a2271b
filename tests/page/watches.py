"""Opens watches like the programs of a cluster, each with its own user and agent, until it is interrupted.

python3 tests/page/watches.py URL TOKEN-FILE [COUNT]

URL is a proxy's (http://HOST:PORT) with `auth: delegated`, in front of a test cluster: service accounts are created there
that may read everything. The token must have that permission.
"""

import itertools
import json
import select
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request

PODS, SERVICES, SLICES = "/api/v1/pods", "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"
NODE_PODS = PODS + "?fieldSelector=spec.nodeName%3Dnode-{:03}"
# Namespace, service account, agent, path, and in how many of ten nodes it runs.
PROGRAMS = [
    ("kube-system", "kube-proxy", "kube-proxy/v1.37.1 (linux/amd64) kubernetes/4c9d2b1", SERVICES, 10),
    ("kube-system", "kube-proxy", "kube-proxy/v1.37.1 (linux/amd64) kubernetes/4c9d2b1", SLICES, 10),
    ("kube-system", "cilium", "cilium-agent/1.18.2 (go1.25)", PODS, 10),
    ("logging", "fluent-bit", "fluent-bit/4.1.0", NODE_PODS, 10),
    ("monitoring", "prometheus-k8s", "Prometheus/3.7.0", PODS, 1),
    ("argocd", "argocd-application-controller", "argocd-application-controller/v3.1.8", PODS, 1),
    ("ingress", "ingress-nginx", "nginx-ingress-controller/v1.13.3", SLICES, 1),
]


class Cluster:
    """The API, with the permissions of the token."""

    def __init__(self, url, token):
        self.url, self.token = url, token

    def create(self, path, **what):
        request = urllib.request.Request(self.url + path, json.dumps(what).encode(), {
            "Authorization": f"Bearer {self.token}", "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # It exists from an earlier run.
            if error.code != 409:
                raise
            return None

    def tokens(self):
        """A token for each service account, which may read everything."""
        group = {"kind": "Group", "name": "system:serviceaccounts", "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"}
        self.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
                    metadata={"name": "picture"}, subjects=[group], roleRef=role)
        tokens = {}
        for namespace, name in {program[:2] for program in PROGRAMS}:
            accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
            self.create("/api/v1/namespaces", metadata={"name": namespace})
            self.create(accounts, metadata={"name": name})
            token = self.create(f"{accounts}/{name}/token", kind="TokenRequest",
                                apiVersion="authentication.k8s.io/v1", spec={"expirationSeconds": 3600})
            tokens[namespace, name] = token["status"]["token"]
        return tokens


def programs():
    """Programs and their nodes, without end."""
    for nth in itertools.count():
        for program in PROGRAMS:
            if nth % 10 < program[4]:
                yield program, nth


def main():
    url, token_file, *count = sys.argv[1:]
    place = urllib.parse.urlsplit(url)
    with open(token_file, encoding="utf-8") as file:
        tokens = Cluster(url, file.read().strip()).tokens()
    watches = []
    for program, node in itertools.islice(programs(), int(count[0]) if count else 400):
        namespace, name, agent, path, _ = program
        path = path.format(node)
        path += ("&" if "?" in path else "?") + "watch=true&allowWatchBookmarks=true"
        watch = socket.create_connection((place.hostname, place.port))
        watch.sendall("\r\n".join([
            f"GET {path} HTTP/1.1", f"Host: {place.netloc}", f"Authorization: Bearer {tokens[namespace, name]}",
            f"User-Agent: {agent}", "Accept: application/json", "", "",
        ]).encode())
        watches.append(watch)
    # Some read slowly, as it happens.
    slow = watches[2:6] + watches[62::97]
    poll = select.poll()
    for watch in set(watches) - set(slow):
        poll.register(watch, select.POLLIN)
    by_number = {watch.fileno(): watch for watch in watches}
    while True:
        for number, _ in poll.poll():
            if not by_number[number].recv(1 << 18):
                poll.unregister(number)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
