"""The conformance tests of the apiserver's storage.Interface (k8s.io/apiserver/pkg/storage/testing), over HTTP: reads by
the side under test, writes by the apiserver."""

import json
import os
import pathlib
import re
import subprocess

from controller_runtime import FLAGS, go
from world import OUT, TESTBED

NAMES = ["storage"]
FOLDER = pathlib.Path(__file__).resolve().parent / "storage"
VERSION = re.search(r"k8s.io/apiserver (\S+)", (FOLDER / "go.mod").read_text())[1]
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "pods.example.apiserver.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "example.apiserver.k8s.io", "scope": "Namespaced",
        "names": {"plural": "pods", "singular": "pod", "kind": "Pod", "listKind": "PodList"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "selectableFields": [{"jsonPath": ".spec.nodeName"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True,
                         "properties": {"nodeName": {"type": "string"}}},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            }}},
        }],
    },
}
# Tests that may differ, and why.
EXPECTED = {
    "TestStorage/ConsistentList/Non-consistent_list_before_consistent_read":
        "a list at 0 is as new as etcd once a read has proven the cache",
    "TestStorage/ConsistentList/Non-consistent_request_after_consistent_read":
        "the apiserver answers a continue token of version -1, from which the cache learns no version",
    "TestStorage/List/test_List_with_resource_version_set_before_first_write,_match=Exact":
        "the window still has a version that etcd has compacted",
}
# The others need names, UIDs or versions that no client can choose.
SHARE_MIN = 0.9


def build(_):
    """Builds the tests, and returns the function that runs them in a world."""
    binary = OUT / "storage.test"
    go("test", "-c", *FLAGS, "-o", str(binary), ".", cwd=FOLDER)

    def run(world, output, timeout):
        kubectl = [str(TESTBED), "kubectl", "--kubeconfig", str(world.apiserver)]
        subprocess.run([*kubectl, "apply", "-f", "-"], input=json.dumps(DEFINITION).encode(), stdout=output, check=True)
        subprocess.run(
            [*kubectl, "wait", "--for=condition=Established", "crd/pods.example.apiserver.k8s.io"],
            stdout=output, check=True)
        # Answers only once the definition's storage is ready.
        for user in {world.apiserver, world.user}:
            subprocess.run([*kubectl, "--kubeconfig", str(user), "get", "pods.example.apiserver.k8s.io"], stdout=output,
                           stderr=subprocess.STDOUT, check=True)
        port = json.loads((world.plane / "settings.json").read_text())["etcdPort"]
        environment = dict(
            os.environ, STORAGE_READS=str(world.user), STORAGE_WRITES=str(world.apiserver),
            STORAGE_ETCD=f"http://127.0.0.1:{port}")
        subprocess.run(
            [str(binary), "-test.v", f"-test.timeout={timeout}s"], cwd=FOLDER, env=environment, stdout=output,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=timeout)
        return states((world.out / "tests.log").read_text())

    return run


def states(log):
    """The state of each test that has no tests inside."""
    words = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
    found = {name: words[state] for state, name in re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+)", log, re.M)}
    return {name: state for name, state in found.items() if not any(other.startswith(f"{name}/") for other in found)}
