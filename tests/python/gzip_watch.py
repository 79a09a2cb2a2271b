"""Prints the name and the value of each ConfigMap in a watch, as one of the HTTP clients for Python reads it.

Run by tests/conformance/compressed_clients.rs, which writes an object only after every client has printed the last one.
"""

import argparse
import asyncio
import json
import ssl

NEVER = None


def show(line):
    configmap = json.loads(line)["object"]
    if "data" in configmap:
        print(configmap["metadata"]["name"], configmap["data"]["value"], flush=True)


def by_requests(url, ca, headers):
    import requests

    with requests.get(url, headers=headers, verify=ca, stream=True, timeout=NEVER) as response:
        for line in response.iter_lines():
            show(line)


def by_urllib3(url, ca, headers):
    import urllib3

    headers["Accept-Encoding"] = "gzip"
    pool = urllib3.PoolManager(ca_certs=ca)
    response = pool.request("GET", url, headers=headers, preload_content=False, timeout=NEVER)
    for line in response:
        show(line)


def by_httpx(url, ca, headers):
    import httpx

    context = ssl.create_default_context(cafile=ca)
    with httpx.stream("GET", url, headers=headers, verify=context, timeout=NEVER) as response:
        for line in response.iter_lines():
            show(line)


def by_aiohttp(url, ca, headers):
    import aiohttp

    async def read():
        context, never = ssl.create_default_context(cafile=ca), aiohttp.ClientTimeout(total=NEVER)
        async with aiohttp.ClientSession(timeout=never, read_bufsize=4 << 20) as session:
            async with session.get(url, headers=headers, ssl=context) as response:
                async for line in response.content:
                    show(line)

    asyncio.run(read())


def by_kubernetes(url, ca, headers):
    from kubernetes import client, watch

    configuration = client.Configuration()
    configuration.host, path = url.split("/api/")
    configuration.ssl_ca_cert = ca
    api = client.CoreV1Api(client.ApiClient(configuration))
    api.api_client.set_default_header("Authorization", headers["Authorization"])
    namespace, version = path.split("/")[2], path.split("resourceVersion=")[1]
    call = api.list_namespaced_config_map
    for event in watch.Watch().stream(call, namespace, resource_version=version, allow_watch_bookmarks=True):
        show(json.dumps({"object": event["raw_object"]}))


def main():
    clients = [by_requests, by_urllib3, by_httpx, by_aiohttp, by_kubernetes]
    clients = {client.__name__.removeprefix("by_"): client for client in clients}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=clients)
    parser.add_argument("url")
    parser.add_argument("ca")
    parser.add_argument("token")
    arguments = parser.parse_args()
    clients[arguments.client](arguments.url, arguments.ca, {"Authorization": f"Bearer {arguments.token}"})


if __name__ == "__main__":
    main()
