"""What the Python client reads from a server, as one JSON document.

Run against the apiserver and against the proxy by tests/conformance/clients.rs, which compares the two.
"""

import argparse
import json

from kubernetes import client, watch


def connect(arguments):
    configuration = client.Configuration()
    configuration.host = arguments.server
    configuration.ssl_ca_cert = arguments.ca
    configuration.api_key = {"authorization": arguments.token}
    configuration.api_key_prefix = {"authorization": "Bearer"}
    return client.CoreV1Api(client.ApiClient(configuration))


def names(items):
    return [[item.metadata.namespace, item.metadata.name, item.metadata.resource_version] for item in items]


def paged(api, namespace, limit):
    """Every page: its names and its remaining item count."""
    pages, token, version = [], None, None
    while True:
        page = api.list_namespaced_config_map(namespace, limit=limit, _continue=token)
        same = version in (None, page.metadata.resource_version)
        version = page.metadata.resource_version
        pages.append([names(page.items), page.metadata.remaining_item_count, same])
        token = page.metadata._continue
        if not token:
            return pages


# Only ends a hang: a watch is read until the last object has arrived.
WATCH_SECONDS = 600
# The message of a server that could not determine its storage version in time. The request is retried.
TOO_LARGE = "Too large resource version"


def watched(api, namespace, last, **options):
    """Every event of a watch, up to the first one of the object `last`."""
    events, call = [], api.list_namespaced_config_map
    try:
        for event in watch.Watch().stream(call, namespace, timeout_seconds=WATCH_SECONDS, **options):
            metadata = event["object"].metadata
            events.append([event["type"], metadata.name, metadata.resource_version, event["raw_object"]])
            if metadata.name == last:
                return events
    except client.exceptions.ApiException as error:
        if TOO_LARGE not in str(error.reason):
            raise
        return watched(api, namespace, last, **options)
    raise RuntimeError(f"the watch ended after {len(events)} events")


def refused(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except client.exceptions.ApiException as error:
        return [error.status, error.reason, json.loads(error.body)]
    return "no error"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--ca")
    parser.add_argument("--token", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--since", required=True, help="a version that the watch is to resume from")
    parser.add_argument("--last", required=True, help="the object that every watch tells of last")
    arguments = parser.parse_args()
    api, namespace, since, last = connect(arguments), arguments.namespace, arguments.since, arguments.last
    listed = api.list_namespaced_config_map(namespace)
    first = listed.items[0].metadata.name
    result = {
        "list": names(listed.items),
        "list at least": names(api.list_namespaced_config_map(namespace, resource_version=since).items),
        "list any": names(api.list_namespaced_config_map(namespace, resource_version="0").items),
        "label": names(api.list_namespaced_config_map(namespace, label_selector="color=red").items),
        "field": names(api.list_namespaced_config_map(namespace, field_selector="metadata.name=" + first).items),
        "get": api.api_client.sanitize_for_serialization(api.read_namespaced_config_map(first, namespace)),
        "pages": paged(api, namespace, 7),
        "watch": watched(api, namespace, last),
        "watch any": watched(api, namespace, last, resource_version="0"),
        "watch since": watched(api, namespace, last, resource_version=since),
        "watch label": watched(api, namespace, last, resource_version=since, label_selector="color=red"),
        "missing": refused(api.read_namespaced_config_map, "missing", namespace),
        "bad selector": refused(api.list_namespaced_config_map, namespace, label_selector="a in"),
        "bad field": refused(api.list_namespaced_config_map, namespace, field_selector="spec.nope=1"),
    }
    print(json.dumps(result, sort_keys=True))


if __name__ == "__main__":
    main()
