#!/usr/bin/env python3
"""Prints the measures of the code base as a table: measures.py [COMMIT]. With a commit it measures that tree as well.

Code lines are lines of Rust that are neither blank, nor a comment, nor part of tests. Words have a letter or a digit, so
that the bars of tables do not count. `--draw SEED` prints names, comments and messages drawn at random, for a reader to
judge; `--edit` measures the time from an edit in the daemon until its unit tests have passed."""

import argparse
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Rooms of the daemon that became crates of their own, and those that became tools.
LIBRARIES = ["base", "kubeapi", "http2"]
TOOLS = ["probe", "demo", "bench", "verify", "fanoutctl"]
JOURNEYS = ["an event", "a LIST", "a delegated watch"]
FORMER_TOOLS = ["probe", "demo", "bench", "verify", "inspect", "trial"]


def is_test(path):
    return "tests" in path.parts or path.name == "tests.rs"


def without_tests(text):
    """The text without modules that are compiled for tests only."""
    kept, lines = [], iter(text.splitlines())
    for line in lines:
        if line.strip() != "#[cfg(test)]":
            kept.append(line)
            continue
        # The item ends at a line of its own indentation.
        indent = line[: len(line) - len(line.lstrip())]
        for item in lines:
            if item.startswith(indent) and item.rstrip().endswith((";", "}")) and not item[len(indent) :].startswith(" "):
                break
    return kept


def code_lines(files):
    total = 0
    for path in files:
        lines = (line.strip() for line in without_tests(path.read_text()))
        total += sum(1 for line in lines if line and not line.startswith("//"))
    return total


def rust_of(folder):
    return [path for path in sorted(folder.rglob("*.rs")) if not is_test(path.relative_to(folder))]


def words_of(root):
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=root, check=True, capture_output=True, text=True).stdout.split()
    texts = (re.sub(r"<!--.*?-->", "", (root / name).read_text(), flags=re.S) for name in names)
    return sum(bool(re.search(r"[A-Za-z0-9]", word)) for text in texts for word in text.split()), len(names)


def journeys_of(root):
    """(functions, files) of each journey of docs/dev/JOURNEYS.md."""
    page = root / "docs/dev/JOURNEYS.md"
    blocks = re.findall(r"```text\n(.*?)```", page.read_text(), re.S) if page.exists() else []
    hops = [[re.split("::| ", line.strip(" ~")) for line in block.splitlines() if line.strip()] for block in blocks]
    return [(len({tuple(hop) for hop in each}), len({hop[0] for hop in each})) for each in hops]


def dependencies_of(root):
    """The crates of crates.io that the daemon links, its own dependencies first."""
    manifest = tomllib.loads((root / "Cargo.toml").read_text())
    own = set(manifest["dependencies"]) - {"base", "kubeapi", "http2"}
    command = ["cargo", "tree", "--offline", "--locked", "--package", "kube-fanout", "--edges", "no-dev,no-build",
               "--prefix", "none", "--no-default-features", "--format", "{p}"]
    tree = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
    linked = {line.split(" (")[0] for line in tree.splitlines() if line and "(/" not in line}
    return len(own), len(linked)


def measures(root):
    """(name, value) of each measure of a tree."""
    source, crates = root / "src", root / "crates"
    former = [source / name for name in FORMER_TOOLS] + [source / f"{name}.rs" for name in FORMER_TOOLS]
    daemon = [path for path in rust_of(source) if not any(path == old or old in path.parents for old in former)]
    for name in LIBRARIES:
        daemon += rust_of(crates / name / "src")
    tools = [path for path in rust_of(source) if path not in daemon]
    for name in TOOLS:
        tools += rust_of(crates / name / "src")
    text = "\n".join(path.read_text() for path in daemon)
    manifests = [tomllib.loads(path.read_text()) for path in [root / "Cargo.toml", *crates.glob("*/Cargo.toml")]]
    features = sum(len([name for name in each.get("features", {}) if name != "default"]) for each in manifests)
    words, pages = words_of(root)
    own, linked = dependencies_of(root)
    return [
        ("code lines of the daemon", code_lines(daemon)),
        ("files of the daemon", len(daemon)),
        ("code lines of the tools", code_lines(tools)),
        ("Cargo features", features),
        ("lines with cfg(feature)", len(re.findall(r"cfg\((?:any\(|all\()?feature|feature = ", text))),
        ("known bugs and failpoints in the daemon", len(re.findall(r"\bmutant\(\d|\blinger(?:_before)?\(", text))),
        ("words of Markdown", words),
        ("pages of Markdown", pages),
        *[(f"{what} of the journey of {name}", value) for name, hops in zip(JOURNEYS, journeys_of(root))
          for what, value in zip(("functions", "files"), hops)],
        ("dependencies that the daemon names", own),
        ("crates that the daemon links", linked),
    ]


def drawn(root, seed):
    """Prints what a reader judges: 100 type names; ten each of doc comments, log lines, error messages and tests."""
    sources = [path for folder in ("src", "crates") for path in sorted((root / folder).rglob("*.rs"))]
    texts = {path: "\n".join(without_tests(path.read_text())) for path in sources if not is_test(path)}
    code = "\n".join(texts.values())
    tests = "\n".join(path.read_text() for path in [*sources, *sorted((root / "tests").rglob("*.rs"))])
    kinds = [
        ("type names", 100, r"(?m)^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type) (\w+)"),
        ("doc comments", 10, r"(?m)^\s*(///[^\n]*(?:\n\s*///[^\n]*)*)"),
        ("log lines", 10, r"(tracing::(?:error|warn|info|debug)!\([^;]*?\))[;,]\n"),
        ("error messages", 10, r"(#\[error\(\"[^\n]*)"),
        ("test names", 10, r"#\[(?:tokio::)?test[^\n]*\n(?:\s*#\[[^\n]*\n)*\s*(?:async )?fn (\w+)"),
    ]
    for name, count, pattern in kinds:
        found = sorted(set(re.findall(pattern, tests if name == "test names" else code)))
        print(f"\n{name} ({count} of {len(found)}, seed {seed}):")
        chosen = random.Random(seed).sample(found, min(count, len(found)))
        print(", ".join(chosen) if count > 10 else "\n".join(re.sub(r"\s+", " ", each) for each in chosen))


def edited():
    """Seconds from an edit in the daemon until its unit tests have passed, with everything else built."""
    command = ["cargo", "test", "--quiet", "--package", "kube-fanout", "--lib"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (ROOT / "src/serve/route.rs").touch()
    began = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("commit", nargs="?", help="a commit to compare with")
    before = None
    parser.add_argument("--draw", type=int, metavar="SEED", help="print names, comments and messages drawn at random")
    parser.add_argument("--edit", action="store_true", help="time an edit of the daemon until its unit tests have passed")
    arguments = parser.parse_args()
    if arguments.draw is not None:
        return drawn(ROOT, arguments.draw)
    if arguments.edit:
        return print(f"edit to unit tests passed: {edited():.0f} s")
    if arguments.commit:
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "tree"
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, arguments.commit], cwd=ROOT, check=True)
            try:
                before = dict(measures(tree))
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    for name, value in measures(ROOT):
        print(f"{name:<42}" + (f"{before.get(name, '-'):>10}" if before else "") + f"{value:>10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
