"""Does the image in target/image start? Its layout is read as a runtime reads it, every digest compared, the layers
unpacked, and the entry point run as the image's user with its environment and nothing else: with the unpacked tree as
root where we are root, from within the tree elsewhere. Then the image's own `health` verb is asked."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import tarfile
import tempfile

LAYOUT = pathlib.Path(__file__).resolve().parent.parent / "target" / "image"
STARTING_SECONDS = "10s"


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
            files.extractall(root, filter="tar")
    return config["config"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Image:
    def __init__(self, root, config):
        self.root, self.config = root, config
        self.is_root = os.getuid() == 0

    def command(self, arguments):
        """The arguments of a process that runs the entry point."""
        entry, *more = self.config["Entrypoint"]
        program = entry if self.is_root else str(self.root) + entry
        return [program, *more, *arguments]

    def options(self):
        environment = dict(line.split("=", 1) for line in self.config["Env"])
        options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        if self.is_root:
            user, group = (int(number) for number in self.config["User"].split(":"))

            def enter():
                os.chroot(self.root)
                os.chdir(self.config["WorkingDir"])
                os.setgroups([])
                os.setgid(group)
                os.setuid(user)

            options["preexec_fn"] = enter
        return options

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


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        config = unpack(root)
        assert config["User"] == "65532:65532" and config["Cmd"] == ["serve"], config
        assert config["Labels"]["org.opencontainers.image.version"], config
        authorities = (root / config["Env"][1].split("=", 1)[1].lstrip("/")).read_text()
        assert authorities.count("BEGIN CERTIFICATE") > 50, "the authorities are missing"
        image = Image(root, config)
        version = image.run("--version")
        assert version.returncode == 0 and version.stdout.startswith("kube-fanout "), version.stdout
        assert image.run("demo").returncode == 64, "what nodes run has no demo"
        (root / "kubeconfig").write_text(KUBECONFIG % free_port())
        health, absent = free_port(), free_port()
        serving = image.start(
            *config["Cmd"], "--kubeconfig", ("" if image.is_root else str(root)) + "/kubeconfig",
            "--listen", "127.0.0.1:0", "--admin", "off", "--healthz-bind-address", f"127.0.0.1:{health}",
        )
        try:
            said = []
            while not (said and said[-1].startswith("serving on ")):
                said.append(serving.stdout.readline())
                assert said[-1], "".join(said)
            url = f"http://127.0.0.1:{health}"
            for arguments, code in [
                ([url, "--timeout", STARTING_SECONDS], 0),
                (["--healthz-bind-address", f"127.0.0.1:{health}"], 0),
                # Its upstream is not there, so it waits for discovery.
                ([f"{url}/readyz"], 1),
                ([f"http://127.0.0.1:{absent}"], 2),
            ]:
                answer = image.run("health", *arguments)
                print("kube-fanout health", *arguments, "->", answer.returncode, answer.stdout.strip())
                assert answer.returncode == code and answer.stdout.count("\n") == 1, answer
        finally:
            serving.terminate()
            assert serving.wait(60) == 0, "it ends in order"
        print(f"the image starts as {config['User']}" + (" with itself as root" if image.is_root else ""))


if __name__ == "__main__":
    sys.exit(main())
