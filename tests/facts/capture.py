"""Fills a directory with what a real kube-apiserver answers, for the test of src/wire/derive that KUBE_CAPTURE turns on.

    capture.py BED OUT

BED is the DIR of `kube-testbed up`. Every resource is listed and watched in JSON and in protobuf, as itself and as
PartialObjectMetadata, at one resource version.
"""

import json
import pathlib
import ssl
import sys
import urllib.error
import urllib.request

JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
PARTIAL = "{};as=PartialObjectMetadata{};g=meta.k8s.io;v={}"
WATCH = (
    "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
)


class Server:
    def __init__(self, bed):
        self.url = (bed / "url").read_text().strip()
        self.token = (bed / "admin.token").read_text().strip()
        self.tls = ssl.create_default_context(cafile=str(bed / "ca.crt"))

    def get(self, path, accept=JSON):
        headers = {"Authorization": f"Bearer {self.token}", "Accept": accept, "User-Agent": "capture"}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, context=self.tls, timeout=20) as answer:
            return answer.read()

    def resources(self):
        """(path, apiVersion, resource) of all that can be listed."""
        groups = json.loads(self.get("/apis"))["groups"]
        versions = ["v1"] + [version["groupVersion"] for group in groups for version in group["versions"]]
        for version in versions:
            prefix = f"/api/{version}" if version == "v1" else f"/apis/{version}"
            try:
                found = json.loads(self.get(prefix))["resources"]
            except urllib.error.HTTPError as error:
                print(prefix, error)
                continue
            for resource in found:
                if "/" not in resource["name"] and "list" in resource["verbs"]:
                    yield f"{prefix}/{resource['name']}", version, resource


def capture(server, out, path, api_version, resource):
    stem = path.strip("/").replace("/", "_")
    version = json.loads(server.get(path))["metadata"].get("resourceVersion", "")
    exact = path + (f"?resourceVersion={version}&resourceVersionMatch=Exact" if version else "")

    def save(suffix, *request):
        (out / (stem + suffix)).write_bytes(server.get(*request))

    save(".json", exact)
    protobuf = True
    try:
        save(".pb", exact, PROTOBUF)
    except urllib.error.HTTPError as error:
        # Custom resources have no protobuf form.
        protobuf = error.code != 406
    for meta in ("v1", "v1beta1"):
        save(f".pom{meta}.json", exact, PARTIAL.format(JSON, "List", meta))
        save(f".pom{meta}.pb", exact, PARTIAL.format(PROTOBUF, "List", meta))
    if "watch" in resource["verbs"]:
        save(".watch.json", path + WATCH)
        save(".pomwatch.json", path + WATCH, PARTIAL.format(JSON, "", "v1"))
        save(".pomwatch.pb", path + WATCH, PARTIAL.format(PROTOBUF, "", "v1"))
        if protobuf:
            save(".watch.pb", path + WATCH, PROTOBUF)
    meta = {"apiVersion": api_version, "kind": resource["kind"], "pb": protobuf}
    (out / (stem + ".meta")).write_text(json.dumps(meta))


def main():
    bed, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    server = Server(bed)
    for path, api_version, resource in server.resources():
        capture(server, out, path, api_version, resource)


main()
