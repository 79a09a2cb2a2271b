"""Prepared watch frames of exemplar objects, in JSON and in protobuf."""

import json

# Versions and names have one width, so that each frame is a copy with other digits.
FIRST = 700_000_000_000
NAMES = 1_000
# A write of the upstream has whole frames, so that it takes few of them.
CHUNK_BYTES = 256 << 10
# Less than the proxy's history (`window.mebibytes`), so that no client is too slow.
BYTES_MAX = 200 << 20


def exemplar(size):
    """A pod with the fields that real ones have, of about this many bytes in JSON."""
    container = {
        "name": "app", "image": "registry.example/team/app:v1.2.3",
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name(0), "namespace": "default", "labels": {"app": "exemplar", "pod-template-hash": "5d4f8c7b9"}},
        "spec": {"nodeName": "node-1", "containers": [container]},
    }
    environment = []
    while len(json.dumps(pod, separators=(",", ":"))) < size - 300:
        environment.append({"name": f"SETTING_{len(environment):04}", "value": "some value of a setting"})
        container["env"] = environment
    return pod


def name(number):
    return f"exemplar-{number % NAMES:06}"


class Frames:
    """Frames of at most `events` events of objects that are added and then modified, in parts of whole frames."""

    def __init__(self, events):
        self.count, self.parts, part, length = min(events, BYTES_MAX // self.object_bytes), [], [], 0
        for number in range(self.count):
            part.append(self.frame("ADDED" if number < NAMES else "MODIFIED", name(number), FIRST + 1 + number))
            length += len(part[-1])
            if length > CHUNK_BYTES:
                self.parts.append(b"".join(part))
                part, length = [], 0
        self.parts.append(b"".join(part))


class JsonFrames(Frames):
    name, content_type, watch_type = "JSON", "application/json", "application/json"
    version = rb'"resourceVersion":"(7\d{11})"'
    collection = "/apis/ingest.example/v1/exemplars"

    def __init__(self, apiserver, pod, events):
        value = dict(pod, apiVersion="ingest.example/v1", kind="Exemplar")
        created(apiserver, "/apis/ingest.example/v1/namespaces/default/exemplars", value)
        text = read(apiserver, f"/apis/ingest.example/v1/namespaces/default/exemplars/{name(0)}", self.content_type)
        version = json.loads(text)["metadata"]["resourceVersion"]
        self.template = text.strip().replace(f'"resourceVersion":"{version}"'.encode(), b'"resourceVersion":"%d"')
        self.template = self.template.replace(f'"name":"{name(0)}"'.encode(), b'"name":"%s"')
        self.object_bytes = len(text)
        super().__init__(events)

    def frame(self, event, name, version):
        # In an object's metadata, the name comes first.
        return b'{"type":"%s","object":' % event.encode() + self.template % (name.encode(), version) + b"}\n"

    def empty_list(self, version):
        return b'{"apiVersion":"ingest.example/v1","items":[],"kind":"ExemplarList","metadata":{"continue":"","resourceVersion":"%d"}}\n' % version

    def bookmark(self, version):
        return (b'{"type":"BOOKMARK","object":{"kind":"Exemplar","apiVersion":"ingest.example/v1","metadata":{"resourceVersion":"%d",'
                b'"annotations":{"k8s.io/initial-events-end":"true"}}}}\n' % version)


class ProtobufFrames(Frames):
    name, content_type = "protobuf", "application/vnd.kubernetes.protobuf"
    watch_type = "application/vnd.kubernetes.protobuf;stream=watch"
    # The field's tag, and the length of the text.
    version = rb"2\x0c(7\d{11})"
    collection = "/api/v1/pods"

    def __init__(self, apiserver, pod, events):
        created(apiserver, "/api/v1/namespaces/default/pods", pod)
        unknown = read(apiserver, f"/api/v1/namespaces/default/pods/{name(0)}", self.content_type)[4:]
        self.pod = dict(fields(dict(fields(unknown))[2]))
        self.metadata = list(fields(self.pod[1]))
        # The spec and the status.
        self.rest = b"".join(field(number, self.pod[number]) for number in (2, 3) if number in self.pod)
        self.object_bytes = len(unknown)
        super().__init__(events)

    def frame(self, event, name, version):
        changed = {1: name.encode(), 6: b"%d" % version}
        metadata = b"".join(field(number, changed.get(number, value)) for number, value in self.metadata)
        return watch_event(event, "Pod", field(1, metadata) + self.rest)

    def empty_list(self, version):
        return unknown("PodList", field(1, field(1, b"") + field(2, b"%d" % version) + field(3, b"")))

    def bookmark(self, version):
        annotation = field(1, b"k8s.io/initial-events-end") + field(2, b"true")
        return watch_event("BOOKMARK", "Pod", field(1, field(6, b"%d" % version) + field(12, annotation)))


def created(apiserver, collection, value):
    """Replaces the object of the last size."""
    apiserver.open("DELETE", f"{collection}/{value['metadata']['name']}?gracePeriodSeconds=0", {}).read()
    apiserver.create(collection, value)


def read(apiserver, path, accept):
    return apiserver.open("GET", path, {"Accept": accept}).read()


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    """A field: bytes, or a number as it was read."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(message):
    """The numbers and values of a message's fields: bytes, or numbers."""
    at = 0

    def next_varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(message):
        tag = next_varint()
        value = next_varint()
        if tag & 7 == 2:
            value, at = message[at:at + value], at + value
        yield tag >> 3, value


def unknown(kind, raw):
    types = field(1, b"v1") + field(2, kind.encode())
    return b"k8s\0" + field(1, types) + field(2, raw) + field(3, b"") + field(4, b"")


def watch_event(event, kind, raw):
    message = field(1, event.encode()) + field(2, field(1, unknown(kind, raw)))
    return len(message).to_bytes(4, "big") + message
