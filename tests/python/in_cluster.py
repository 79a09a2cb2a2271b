"""Prints the time and the version of each change of Services, read by the in-cluster configuration.

Run in the place of a container by tests/conformance/in_cluster/pod.rs.
"""

import sys
import time

import urllib3
from kubernetes import client, config, watch

config.load_incluster_config()
api = client.CoreV1Api()
namespace = sys.argv[1]


def show(item):
    print("received", time.time_ns() // 1_000_000, item.metadata.resource_version, flush=True)


# What programs with this client do: it has no informer, and its watch raises whatever ends a stream.
version = None
while True:
    try:
        if version is None:
            listed = api.list_namespaced_service(namespace, _request_timeout=10)
            version = listed.metadata.resource_version
            for item in listed.items:
                show(item)
        for event in watch.Watch().stream(api.list_namespaced_service, namespace, resource_version=version):
            version = event["object"].metadata.resource_version
            show(event["object"])
    except client.ApiException as error:
        print(error, file=sys.stderr, flush=True)
        if error.status == 410:
            version = None
        time.sleep(1)
    except urllib3.exceptions.HTTPError as error:
        print(error, file=sys.stderr, flush=True)
        time.sleep(1)
