"""What the documentation says that a command prints, and how it compares with what the command printed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What differs from one call to the next, and nothing else; the longer forms come first.
_VARIES = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "JOB"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\+\d\d:\d\d)?", "DATE"),
    (r"\d:\d\d:\d\d|no time", "TIME"),
    (r"\d+ min \d\d s|\d+ h \d\d min|(?<=after )[\d.]+ s|(?<=in )[\d.]+ s|(?<=about )\d+ s", "TIME"),
    (r"^ {1,2}\d+:\d\d", "CLOCK"),
    (r"process \d+", "process PID"),
    (r"localhost:\d+", "localhost:PORT"),
    (r"digest ([0-9a-f]{12}|\.\.\.)", "digest DIGEST"),
    (r"is there, (SUBMITTED|DISPATCHED|RUNNING)$", "is there, UNDER WAY"),  # as far as the server is by then
    (r"  +", "  "),
)


def shape(text: str) -> str:
    """A printed text without ids, dates, times, ports, digests, and the blanks that make columns even."""
    for pattern, name in _VARIES:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


def form(line: str) -> str:
    """The shape of a line, whatever its numbers are and which sites it names."""
    return re.sub(r"\d+", "#", re.sub(r"site-\d(, site-\d)*", "SITES", shape(line)))


def blocks(page: str) -> list[str]:
    """The fenced blocks of a page, named from the repository's root, that are in no language."""
    found = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in ("", "text")]


def sentence(page: str, beginning: str) -> str:
    """The block of a page that begins so, which is one line that the page has broken."""
    (found,) = (text for text in blocks(page) if text.startswith(beginning))
    return " ".join(found.split())


def shown(page: str, command: str) -> str:
    """What a page shows below the line `$ COMMAND`, up to the next command; it shows each once."""
    found = [
        output
        for block in blocks(page)
        for called, output in re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", block, re.MULTILINE)
        if called == command
    ]
    assert len(found) == 1, f"{page} shows {len(found)} outputs of `{command}`"
    return found[0]


def without_moments(text: str) -> str:
    """A printed text without the lines that begin with the time since the start, and without `...`.

    Which of these lines come depends on the machine.
    """
    return "".join(line for line in text.splitlines(keepends=True) if not re.match(r" *\d+:\d\d  | +\.\.\.$", line))
