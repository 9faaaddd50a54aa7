"""The words of the work list in a language: a file of phrases each, all with the same keys.

A phrase may hold {names}; one that counts something has a form for 1 besides, under its key with `.one`. What the
model's card and the gate say is English in their files. Where a phrase below `said.` has the same English words it is
translated; else it stays English, and the page marks it as such. What stands in such a sentence is a number, words that
have a phrase below `part.` and the name of their place, or a name that stays as it is.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from fedretina.report.text import in_percent

Language = Literal["en", "de", "zh", "fr"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
_FOLDER = Path(__file__).resolve().parent / "languages"
_NAME = re.compile(r"\\\{([a-z_]+)\\\}")
_NUMBER = re.compile(r"(?:below |above |\u2212)?\d+(?:\.\d+)?")


class Said(NamedTuple):
    """A sentence that was written elsewhere, as far as it could be translated.

    Attributes:
        text: The sentence.
        language: Of `text`.
    """

    text: str
    language: Language


class Phrases:
    """The phrases of a language.

    Args:
        language: One of `LANGUAGES`.
    """

    def __init__(self, language: Language = "en") -> None:
        self.language: Language = language
        self._phrases = phrases(language)

    def __call__(self, key: str, count: int | None = None, **values: Any) -> str:
        """The phrase of a key.

        Args:
            key: In the files of phrases.
            count: What it counts, as {count} in it.
            values: What stands in it.
        """
        if count is not None:
            values["count"] = count
            if count == 1 and f"{key}.one" in self._phrases:
                key = f"{key}.one"
        return self._phrases[key].format(**values)

    def phrase(self, key: str) -> str:
        """A phrase as it stands, with its {names}, for whoever fills them in later."""
        return self._phrases[key]

    def has(self, key: str) -> bool:
        """Whether there is such a phrase."""
        return key in self._phrases

    def number(self, value: float, places: int) -> str:
        """A number with so many places after the language's decimal mark."""
        return f"{value:.{places}f}".replace(".", self._phrases["decimal"])

    def percent(self, share: float) -> str:
        """A share as `report.text.in_percent` has it, with the sign."""
        return self("percent", value=self._figure(in_percent(share)))

    def share(self, share: dict[str, Any]) -> str:
        """A counted share with its 95 % interval."""
        return self(
            "share",
            k=round(share["k"]),
            n=round(share["n"]),
            value=self.percent(share["value"]),
            low=self.percent(share["low"]),
            high=self.percent(share["high"]),
        )

    def grade(self, name: str) -> str:
        """A grade of the site; its own word where the language has none for it."""
        from fedretina.settings.scheme import in_words

        key = f"grade.{name}"
        return self._phrases[key] if key in self._phrases else in_words(name)

    def reason(self, name: str) -> str:
        """A reason to refer."""
        return self._phrases[f"reason.{name}"]

    def said(self, sentence: str) -> Said:
        """A sentence of the card, the gate or the list, translated where the files know it."""
        if self.language == "en":
            return Said(sentence, "en")
        found = self._translated("said.", sentence)
        return Said(sentence, "en") if found is None else Said(found, self.language)

    def _translated(self, family: str, text: str) -> str | None:
        for key, pattern in _patterns(family):
            found = pattern.fullmatch(text)
            if found:
                values = {name: self._part(name, value) for name, value in found.groupdict().items()}
                return self._phrases[key].format(**values)
        return None

    def _figure(self, text: str) -> str:
        """A number that was written in English, with the language's decimal mark and signs for words."""
        return text.replace("below", "<").replace("above", ">").replace(".", self._phrases["decimal"])

    def _part(self, name: str, text: str) -> str:
        """What stands in a sentence: with the language's decimal mark, in its words, or as it is."""
        if _NUMBER.fullmatch(text):
            return self._figure(text)
        return self._translated(f"part.{name}.", text) or text


@cache
def phrases(language: Language) -> dict[str, str]:
    """All phrases of a language, by key."""
    from fedretina.yaml_file import read_yaml  # the command line asks for the languages, and waits for nothing heavy

    found = read_yaml(_FOLDER / f"{language}.yaml", "the file of phrases")
    return {str(key): str(value) for key, value in found.items()}


@cache
def _patterns(family: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Regular expressions that find the English phrases of a family, "said." or "part." with a place's name."""
    english = phrases("en")

    def place(found: re.Match[str]) -> str:
        """Whatever may stand there; where only some words may, these, so that two places beside each other are told."""
        words = [re.escape(value) for key, value in english.items() if key.startswith(f"part.{found[1]}.")]
        fixed = words and not any("\\{" in one for one in words)
        return f"(?P<{found[1]}>{'|'.join(words) if fixed else '.+?'})"

    return tuple(
        (key, re.compile(_NAME.sub(place, re.escape(value)), re.DOTALL))
        for key, value in english.items()
        if key.startswith(family)
    )
