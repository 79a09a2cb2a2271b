"""Checks that the archives in target/dist match docs/INSTALL.md. It compares their checksums, unpacks each archive as a
user does, runs its binary, checks its manual, completions and licences, and compares its list of components with the
crates that cargo links. It then builds all archives again from the same binaries; they must be identical byte for byte.
A binary for another architecture runs under qemu-user if that is installed; otherwise the script reports that it did not
run."""

import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
DIST = pathlib.Path(os.environ.get("DIST", TOP / "target" / "dist"))
NAME = re.compile(r"kube-fanout-(\d+\.\d+\.\d+[^_]*?)-((x86_64|aarch64)-unknown-linux-musl)\.tar\.gz")
GUIDE = "docs/INSTALL.md"
SHELLS = {form.format(name): check for name in ["kube-fanout", "fanoutctl"]
          for form, check in [("{}.bash", "bash -n"), ("_{}", "zsh -n"), ("{}.fish", "fish -n")]}

# Pages have no date, as the same version makes the same pages; and clap_mangen breaks a line twice.
EXPECTED = ["missing date", "skipping paragraph macro: br "]


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, **options).stdout


def compare_sums():
    """Every file but the sums themselves is summed, and is what its sum says."""
    sums = {}
    for line in (DIST / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        sums[name] = digest
    files = {file.name for file in DIST.iterdir()} - {"SHA256SUMS"}
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
        assert [member.name for member in members] == sorted(member.name for member in members), "in no order"
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


def main():
    compare_sums()
    archives = sorted(DIST.glob("*.tar.gz"))
    assert archives, f"{DIST} has no archive"
    targets = []
    with tempfile.TemporaryDirectory() as folder:
        for archive in archives:
            _, (version, target, architecture) = archive.name, NAME.fullmatch(archive.name).groups()
            assert version == own_version(), f"{archive.name} is not of this version"
            tree = unpack(archive, pathlib.Path(folder))
            run_binary(tree, version, architecture)
            look_through(tree)
            crates = compare_bill(archive, tree, version, target)
            print(f"{archive.name}: {crates} crates, all in its bill, with Cargo.lock's sums, and among the licences")
            targets.append(target)
            if architecture == "x86_64" == platform.machine():
                follow_guide(archive, pathlib.Path(folder) / "guide")
        again = pathlib.Path(folder) / "again"
        output("deploy/release.sh", cwd=TOP, env=os.environ | {"DIST": again, "BUILD": "no", "TARGETS": " ".join(targets)})
        for file in sorted(DIST.iterdir(), reverse=True):
            assert file.read_bytes() == (again / file.name).read_bytes(), f"{file.name} differs in the second build"
        print(f"the same {len(list(DIST.iterdir()))} files again, byte for byte")


if __name__ == "__main__":
    sys.exit(main())
