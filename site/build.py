#!/usr/bin/env python3
"""Builds the documentation site into target/site/html: `make site`.

Its pages are the Markdown files of the repository, in their own folders, so that their links hold. It fails if a link or
anchor leads nowhere, if a picture is not what site/pictures.py draws, if a page would load something from another host,
or if it names a folder of this machine."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES, OUTPUT = ROOT / "target" / "site" / "pages", ROOT / "target" / "site" / "html"
FAVICON = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><g fill="none" stroke="#2f7de1" stroke-width="3">'
           '<path d="M4 16h10M14 16L27 6M14 16h14M14 16l13 10"/></g></svg>')


NO_PAGES = {".github/PULL_REQUEST_TEMPLATE.md"}


def shown(text):
    return text.replace(".github/", "project/")


def collect():
    """Copies what the site shows to PAGES."""
    shutil.rmtree(PAGES, ignore_errors=True)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "docs/img"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for name in (name for name in names if (ROOT / name).exists() and name not in NO_PAGES):
        # Folders that begin with a dot are hidden from MkDocs and from some web servers.
        path = PAGES / shown(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            path.write_text(shown((ROOT / name).read_text()))
        else:
            shutil.copyfile(ROOT / name, path)
    for name in ("site.css", "site.js"):
        shutil.copyfile(ROOT / "site" / name, PAGES / name)
    (PAGES / "img").mkdir()
    (PAGES / "img" / "favicon.svg").write_text(FAVICON)


def problems():
    """What a reader without network would miss, and what no reader should see."""
    # Attributes of elements that load when a page opens; links that a reader follows may lead anywhere.
    loads = re.compile(r"<(?:script|img|source|iframe|video)\b[^>]*?\ssrc=\"?(https?:)?//|"
                       r"<link\b(?=[^>]*rel=\"?(?:stylesheet|preload|preconnect|icon))[^>]*?href=\"?(https?:)?//")
    for path in sorted(OUTPUT.rglob("*")):
        if path.suffix not in (".html", ".css", ".json", ".xml"):
            continue
        text = path.read_text()
        name = path.relative_to(OUTPUT)
        if path.suffix == ".html" and loads.search(text):
            yield f"{name} loads from another host: {loads.search(text)[0]}"
        if path.suffix == ".css" and re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", text):
            yield f"{name} loads from another host"
        if str(ROOT) in text or str(pathlib.Path.home()) + "/" in text:
            yield f"{name} names a folder of this machine"


def main():
    subprocess.run([sys.executable, ROOT / "site" / "pictures.py", "check"], check=True)
    collect()
    environment = {**os.environ, "DISABLE_MKDOCS_2_WARNING": "true", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--clean", "--config-file", "site/mkdocs.yml"]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    found = list(problems())
    if found:
        sys.exit("\n".join(found))
    print(f"{sum(1 for _ in OUTPUT.rglob('*.html'))} pages in {OUTPUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
