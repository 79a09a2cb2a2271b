"""Checks that the archives in target/dist match docs/INSTALL.md. It compares their checksums, unpacks each archive as a
user does, runs its binary, checks its manual, completions and licences, and compares its list of components with the
crates that cargo links. It installs, upgrades and removes the packages, takes the image and the chart through a registry
on loopback, and installs the plugin with krew. It then writes all files again from the same binaries, with a signature;
they must be identical byte for byte.
A binary for another architecture runs under qemu-user if that is installed. What a missing tool prevents is reported."""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import platform
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
DIST = pathlib.Path(os.environ.get("DIST", TOP / "target" / "dist"))
NAME = re.compile(r"kube-fanout-(\d+\.\d+\.\d+[^_]*?)-((x86_64|aarch64)-unknown-linux-musl)\.tar\.gz")
GUIDE = "docs/INSTALL.md"
SHELLS = {form.format(name): check for name in ["kube-fanout", "fanoutctl"]
          for form, check in [("{}.bash", "bash -n"), ("_{}", "zsh -n"), ("{}.fish", "fish -n")]}

# Pages have no date, as the same version makes the same pages (mandoc takes the next word for one); and clap_mangen
# breaks a line twice.
EXPECTED = ["missing date", "cannot parse date", "skipping paragraph macro: br "]


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, **options).stdout


def compare_sums():
    """Every file but the sums themselves is summed, and is what its sum says."""
    sums = {}
    for line in (DIST / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        sums[name] = digest
    files = {file.name for file in DIST.iterdir()} - {"SHA256SUMS", "SHA256SUMS.minisig"}
    assert files == set(sums), f"not summed, or not there: {files ^ set(sums)}"
    for name, digest in sums.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest, f"{name}: another content"


def unpack(archive, folder):
    """Unpacks an archive whose one folder has its name; returns that folder."""
    name = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as files:
        members = files.getmembers()
        for member in members:
            assert (member.uid, member.gid) == (0, 0), f"{member.name} is of {member.uid}"
            assert not member.mode & 0o7022, f"{member.name} has mode {member.mode:o}"
            assert member.name == name or member.name.startswith(name + "/"), f"{member.name} is beside {name}"
            assert member.isfile() or member.isdir(), f"{member.name} is neither file nor folder"
        # tar sorts the names within each folder.
        paths = [pathlib.PurePath(member.name).parts for member in members]
        assert paths == sorted(paths), "in no order"
        assert len({member.mtime for member in members}) == 1, "one time for all"
        # Python 3.11 of Debian 12 does not filter yet; what a filter would refuse is refused above.
        files.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / name


def runner(architecture):
    """What runs a binary of an architecture here: nothing more, qemu-user, or None for nothing."""
    if architecture == platform.machine():
        return []
    qemu = shutil.which(f"qemu-{architecture}-static") or shutil.which(f"qemu-{architecture}")
    return [qemu] if qemu else None


def run_binary(tree, version, architecture):
    binary = tree / "kube-fanout"
    assert os.access(binary, os.X_OK), "it cannot be run"
    # A machine's number at byte 18 of the head: 62 is x86-64, 183 AArch64.
    machine = int.from_bytes(binary.read_bytes()[18:20], "little")
    assert machine == {"x86_64": 62, "aarch64": 183}[architecture], f"{architecture}: machine {machine}"
    run = runner(architecture)
    if run is None:
        print(f"NOT RUN: {binary.parent.name}: there is no qemu-{architecture} here (Debian: qemu-user-static)")
        return
    assert output(*run, binary, "--version") == f"kube-fanout {version}\n"
    # The archive has what the image has not, and each binary prints the manual that is beside it.
    assert "Usage: fanoutctl try" in output(*run, tree / "fanoutctl", "try", "--help")
    first = (tree / "man" / "man1" / "kube-fanout.1").read_text()
    assert output(*run, binary, "man") == first, "the manual is another binary's"
    with tempfile.TemporaryDirectory() as folder:
        defaults = pathlib.Path(folder) / "config.yaml"
        defaults.write_text(output(*run, binary, "config", "default"))
        assert "is valid" in output(*run, binary, "config", "check", "--config", str(defaults))


def look_through(tree):
    """The files beside the binary: none is empty, and those that a tool reads are right."""
    for file in tree.rglob("*"):
        assert file.is_dir() or file.stat().st_size, f"{file.name} is empty"
    pages = sorted((tree / "man" / "man1").glob("*.1"))
    assert len(pages) >= 10, pages
    for page in pages:
        if shutil.which("mandoc"):
            printed = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True)
            bad = [line for line in printed.stdout.splitlines() if not any(word in line for word in EXPECTED)]
            assert not bad, "\n".join(bad)
    if not shutil.which("mandoc"):
        print("NOT LINTED: the manual: there is no mandoc here")
    for name, check in SHELLS.items():
        script, (shell, *flags) = tree / "completions" / name, check.split()
        if shutil.which(shell):
            output(shell, *flags, str(script))
        else:
            print(f"NOT READ: {name}: there is no {shell} here")


def linked(target):
    """The crates that are linked, as pairs of name and version, by cargo's own tree."""
    edges = "no-build,no-dev,no-proc-macro"
    options = ["--edges", edges, "--target", target, "--prefix", "none", "--format", "{p}"]
    tree = output("cargo", "tree", "--locked", *options, cwd=TOP)
    # The packages of the workspace are named with their folders.
    crates = {tuple(line.split()[:2]) for line in tree.splitlines() if line and "(/" not in line}
    return {(name, version.removeprefix("v")) for name, version in crates}


def own_version():
    return re.search(r'^version = "(.*)"', (TOP / "Cargo.toml").read_text(), re.M)[1]


def locked():
    """The checksum of each crate in Cargo.lock."""
    packages = (TOP / "Cargo.lock").read_text().split("[[package]]")[1:]
    fields = [dict(re.findall(r'^(name|version|checksum) = "(.*)"', package, re.M)) for package in packages]
    return {(each["name"], each["version"]): each.get("checksum") for each in fields}


def compare_bill(archive, tree, version, target):
    """The bill of materials and the licences name each crate that is linked. The bill also names what runs at build time
    for one of them, such as derive macros, and nothing that Cargo.lock does not have."""
    file = DIST / archive.name.replace(".tar.gz", ".cdx.json")
    text = file.read_text()
    assert str(TOP) not in text and str(pathlib.Path.home()) not in text, "it names a folder of this machine"
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5"), bill["specVersion"]
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("fanoutctl", version), about
    named = {(each["name"], each["version"]): each for each in bill["components"]}
    wanted, sums = linked(target), locked()
    assert len(wanted) > 100, f"{len(wanted)} crates: cargo tree lists too few"
    assert wanted <= set(named), f"linked and not named: {sorted(wanted - set(named))}"
    for crate, component in named.items():
        if sums[crate] is None:
            continue  # a package of the workspace
        assert component["hashes"] == [{"alg": "SHA-256", "content": sums[crate]}], f"{crate}: not Cargo.lock's"
        assert component["licenses"], f"{crate} has no licence"
    licences = (tree / "LICENSES-OF-DEPENDENCIES.txt").read_text()
    of = {tuple(line.split()[:2]) for line in licences.splitlines() if line.startswith("    ") and len(line.split()) > 1}
    unnamed = {(name, number) for name, number in wanted if (name, number) not in of}
    assert not unnamed, f"no licence of {sorted(unnamed)}"
    return len(wanted)


def follow_guide(archive, folder):
    """The block of the guide, with a folder for /usr/local. It names the archive of x86-64."""
    text = (TOP / GUIDE).read_text()
    (block,) = [block for block in text.split("```sh\n")[1:] if block.startswith("sha256sum --check")]
    usr = folder / "usr"
    (usr / "bin").mkdir(parents=True)
    commands = block.split("\n```")[0].replace("/usr/local", str(usr))
    assert archive.name in commands, f"{GUIDE} names another version"
    for file in [archive, DIST / "SHA256SUMS"]:
        shutil.copy(file, folder)
    printed = output("sh", "-euc", commands, cwd=folder)
    assert f"{archive.name}: OK\n" in printed and f"kube-fanout {own_version()}\n" in printed, printed
    assert "Usage: " in output(usr / "bin" / "kubectl-fanout", "status", "--help")
    print(f"{archive.name}: installed as {GUIDE} says, {len([file for file in usr.rglob('*') if file.is_file()])} files")


def lacks(*tools):
    """Reports tools that are not here."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        print(f"NOT CHECKED, for want of: {', '.join(missing)}")
    return bool(missing)


def install_packages(folder, version):
    """Installs the packages of this machine's architecture under a folder, upgrades them, and removes them. What an
    administrator has written stays."""
    deb = DIST / f"kube-fanout_{version}_{ {'x86_64': 'amd64', 'aarch64': 'arm64'}[platform.machine()]}.deb"
    rpm = DIST / f"kube-fanout-{version}-1.{platform.machine()}.rpm"
    for file, database in [(deb, "var/lib/dpkg"), (rpm, "var/lib/rpm")]:
        if os.getuid() != 0 or lacks("dpkg" if file is deb else "rpm", "nfpm"):
            continue
        root = folder / file.suffix[1:]
        for name in ["info", "updates"]:
            (root / database / name).mkdir(parents=True)
        (root / database / "status").touch()
        dpkg = ["dpkg", f"--root={root}", "--log=/dev/null", "--force-all"]
        rpms = ["rpm", f"--root={root}", "--nodeps", "--noscripts"]
        install, remove = ([*dpkg, "-i"], [*dpkg, "-P"]) if file is deb else ([*rpms, "--ignorearch", "--nosignature", "-U"], [*rpms, "-e"])
        output(*install, file)
        assert output(root / "usr/bin/kube-fanout", "--version") == f"kube-fanout {version}\n"
        assert "Usage: " in output(root / "usr/bin/kubectl-fanout", "status", "--help")
        unit = (root / "usr/lib/systemd/system/kube-fanout.service").read_text()
        assert "ExecStart=/usr/bin/kube-fanout serve" in unit, "the unit starts another binary"
        written = root / "etc/kube-fanout/config.yaml"
        written.write_text("mine")
        output(*install, newer(file, root, folder))
        assert written.read_text() == "mine", "an upgrade changed the configuration"
        output(*remove, "kube-fanout")
        left = [str(each.relative_to(root)) for each in (root / "usr").rglob("*") if not each.is_dir()]
        assert not left, f"left behind: {left}"
        assert written.read_text() == "mine", "removal took the configuration"
        print(f"{file.name}: installed, upgraded and removed")


def newer(file, root, folder):
    """A package of a later version, with the installed files."""
    out = folder / "newer"
    out.mkdir(exist_ok=True)
    contents = [{"src": str(root / "usr/bin/kube-fanout"), "dst": "/usr/bin/kube-fanout"},
                {"dst": "/etc/kube-fanout", "type": "dir"}]
    about = {"name": "kube-fanout", "arch": "amd64" if platform.machine() == "x86_64" else "arm64", "version": "99.0.0",
             "maintainer": "A Test <a@test.example>", "description": "a test", "contents": contents}
    (out / "nfpm.json").write_text(json.dumps(about))
    output("nfpm", "package", "--config", out / "nfpm.json", "--packager", file.suffix[1:], "--target", out)
    (package,) = out.glob(f"*{file.suffix}")
    return package


@contextlib.contextmanager
def registry(folder):
    """A registry on loopback, which keeps its content in a folder; gives its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    config = folder / "registry.json"
    config.write_text(json.dumps({
        "version": "0.1", "log": {"level": "error"}, "http": {"addr": address},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}}}))
    log = folder / "registry.log"
    # It logs as errors that a client asks whether it has a blob already.
    with open(log, "w") as errors, subprocess.Popen(["registry", "serve", config], stdout=errors, stderr=errors) as process:
        try:
            # Ends a hang only.
            ends = time.monotonic() + 120
            while time.monotonic() < ends and process.poll() is None:
                with contextlib.suppress(OSError):
                    connection = http.client.HTTPConnection(address, timeout=60)
                    connection.request("GET", "/v2/")
                    if connection.getresponse().status == 200:
                        break
                time.sleep(0.1)
            yield address
        except subprocess.CalledProcessError as error:
            print(error.stderr, log.read_text(), sep="\n")
            raise
        finally:
            process.terminate()


def take_through_registry(folder, version, count):
    """The image and the chart are what they were after a registry."""
    if lacks("registry", "skopeo", "helm"):
        return
    image = f"oci-archive:{DIST / f'kube-fanout-{version}.image.tar'}:{version}"
    with registry(folder) as address:
        there = f"docker://{address}/kube-fanout:{version}"
        output("skopeo", "copy", "--all", "--dest-tls-verify=false", image, there)
        pushed = json.loads(output("skopeo", "inspect", "--raw", "--tls-verify=false", there))
        platforms = {each["platform"]["architecture"] for each in pushed.get("manifests", [])}
        assert len(platforms) == count or count == 1, f"the image is for {platforms}"
        assert pushed == json.loads(output("skopeo", "inspect", "--raw", image)), "the registry has another image"
        chart = DIST / f"kube-fanout-{version}.tgz"
        subprocess.run(["helm", "push", "--plain-http", chart, f"oci://{address}/charts"], check=True, capture_output=True)
        pulled = output("helm", "template", "name", f"oci://{address}/charts/kube-fanout", "--version", version,
                        "--plain-http")
        assert pulled == output("helm", "template", "name", TOP / "deploy" / "chart"), "the chart renders otherwise"
    print(f"image and chart {version}: pushed to a registry, pulled, and the same")


def install_plugin(folder, version):
    if lacks("krew", "git"):
        return
    manifest, root = DIST / f"kube-fanout-{version}.krew.yaml", folder / "krew"
    archive = DIST / f"kube-fanout-{version}-{platform.machine()}-unknown-linux-musl.tar.gz"
    environment = os.environ | {"KREW_ROOT": str(root), "KREW_NO_UPGRADE_CHECK": "1"}
    subprocess.run(["krew", "install", f"--manifest={manifest}", f"--archive={archive}"], check=True, env=environment,
                   capture_output=True, timeout=300)
    assert "Usage: kubectl fanout status" in output(root / "bin" / "kubectl-fanout", "status", "--help")
    # Removing it takes a copy of krew's own index, which is elsewhere.
    print(f"{manifest.name}: installed by krew")


def compare_provenance(version):
    """The statement names each file that is summed, except itself, by the same digest."""
    name = f"kube-fanout-{version}.intoto.json"
    statement = json.loads((DIST / name).read_text())
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    sums = {line.split("  ")[1]: line.split("  ")[0] for line in (DIST / "SHA256SUMS").read_text().splitlines()}
    del sums[name]
    assert subjects == sums, f"the provenance and the sums differ: {set(subjects.items()) ^ set(sums.items())}"
    assert (DIST / f"kube-fanout-{version}.notes").read_text().strip(), "no notes"


def sign(folder):
    """A key pair without a password; returns the files of the secret and the public key."""
    secret, public = folder / "secret.key", folder / "public.key"
    output("minisign", "-G", "-W", "-s", secret, "-p", public)
    return secret, public


def verify_signature(dist, public):
    sums = dist / "SHA256SUMS"
    assert "verified" in output("minisign", "-V", "-p", public, "-m", sums)
    changed = dist / "changed"
    changed.write_text(sums.read_text().replace("a", "b", 1))
    shutil.copy(dist / "SHA256SUMS.minisig", dist / "changed.minisig")
    refused = subprocess.run(["minisign", "-V", "-p", public, "-m", changed], capture_output=True)
    assert refused.returncode != 0, "a changed file is verified"
    print("SHA256SUMS: signed, and the signature verified")


def main():
    compare_sums()
    version = own_version()
    compare_provenance(version)
    archives = sorted(DIST.glob("*-linux-musl.tar.gz"))
    assert archives, f"{DIST} has no archive"
    targets = []
    with tempfile.TemporaryDirectory() as folder:
        for archive in archives:
            named, target, architecture = NAME.fullmatch(archive.name).groups()
            assert named == version, f"{archive.name} is not of this version"
            tree = unpack(archive, pathlib.Path(folder))
            run_binary(tree, version, architecture)
            look_through(tree)
            crates = compare_bill(archive, tree, version, target)
            print(f"{archive.name}: {crates} crates, all in its bill, with Cargo.lock's sums, and among the licences")
            targets.append(target)
            if architecture == "x86_64" == platform.machine():
                follow_guide(archive, pathlib.Path(folder) / "guide")
        install_packages(pathlib.Path(folder), version)
        take_through_registry(pathlib.Path(folder), version, len(archives))
        install_plugin(pathlib.Path(folder), version)
        again, key = pathlib.Path(folder) / "again", {}
        if not lacks("minisign"):
            secret, public = sign(pathlib.Path(folder))
            key = {"KEY": str(secret)}
        environment = os.environ | {"DIST": str(again), "BUILD": "no", "TARGETS": " ".join(targets)} | key
        output("deploy/release.sh", cwd=TOP, env=environment)
        if key:
            verify_signature(again, public)
        for file in sorted(DIST.iterdir(), reverse=True):
            assert file.suffix == ".minisig" or file.read_bytes() == (again / file.name).read_bytes(), f"{file.name} differs in the second build"
        print(f"the same {len(list(DIST.iterdir()))} files again, byte for byte")


if __name__ == "__main__":
    sys.exit(main())
