"""The tests of kube-rs that need a cluster, which its own test run leaves out, in the version of Cargo.lock."""

import json
import os
import pathlib
import re
import shutil
import subprocess

from world import OUT, ROOT

NAMES = ["kube-rs"]
EXPECTED = {}
# Some need a kubelet.
SHARE_MIN = 0.85
CARGO = os.environ.get("CARGO", "cargo")
# The crates below `kube`, and the features of it that their tests use. When published they do not name it.
CRATES = {"kube-client": ["client", "derive", "ws"], "kube-runtime": ["client", "derive", "runtime"]}
VERSION = re.search(r'name = "kube-client"\nversion = "(.*)"', (ROOT / "Cargo.lock").read_text())[1]
FOLDER = OUT / f"kube-rs@{VERSION}"
FEATURES = [
    "kube/client", "kube/derive", "kube/jsonpatch", "kube/kubelet-debug", "kube/runtime", "kube/rustls-tls",
    "kube/unstable-client",
]


def cargo(*arguments, cwd):
    """Runs cargo, which builds without debug information, and returns what it prints."""
    environment = dict(
        os.environ, CARGO_TARGET_DIR=str(FOLDER / "target"), CARGO_PROFILE_DEV_DEBUG="0", CARGO_TERM_QUIET="true")
    return subprocess.run([CARGO, *arguments], cwd=cwd, env=environment, stdout=subprocess.PIPE, check=True).stdout


def copied(crate, packages):
    """Copies a published crate, which cargo has downloaded for `packages`, into the workspace."""
    original = next(pathlib.Path(package["manifest_path"]).parent for package in packages if package["name"] == crate)
    shutil.rmtree(FOLDER / crate, ignore_errors=True)
    return shutil.copytree(original, FOLDER / crate)


def write_workspace(crates):
    """Makes the copies depend on each other."""
    patches = [f'{crate} = {{ path = "{crate}" }}' for crate in crates]
    (FOLDER / "Cargo.toml").write_text("\n".join([
        "[workspace]", 'resolver = "2"', f"members = {json.dumps(crates)}", "", "[patch.crates-io]", *patches, ""]))


def packages(*flags, cwd):
    return json.loads(cargo("metadata", *flags, "--format-version", "1", cwd=cwd))["packages"]


def prepare():
    """Copies the published crates into a workspace."""
    FOLDER.mkdir(exist_ok=True)
    known = packages("--locked", cwd=ROOT)
    for crate, features in CRATES.items():
        with open(copied(crate, known) / "Cargo.toml", "a") as manifest:
            print(f'\n[dev-dependencies.kube]\nversion = "={VERSION}"\nfeatures = {json.dumps(features)}', file=manifest)
    write_workspace([*CRATES])
    copied("kube", packages(cwd=FOLDER))
    write_workspace([*CRATES, "kube"])


def build(_):
    """Builds the tests, and returns the function that runs them in a world."""
    if not (FOLDER / "Cargo.lock").exists():
        prepare()
    built = cargo("test", "--workspace", "--no-run", "--lib", "--features", ",".join(FEATURES), "--message-format", "json", cwd=FOLDER)
    messages = [json.loads(line) for line in built.splitlines()]
    binaries = [message["executable"] for message in messages if message.get("executable")]

    def run(world, output, timeout):
        for binary in binaries:
            subprocess.run(
                [binary, "--ignored", "--test-threads", "1"], cwd=FOLDER, env=dict(os.environ, KUBECONFIG=str(world.user)),
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=timeout)
        log = (world.out / "tests.log").read_text()
        words = {"ok": "passed", "FAILED": "failed"}
        return {name: words[state] for name, state in re.findall(r"^test (\S+).* \.\.\. (?:.*\n)*?.*?(ok|FAILED)$", log, re.M)}

    return run
