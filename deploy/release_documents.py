#!/usr/bin/env python3
"""Writes what describes the files of a release, beside them: release_documents.py FOLDER VERSION REVISION EPOCH.

- kube-fanout-VERSION.krew.yaml: the manifest of the kubectl plugin, for krew's index or `kubectl krew install
  --manifest`.
- kube-fanout-VERSION.notes: the version's section of CHANGELOG.md.
- kube-fanout-VERSION.intoto.json: the provenance of all files, an in-toto statement with a predicate of SLSA 1.0. It is
  not signed itself: the signature of SHA256SUMS covers it."""

import datetime
import hashlib
import json
import pathlib
import re
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/kube-fanout/kube-fanout"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PLATFORM = """\
    - selector: {{matchLabels: {{os: linux, arch: {architecture}}}}}
      uri: {repository}/releases/download/v{version}/{name}
      sha256: {digest}
      bin: fanoutctl
      files:
        - {{from: "{folder}/fanoutctl", to: .}}
        - {{from: "{folder}/LICENSE", to: .}}
"""
PLUGIN = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: fanout
spec:
  version: v{version}
  homepage: {repository}
  shortDescription: Inspect kube-fanout proxies
  description: |
    Shows for running kube-fanout proxies which clients read which resources, from memory or from the apiserver, and
    why; how current the proxies are; and what a client's requests would get.
  platforms:
"""


def digest(file):
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def krew(archives, version):
    platforms = (
        PLATFORM.format(
            architecture=ARCHITECTURES[archive.name.split(f"{version}-")[1].split("-")[0]],
            repository=REPOSITORY, version=version, name=archive.name, digest=digest(archive),
            folder=archive.name.removesuffix(".tar.gz"))
        for archive in archives)
    return PLUGIN.format(version=version, repository=REPOSITORY) + "".join(platforms)


def notes(version):
    found = re.search(rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## |\Z)", (TOP / "CHANGELOG.md").read_text(), re.M | re.S)
    if not found:
        sys.exit(f"CHANGELOG.md has no section of {version}")
    # The notes are read elsewhere than in the repository.
    return re.sub(r"\]\((?!https?:)", f"]({REPOSITORY}/blob/v{version}/", found[1].strip()) + "\n"


def provenance(files, version, revision, epoch):
    built_at = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lock = {"uri": f"git+{REPOSITORY}@{revision}#Cargo.lock", "digest": {"sha256": digest(TOP / "Cargo.lock")}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": digest(file)}} for file in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{REPOSITORY}/blob/v{version}/deploy/release.sh",
                "externalParameters": {"version": version, "command": "make release"},
                "resolvedDependencies": [
                    {"uri": f"git+{REPOSITORY}@refs/tags/v{version}", "digest": {"gitCommit": revision}},
                    lock,
                ],
            },
            # The same sources make the same bytes anywhere, so the time is that of the commit.
            "runDetails": {"builder": {"id": f"{REPOSITORY}/blob/v{version}/Makefile"}, "metadata": {"startedOn": built_at}},
        },
    }


def main():
    folder, version, revision, epoch = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    prefix = f"kube-fanout-{version}"
    (folder / f"{prefix}.krew.yaml").write_text(krew(sorted(folder.glob("*-linux-musl.tar.gz")), version))
    (folder / f"{prefix}.notes").write_text(notes(version))
    statement = provenance(sorted(folder.iterdir()), version, revision, epoch)
    (folder / f"{prefix}.intoto.json").write_text(json.dumps(statement, indent=2) + "\n")


if __name__ == "__main__":
    main()
