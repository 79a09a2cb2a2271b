"""Checks that the image in target/image starts. It reads the layout as a container runtime does, compares every digest,
unpacks the layers, and runs the entry point as the image's user with only the image's environment. As root it uses the
unpacked tree as root directory; otherwise it runs from within the tree. The process has its own network namespace, like
a pod, and is probed and scraped from outside, like by a kubelet and Prometheus. If no namespace can be created, it says
so and uses loopback only. It also runs the image's own `health` verb. If skopeo is installed, it runs the block of
docs/INSTALL.md with a directory as the registry."""

import contextlib
import ctypes
import gzip
import hashlib
import http.client
import io
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
LAYOUT = TOP / "target" / "image"
STARTING_SECONDS = "10s"
# The ports that manifests name (config/central.yaml).
HEALTH, METRICS, CLIENTS, ADMIN = 10256, 10249, 8001, 9090
# Addresses for documents: the machine's end of the cable, and the pod's.
MACHINE, POD = "192.0.2.1", "192.0.2.2"
NEW_NETWORK = 0x40000000
# Set in the process that has a network of its own: "root" for real, "mapped" for root of a namespace of users.
WITHIN = "KUBE_FANOUT_IMAGE_NETWORK"


def blob(descriptor):
    algorithm, digest = descriptor["digest"].split(":")
    data = (LAYOUT / "blobs" / algorithm / digest).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest, f"{digest}: another content"
    assert len(data) == descriptor["size"], f"{digest}: {len(data)} bytes"
    return data


def unpack(root):
    """Unpacks the layers, and returns the configuration of the image."""
    assert json.loads((LAYOUT / "oci-layout").read_text())["imageLayoutVersion"] == "1.0.0"
    index = json.loads((LAYOUT / "index.json").read_text())
    (described,) = index["manifests"]
    assert described["annotations"]["org.opencontainers.image.ref.name"]
    manifest = json.loads(blob(described))
    config = json.loads(blob(manifest["config"]))
    plain = config["rootfs"]["diff_ids"]
    assert len(plain) == len(manifest["layers"]) == len(config["history"])
    for layer, diff_id in zip(manifest["layers"], plain):
        tar = gzip.decompress(blob(layer))
        assert "sha256:" + hashlib.sha256(tar).hexdigest() == diff_id
        with tarfile.open(fileobj=io.BytesIO(tar)) as files:
            for member in files:
                assert (member.uid, member.gid) == (0, 0), f"{member.name} is of {member.uid}"
                assert not member.mode & 0o7022, f"{member.name} has mode {member.mode:o}"
            # Python 3.11 of Debian 12 does not filter yet; what a filter would refuse is refused above.
            files.extractall(root, **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))
    return config["config"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def in_own_network():
    """Runs this file again in a network of its own, so that nothing here is changed. Returns if there can be none."""
    mode, flags = ("root", []) if os.getuid() == 0 else ("mapped", ["--map-root-user"])
    command = ["unshare", "--net", *flags]
    if all(map(shutil.which, ["unshare", "nsenter", "ip"])) and subprocess.run([*command, "true"]).returncode == 0:
        os.execvpe("unshare", [*command, sys.executable, __file__], os.environ | {WITHIN: mode})
    print("NOT PROBED from another address: that takes unshare, nsenter, ip, and the right to make a network")


@contextlib.contextmanager
def pods_network():
    """A pod's network with a cable to this one. Its file, which processes enter."""
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    try:
        # It says so when it has its network.
        holder.stdout.readline()
        inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        for command in [
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "add", "machine", "type", "veth", "peer", "name", "pod", "netns", str(holder.pid)],
            ["ip", "address", "add", f"{MACHINE}/30", "dev", "machine"],
            ["ip", "link", "set", "machine", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
            [*inside, "ip", "address", "add", f"{POD}/30", "dev", "pod"],
            [*inside, "ip", "link", "set", "pod", "up"],
        ]:
            subprocess.run(command, check=True)
        with open(f"/proc/{holder.pid}/ns/net", "rb") as network:
            yield network
    finally:
        holder.stdin.close()
        holder.wait(60)


def get(port, path):
    """Sends a GET to the pod. Returns the status and the body."""
    connection = http.client.HTTPConnection(POD, port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path)
        assert connection.sock.getsockname()[0] == MACHINE, "not from loopback"
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def probe_from_outside():
    """Probes and scrapes like a kubelet and Prometheus. Loopback listeners must be unreachable."""
    for port, path, status, part in [
        (HEALTH, "/livez", 200, "ok"),
        (HEALTH, "/healthz", 200, "ok"),
        # Its upstream is not there, so it waits for discovery.
        (HEALTH, "/readyz", 503, "[-]discovery not ready"),
        (HEALTH, "/metrics", 404, ""),
        (METRICS, "/metrics", 200, "\nkube_fanout_build_info{"),
        (METRICS, "/debug/feeds", 404, ""),
    ]:
        code, text = get(port, path)
        print(f"http://{POD}:{port}{path} from {MACHINE} -> {code}, {len(text)} bytes")
        assert code == status and part in text, text
    for port in [CLIENTS, ADMIN]:
        try:
            socket.create_connection((POD, port), 30).close()
        except ConnectionRefusedError:
            continue
        raise AssertionError(f"port {port} is reached from outside")


class Image:
    def __init__(self, root, config, network):
        self.root, self.config, self.network = root, config, network
        # The image's user is no user of a namespace that maps ours alone.
        self.is_root = os.getuid() == 0 and os.environ.get(WITHIN) != "mapped"

    def command(self, arguments):
        """The arguments of a process that runs the entry point."""
        entry, *more = self.config["Entrypoint"]
        program = entry if self.is_root else str(self.root) + entry
        return [program, *more, *arguments]

    def options(self):
        environment = dict(line.split("=", 1) for line in self.config["Env"])
        options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        user, group = (int(number) for number in self.config["User"].split(":"))

        def enter():
            if self.network and libc.setns(self.network.fileno(), NEW_NETWORK) != 0:
                raise OSError("it does not get into the pod's network")
            if self.is_root:
                os.chroot(self.root)
                os.chdir(self.config["WorkingDir"])
                os.setgroups([])
                os.setgid(group)
                os.setuid(user)

        libc = ctypes.CDLL(None)
        return options | {"preexec_fn": enter}

    def run(self, *arguments):
        return subprocess.run(self.command(arguments), timeout=60, **self.options())

    def start(self, *arguments):
        return subprocess.Popen(self.command(arguments), **self.options())


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: x
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
"""


def serve_and_probe(image):
    """Starts the image as intended, and probes it from inside and from outside."""
    inside = image.network is not None
    any_address = "0.0.0.0" if inside else "127.0.0.1"
    health, metrics = (HEALTH, METRICS) if inside else (free_port(), free_port())
    listen = [] if inside else ["--listen", "127.0.0.1:0", "--admin", "off"]
    serving = image.start(
        *image.config["Cmd"], "--kubeconfig", ("" if image.is_root else str(image.root)) + "/kubeconfig", *listen,
        "--healthz-bind-address", f"{any_address}:{health}", "--metrics-bind-address", f"{any_address}:{metrics}",
    )
    try:
        output = []
        while not (output and output[-1].startswith("metrics on ")):
            output.append(serving.stdout.readline())
            assert output[-1], "".join(output)
        url = f"http://127.0.0.1:{health}"
        for arguments, code in [
            ([url, "--timeout", STARTING_SECONDS], 0),
            (["--healthz-bind-address", f"{any_address}:{health}"], 0),
            # Its upstream is not there, so it waits for discovery.
            ([f"{url}/readyz"], 1),
            (["http://127.0.0.1:1"], 2),
        ]:
            answer = image.run("health", *arguments)
            print("kube-fanout health", *arguments, "->", answer.returncode, answer.stdout.strip())
            assert answer.returncode == code and answer.stdout.count("\n") == 1, answer
        if inside:
            probe_from_outside()
    finally:
        serving.terminate()
        assert serving.wait(60) == 0, "it ends in order"


def guide():
    """The block of docs/INSTALL.md, whose first line has been run already."""
    text = (TOP / "docs/INSTALL.md").read_text()
    (block,) = [block for block in text.split("```sh\n")[1:] if block.startswith("make image\n")]
    _, push = block.split("\n```")[0].split("\n")
    if not shutil.which("skopeo"):
        print("NOT PUSHED: there is no skopeo here")
        return
    with tempfile.TemporaryDirectory() as folder:
        registry = f"oci:{folder}/registry:latest"
        assert "docker://registry.example/kube-fanout:latest" in push
        push = push.replace("docker://registry.example/kube-fanout:latest", registry)
        subprocess.run(["sh", "-euc", push], check=True, cwd=TOP, timeout=300)
        again = json.loads((pathlib.Path(folder) / "registry" / "index.json").read_text())
    first = json.loads((LAYOUT / "index.json").read_text())
    assert again["manifests"][0]["digest"] == first["manifests"][0]["digest"], "another image"
    print(f"skopeo takes it: {push}")


def main():
    if WITHIN not in os.environ:
        in_own_network()
    with contextlib.ExitStack() as stack:
        root = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        network = stack.enter_context(pods_network()) if WITHIN in os.environ else None
        root.chmod(0o755)
        config = unpack(root)
        assert config["User"] == "65532:65532" and config["Cmd"] == ["serve"], config
        assert config["Labels"]["org.opencontainers.image.version"], config
        authorities = (root / config["Env"][1].split("=", 1)[1].lstrip("/")).read_text()
        assert authorities.count("BEGIN CERTIFICATE") > 50, "the authorities are missing"
        image = Image(root, config, network)
        version = image.run("--version")
        assert version.returncode == 0 and version.stdout.startswith("kube-fanout "), version.stdout
        assert image.run("demo").returncode == 127, "the image has no fanoutctl"
        (root / "kubeconfig").write_text(KUBECONFIG % free_port())
        serve_and_probe(image)
        print(f"the image starts as {config['User']}" + (" with itself as root" if image.is_root else ""))
    guide()


if __name__ == "__main__":
    sys.exit(main())
