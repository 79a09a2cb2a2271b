#!/usr/bin/env python3
"""Draws the pictures of the documents, docs/img/*.svg, from the descriptions below: pictures.py [check].

With `check` it writes nothing and fails if a file is not what would be drawn. A picture follows the reader's colours: on
its own by the browser's preference, and in the site by the site's palette (site/extra.css)."""

import html
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "img"

LIGHT = {"ink": "#1f2733", "soft": "#57606a", "line": "#6b7684", "card": "#f4f6f9", "edge": "#b8c1cc",
         "accent": "#0b57c4", "tint": "#e4eefc"}
DARK = {"ink": "#e6eaf0", "soft": "#a9b3c0", "line": "#93a0b0", "card": "#232a35", "edge": "#465161",
        "accent": "#7fb4ff", "tint": "#1d3050"}


def colours(palette):
    return "".join(f"--kf-{name}:{value};" for name, value in palette.items())


STYLE = (
    f"svg.kf{{{colours(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{svg.kf{{{colours(DARK)}}}}}"
    "svg.kf text{fill:var(--kf-ink);font:14px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    "svg.kf .title{font-weight:600}"
    "svg.kf .small{fill:var(--kf-soft);font-size:12.5px}"
    "svg.kf .box{fill:var(--kf-card);stroke:var(--kf-edge)}"
    "svg.kf .own{fill:var(--kf-tint);stroke:var(--kf-accent)}"
    "svg.kf .arrow{fill:none;stroke:var(--kf-line);stroke-width:1.4}"
    "svg.kf .main{stroke:var(--kf-accent);stroke-width:2.4}"
    "svg.kf .head{fill:var(--kf-line)}"
    "svg.kf .main-head{fill:var(--kf-accent)}"
)


class Picture:
    """An SVG of the given size, filled from back to front."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts = width, height, title, []

    def text(self, x, y, words, kind="", anchor="middle"):
        of_kind = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x}" y="{y}"{of_kind} text-anchor="{anchor}">{html.escape(words)}</text>')

    def frame(self, x, y, width, height, own=False):
        """An empty box; `own` marks the proxy."""
        kind = "own" if own else "box"
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" class="{kind}"/>')

    def box(self, x, y, width, height, title, line="", own=False):
        """A box with a title and a smaller line."""
        self.frame(x, y, width, height, own)
        middle, centre = x + width / 2, y + height / 2 + 5
        self.text(middle, centre - (10 if line else 0), title, "title")
        if line:
            self.text(middle, centre + 10, line, "small")

    def arrow(self, *points, main=False):
        """A line through the points with a head at its end."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        (from_x, from_y), (x, y) = points[-2], points[-1]
        length = ((x - from_x) ** 2 + (y - from_y) ** 2) ** 0.5
        along, across = ((x - from_x) / length, (y - from_y) / length), (-(y - from_y) / length, (x - from_x) / length)
        size = 9 if main else 7
        corners = [(x, y)] + [(x - size * along[0] + side * size * 0.45 * across[0],
                               y - size * along[1] + side * size * 0.45 * across[1]) for side in (1, -1)]
        head = " ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in corners)
        self.parts.append(f'<path d="{path}" class="arrow{" main" if main else ""}"/>')
        self.parts.append(f'<polygon points="{head}" class="{"main-head" if main else "head"}"/>')

    def svg(self):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" class="kf" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img">')
        return "\n".join([head, f"<title>{html.escape(self.title)}</title>", f"<style>{STYLE}</style>", *self.parts, "</svg>", ""])


def architecture():
    picture = Picture(860, 270, "One watch per resource reaches kube-fanout, which serves all clients from memory")
    picture.box(10, 100, 160, 70, "kube-apiserver")
    picture.frame(300, 20, 270, 230, own=True)
    picture.text(435, 46, "kube-fanout", "title")
    for y, title, line in [(62, "store", "current objects"), (122, "window", "recent events, encoded once"),
                           (182, "pass-through", "writes, exec, logs, …")]:
        picture.box(318, y, 234, 52, title, line)
    picture.arrow((170, 120), (300, 120), main=True)
    picture.text(235, 90, "one watch", "small")
    picture.text(235, 108, "per resource", "small")
    picture.arrow((300, 208), (90, 208), (90, 170))
    picture.text(195, 228, "all other requests", "small")
    for at, name in enumerate(["informer: node n1", "informer: all pods", "kubectl get pods -w", "ten thousand more"]):
        y = 23 + 60 * at
        picture.box(642, y, 208, 44, name)
        picture.arrow((570, 135), (606, 135), (606, y + 22), (642, y + 22))
    return picture


def event():
    picture = Picture(860, 250, "An event goes from the upstream stream through store, window and lanes to the cursors of watches")
    picture.box(10, 61, 140, 68, "upstream", "one stream")
    picture.frame(210, 20, 430, 210, own=True)
    picture.text(425, 44, "feed: pods", "title")
    picture.box(228, 62, 150, 66, "store", "is updated")
    picture.box(228, 148, 150, 66, "window", "event is appended")
    picture.box(450, 105, 172, 66, "lanes", "select the watches")
    picture.arrow((150, 95), (228, 95), main=True)
    picture.arrow((303, 128), (303, 148), main=True)
    picture.arrow((378, 181), (414, 181), (414, 138), (450, 138), main=True)
    for at, (name, line) in enumerate([("cursor: all pods", ""), ("cursor: node n1", ""), ("cursor: node n2", "not woken")]):
        y = 40 + 70 * at
        picture.box(704, y, 146, 48, name, line)
        if not line:
            picture.arrow((622, 138), (664, 138), (664, y + 24), (704, y + 24), main=True)
    return picture


def tree():
    picture = Picture(860, 320, "The apiserver serves zones, zones serve the proxies of nodes, and those serve clients")
    picture.box(340, 10, 180, 46, "kube-apiserver")
    picture.text(445, 76, "one watch per resource and zone", "small", "start")
    for zone, middle in enumerate([215, 645]):
        picture.arrow((430, 56), (430, 86), (middle, 86), (middle, 112), main=True)
        picture.box(middle - 90, 112, 180, 46, f"zone {'ab'[zone]}", own=True)
        for leaf in range(3):
            left = middle - 192 + 134 * leaf
            picture.arrow((middle, 158), (middle, 186), (left + 58, 186), (left + 58, 212))
            picture.box(left, 212, 116, 44, f"node {1 + leaf + 3 * zone}", own=True)
            for client in range(4):
                x = left + 19 + 26 * client
                picture.arrow((x, 256), (x, 286))
    picture.text(430, 308, "agents of each node", "small")
    return picture


def watches():
    picture = Picture(860, 280, "Before: each client has a watch at the apiserver. After: the proxy has one for all")
    for left, after in [(10, False), (450, True)]:
        picture.text(left + 200, 22, "after" if after else "before", "title")
        picture.box(left + 110, 40, 180, 46, "kube-apiserver")
        if after:
            picture.arrow((left + 200, 86), (left + 200, 132), main=True)
            picture.text(left + 212, 113, "one watch", "small", "start")
            picture.box(left + 110, 132, 180, 46, "kube-fanout", own=True)
        for client in range(8):
            x = left + 8 + 50 * client
            picture.frame(x, 226, 36, 26)
            picture.arrow((left + 130 + 20 * client, 178 if after else 86), (x + 18, 226))
        picture.text(left + 200, 272, "clients, a watch each", "small")
    return picture


def main():
    check = sys.argv[1:] == ["check"]
    stale = []
    for draw in (architecture, event, tree, watches):
        path, text = FOLDER / f"{draw.__name__}.svg", draw().svg()
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"docs/img: {', '.join(stale)} differ from site/pictures.py; run it")


if __name__ == "__main__":
    main()
