#!/usr/bin/env python3
"""The licences of the crates that are linked into the binary for a target, as one text on standard output: a list of the
crates, each with its licence, and then every text that they bring, once, with the crates that it is of.

    deploy/licences.py TARGET

It reads the crates as cargo has them. For one that brings no text it takes that of another crate of the same
repository, or else the words of its licence with the authors that its Cargo.toml names; it fails where it has none."""

import collections
import json
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
NAMED = re.compile(r"(?i)^(un)?(licen[cs]e|copying|copyright|notice)")
TEXT_BYTES_MAX = 200_000
LINE = "-" * 80
MIT = """\
Copyright (c) {authors}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=TOP, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(target):
    """The packages of `cargo metadata` that are linked, in order; those of this workspace are none of them."""
    edges = "no-build,no-dev,no-proc-macro"
    options = ["--edges", edges, "--target", target, "--prefix", "none", "--format", "{p}"]
    tree = {tuple(line.split()[:2]) for line in cargo("tree", "--locked", *options).splitlines() if line}
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", target))
    packages = [package for package in metadata["packages"] if (package["name"], "v" + package["version"]) in tree]
    assert len(packages) == len(tree), "cargo tree and cargo metadata differ"
    return sorted((each for each in packages if each["source"]), key=lambda each: (each["name"], each["version"]))


def texts_of(package):
    """The texts in a crate's folder, and in one for licences below it."""
    folder = pathlib.Path(package["manifest_path"]).parent
    named = [file for file in folder.iterdir() if NAMED.match(file.name)]
    files = [file for each in named for file in (each.iterdir() if each.is_dir() else [each])]
    if package["license_file"]:
        files.append(folder / package["license_file"])
    texts = []
    for file in sorted({file.resolve() for file in files if file.is_file()}):
        if file.stat().st_size > TEXT_BYTES_MAX:
            sys.exit(f"licences: {package['name']}: {file.name} has more than {TEXT_BYTES_MAX} bytes")
        text = file.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
        texts.append("\n".join(line.rstrip() for line in text.strip("\n\ufeff ").split("\n")))
    return [text for text in texts if text]


def words_of(package):
    """The licence of a crate that brings no text, if it is one of the two that most have."""
    licence = package["license"] or ""
    if "Apache-2.0" in licence:
        return [(TOP / "LICENSE").read_text().strip("\n")]
    authors = ", ".join(package["authors"]) or f"the authors of {package['name']}"
    return [MIT.format(authors=authors)] if "MIT" in licence else []


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: deploy/licences.py TARGET")
    packages = linked(sys.argv[1])
    found = {package["id"]: texts_of(package) for package in packages}
    of_repository = collections.defaultdict(list)
    for package in packages:
        of_repository[package["repository"]] += found[package["id"]]
    texts, bare = collections.defaultdict(list), []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        has = found[package["id"]] or (package["repository"] and of_repository[package["repository"]])
        has = has or words_of(package)
        if not has:
            bare.append(f"{name} ({package['license']}) {package['manifest_path']}")
        for text in dict.fromkeys(has):
            texts[text].append(name)
    if bare:
        sys.exit("licences: no text in " + ", ".join(bare))
    print("The crates that are linked into kube-fanout, and their licences. Its own is in LICENSE.\n")
    for package in packages:
        print(f"    {package['name']} {package['version']}  {package['license']}  {package['repository'] or ''}".rstrip())
    for text, crates in texts.items():
        print(f"\n{LINE}\nOf {', '.join(crates)}:\n{LINE}\n\n{text}")


if __name__ == "__main__":
    main()
