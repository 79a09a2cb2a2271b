"""What the site does with a page of the repository: it shows SVG pictures in its own colours, and sends links to files
that are no pages to the repository."""

import html
import pathlib
import posixpath
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/kube-fanout/kube-fanout"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
# Pages that a search lists after those for operators.
FOR_DEVELOPERS = ("docs/dev/", "tests/", "benches/", "ARCHITECTURE", "CONTRIBUTING", "GOVERNANCE")
CODE = re.compile(r"<code>([^<]*)</code>")
SEPARATOR = re.compile(r"::|[/_.](?!rs\b)")
LONG_NAME = 26
PICTURE = re.compile(r'<img alt="([^"]*)" src="[^"]*?([a-z]+)\.svg"\s*/?>')


def outside(page, target):
    """The address of a file of the repository that is no page, or None."""
    if "://" in target or target.startswith("mailto:") or target.endswith(".md"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if path.startswith("..") or not (ROOT / path).exists():
        return None
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{path}"


def on_page_markdown(markdown, page, **_):
    def link(found):
        text, target, anchor = found.groups()
        address = outside(page.file.src_uri, target)
        return f"[{text}]({address}{anchor or ''})" if address else found[0]

    if page.file.src_uri.startswith(FOR_DEVELOPERS):
        page.meta["search"] = {"boost": 0.3}
    # Blocks between fences stay as they are.
    parts = re.split(r"(?ms)(^```.*?^```$)", markdown)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def on_page_content(content, **_):
    def picture(found):
        alt, name = found.groups()
        text = (ROOT / "docs" / "img" / f"{name}.svg").read_text()
        # Without its own colours, which follow the browser and not the palette.
        text = re.sub(r"@media.*?\}\}", "", text, flags=re.S)
        text = text.replace("<svg ", f'<svg aria-label="{html.escape(html.unescape(alt))}" ', 1)
        return f'<span class="picture">{text}</span>'

    content = PICTURE.sub(picture, content)
    # A head without words is none, and an empty cell heads nothing.
    content = re.sub(r"<thead>\s*<tr>\s*(?:<th></th>\s*)+</tr>\s*</thead>", "", content)
    content = content.replace("<th></th>", "<td></td>")
    # Long names in tables break after a separator, and nowhere else.
    return re.sub(r"(?s)<td>.*?</td>", lambda cell: CODE.sub(breakable, cell[0]), content)


def breakable(code):
    name = code[1]
    broken = SEPARATOR.sub(lambda found: found[0] + "<wbr>", name)
    return f"<code>{broken}</code>" if len(name) > LONG_NAME else code[0]


def on_post_page(output, **_):
    """Names the search for screen readers, which the theme does not."""
    return output.replace('<div class="md-search" data-md-component="search" role="dialog">',
                          '<div class="md-search" data-md-component="search" role="dialog" aria-label="Search">')
