"""The words with which an error may leave the end where it was raised.

That no sentence tells what it should not was left to those who wrote the sentences, and one of 150 did: it repeated a
value that a job had made out of a file of the site. So it is not left to them any more. What leaves is made of the
words that the raising module itself holds as text, of numbers, and of names that both ends have already; whatever else
stands in the sentence came from a file, a setting, a library or a message, and becomes `...`. The end's own log has the
sentence whole.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType

from fedretina.errors import FedretinaError

_LONGEST = 500  # characters of a reason
_PACKAGE = Path(__file__).resolve().parent
_WORD = re.compile(r"[\w.+-]+")
_NUMBER = re.compile(r"[+-]?(\d{1,9}(\.\d{0,9})?|\.\d{1,9})(e[+-]?\d{1,3})?|nan|[+-]?inf")
_STEP = re.compile(r"-\d{1,9}$")
_GAPS = re.compile(r"\.\.\.(\W*\.\.\.)+")
_PLAIN = re.compile(r"[^\x20-\x7e]")


def told(error: FedretinaError, known: Collection[str] = (), end: str = "site") -> str:
    """Say an error in words that may leave.

    Args:
        error: The error. One that says itself how it may be told (`telling`) is told so.
        known: Names that both ends hold: of the run, the phase, the site, tensors.
        end: Whose log has the whole sentence, "site" or "server".

    Returns:
        The sentence, or, where its class may not leave or less than half of it may, one that only names the class.
    """
    if error.told is not None:
        return error.told
    may = error.public or end == "server"  # a site may hold back even its numbers, which pass here
    shown = _shown(str(error), _texts_behind(error.__traceback__) | set(known)) if may else None
    return shown or f"{type(error).__name__}: the {end}'s own log says what and where."


def one_line(text: str, most: int = _LONGEST) -> str:
    """What another end says, as it may stand in a log or a record: one printable line, cut to so many characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _shown(sentence: str, own: Collection[str]) -> str | None:
    """The sentence with `...` for every word that is not one of our own; None where that is more than half of it."""
    kept: list[bool] = []

    def judged(found: re.Match[str]) -> str:
        word = found.group()
        bare = word.strip(".+-")
        if not bare or bare in own or _NUMBER.fullmatch(bare.lower()) or _STEP.sub("", bare) in own:
            kept.append(True)
            return word
        kept.append(False)
        return "..." + ("." if word.endswith(".") else "")

    shown = _GAPS.sub("...", _PLAIN.sub(" ", _WORD.sub(judged, sentence)))
    return shown if 2 * sum(kept) >= max(len(kept), 1) else None


def _texts_behind(trace: TracebackType | None) -> set[str]:
    """The words of every text in the modules of this package that an error came through, their comments left out."""
    files = set()
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            files.add(path)
        trace = trace.tb_next
    return {word.strip(".+-") for path in files for text in _texts_of(path) for word in _WORD.findall(text)}


def _texts_of(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return  # no source, no words: the error then only names its class
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value
