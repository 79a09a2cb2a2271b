"""Runs a command in a terminal of its own, presses keys, and writes what is on its screen as HTML.

python3 tests/page/terminal.py [--size 120x32] [--keys SECONDS:KEYS]... [--html FILE] -- COMMAND...

Keys are pressed so many seconds after the start; the screen is written at the end, when --seconds have passed. It obeys
what `fanoutctl fanout top` writes, and is no terminal for anything else.
"""

import argparse
import codecs
import fcntl
import html
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

PAPER, INK = "#12161c", "#e3e7ec"
COLOURS = ["#3a414b", "#ff7b72", "#56d364", "#e3b341", "#79b8ff", "#d2a8ff", "#56d4dd", "#e3e7ec"]
SEQUENCE = re.compile(r"\x1b\[([?]?)([0-9;:]*)([A-Za-z])|\x1b[()=>78c].?")
PLAIN = (None, None, frozenset())


class Screen:
    """The cells of a terminal, each a letter and how it looks."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.row = self.column = 0
        self.look, self.rest = PLAIN, ""
        self.clear()

    def clear(self):
        self.cells = [[(" ", PLAIN)] * self.columns for _ in range(self.rows)]

    def take(self, text):
        text = self.rest + text
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = SEQUENCE.match(text, at)
                if not found:
                    break
                self.obey(*found.groups())
                at = found.end()
                continue
            self.put(text[at])
            at += 1
        self.rest = text[at:]

    def put(self, letter):
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.row = min(self.row + 1, self.rows - 1)
        elif self.row < self.rows and self.column < self.columns:
            self.cells[self.row][self.column] = (letter, self.look)
            self.column += 1

    def obey(self, private, arguments, order):
        numbers = [int(number or 0) for number in (arguments or "").replace(":", ";").split(";")]
        if private or order is None:
            return
        if order == "H":
            self.row, self.column = (max(number, 1) - 1 for number in (numbers + [1])[:2])
        elif order == "J":
            self.clear()
        elif order == "m":
            self.style(numbers)

    def style(self, numbers):
        ink, paper, marks = self.look
        while numbers:
            number = numbers.pop(0)
            if number == 0:
                ink, paper, marks = PLAIN
            elif number in (1, 4, 7):
                marks |= {number}
            elif number in (22, 24, 27):
                marks -= {1 if number == 22 else number - 20}
            elif number in (38, 48) and numbers[:1] == [5]:
                colour = COLOURS[numbers[1] % 8]
                ink, paper = (colour, paper) if number == 38 else (ink, colour)
                numbers = numbers[2:]
            elif number == 39:
                ink = None
            elif number == 49:
                paper = None
        self.look = (ink, paper, marks)

    def html(self):
        lines = "\n".join("".join(self.spans(line)) for line in self.cells)
        style = f"background:{PAPER};color:{INK};font:15px/1.25 'DejaVu Sans Mono',monospace;margin:0;padding:12px"
        return f'<!doctype html><meta charset="utf-8"><body style="margin:0"><pre style="{style}">{lines}</pre>\n'

    @staticmethod
    def spans(line):
        at = 0
        while at < len(line):
            look = line[at][1]
            end = next((n for n in range(at, len(line)) if line[n][1] != look), len(line))
            ink, paper, marks = look
            ink, paper = ink or INK, paper or PAPER
            if 7 in marks:
                ink, paper = paper, ink
            bold = ";font-weight:bold" if 1 in marks else ""
            line_under = ";text-decoration:underline" if 4 in marks else ""
            text = html.escape("".join(letter for letter, _ in line[at:end]))
            yield f'<span style="color:{ink};background:{paper}{bold}{line_under}">{text}</span>'
            at = end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="120x32")
    parser.add_argument("--keys", action="append", default=[], metavar="SECONDS:KEYS")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--html", metavar="FILE")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    columns, rows = map(int, arguments.size.split("x"))
    presses = sorted((float(at), keys.encode()) for at, keys in (press.split(":", 1) for press in arguments.keys))

    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        # The size is there before anybody asks for it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execvp(arguments.command[0], arguments.command)
    screen, decoder, start = Screen(columns, rows), codecs.getincrementaldecoder("utf-8")("replace"), time.monotonic()
    while (passed := time.monotonic() - start) < arguments.seconds:
        while presses and presses[0][0] <= passed:
            os.write(terminal, presses.pop(0)[1])
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                screen.take(decoder.decode(os.read(terminal, 65536)))
            except OSError:
                break
    if arguments.html:
        with open(arguments.html, "w", encoding="utf-8") as file:
            file.write(screen.html())
    else:
        print("\n".join("".join(letter for letter, _ in line).rstrip() for line in screen.cells))
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
