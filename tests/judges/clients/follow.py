"""Follows ConfigMaps by the Python client that the first argument names. Run by tests/judges/clients.py.

Three of these libraries have no informer, so the programs do what their documentation shows: list, watch from that
version, and list again if the server says that it is too old."""

import asyncio
import sys
import time

KIND, KUBECONFIG, NAMESPACE = sys.argv[1:4]


class Follower:
    """What a program has to remember: the keys that it knows, and where to watch from."""

    def __init__(self):
        self.known, self.version = set(), None

    def listed(self, items, version):
        gone = self.known - {item.metadata.name for item in items}
        for item in items:
            self.seen("MODIFIED", item)
        for key in gone:
            print("gone", key, version, flush=True)
        self.known -= gone
        self.version = version

    def seen(self, event, item):
        metadata = item.metadata
        # lightkube keeps the names of JSON.
        self.version = getattr(metadata, "resource_version", None) or metadata.resourceVersion
        if event == "DELETED":
            self.known.discard(metadata.name)
            print("gone", metadata.name, self.version, flush=True)
        elif event in ("ADDED", "MODIFIED"):
            self.known.add(metadata.name)
            print("set", metadata.name, self.version, item.data["value"], flush=True)


def by_kubernetes():
    from kubernetes import client, config, watch
    from urllib3.exceptions import HTTPError

    config.load_kube_config(KUBECONFIG)
    api, follower = client.CoreV1Api(), Follower()
    while True:
        try:
            if follower.version is None:
                listed = api.list_namespaced_config_map(NAMESPACE, _request_timeout=10)
                follower.listed(listed.items, listed.metadata.resource_version)
            stream = watch.Watch().stream(api.list_namespaced_config_map, NAMESPACE, resource_version=follower.version)
            for event in stream:
                follower.seen(event["type"], event["object"])
        except client.ApiException as error:
            print(error, file=sys.stderr, flush=True)
            if error.status == 410:
                follower.version = None
            time.sleep(1)
        except HTTPError as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(1)


async def by_asyncio():
    import aiohttp
    from kubernetes_asyncio import client, config, watch

    await config.load_kube_config(KUBECONFIG)
    follower = Follower()
    async with client.ApiClient() as connection:
        api = client.CoreV1Api(connection)
        while True:
            try:
                if follower.version is None:
                    listed = await api.list_namespaced_config_map(NAMESPACE, _request_timeout=10)
                    follower.listed(listed.items, listed.metadata.resource_version)
                async with watch.Watch() as stream:
                    async for event in stream.stream(
                            api.list_namespaced_config_map, NAMESPACE, resource_version=follower.version):
                        follower.seen(event["type"], event["object"])
            except client.ApiException as error:
                print(error, file=sys.stderr, flush=True)
                if error.status == 410:
                    follower.version = None
                await asyncio.sleep(1)
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                print(repr(error), file=sys.stderr, flush=True)
                await asyncio.sleep(1)


def by_lightkube():
    import httpx2
    from lightkube import ApiError, Client, KubeConfig
    from lightkube.resources.core_v1 import ConfigMap

    client, follower = Client(config=KubeConfig.from_file(KUBECONFIG)), Follower()
    while True:
        try:
            if follower.version is None:
                listed = client.list(ConfigMap, namespace=NAMESPACE)
                items = list(listed)
                follower.listed(items, listed.resourceVersion)
            for event, item in client.watch(ConfigMap, namespace=NAMESPACE, resource_version=follower.version):
                follower.seen(event, item)
        except ApiError as error:
            print(error, file=sys.stderr, flush=True)
            if error.status.code == 410:
                follower.version = None
            time.sleep(1)
        except httpx2.HTTPError as error:
            print(repr(error), file=sys.stderr, flush=True)
            time.sleep(1)


def by_kopf():
    import kopf

    # Not run by threads, whose lines would mix.
    @kopf.on.event("configmaps")
    async def seen(event, name, meta, body, **_):
        if event["type"] == "DELETED":
            print("gone", name, meta["resourceVersion"], flush=True)
        else:
            print("set", name, meta["resourceVersion"], body["data"]["value"], flush=True)

    @kopf.on.startup()
    def configure(settings, **_):
        settings.posting.enabled = False
        settings.watching.server_timeout = 300

    kopf.run(standalone=True, namespaces=[NAMESPACE])


if KIND == "kubernetes-asyncio":
    asyncio.run(by_asyncio())
else:
    {"kubernetes": by_kubernetes, "lightkube": by_lightkube, "kopf": by_kopf}[KIND]()
