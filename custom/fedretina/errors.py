"""The errors that people read: what is wrong, where, what was found, and how to mend it.

An error reply travels to the server. Each class states whether its message may leave (`public`), and `told.told` makes
of it what does leave: a message must not count images or patients, which a site may hold back, since numbers pass;
what was read anywhere does not pass. What is for the site's own log besides goes `with_note`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Self

AWAITS = "waiting for the hospital's approval."
"""Why a site has no part in a step: its hospital has not said yes to the plan. It is asked again."""


class FedretinaError(Exception):
    """Base of every error that this package raises on purpose.

    Attributes:
        public: Whether the message may be sent to the server, but for what was read at this end (`told.told`).
        told: The words that are sent instead of the message; None where they are made of it.
    """

    public = False
    told: str | None = None

    def telling(self, sentence: str) -> Self:
        """Give the words that may leave; whoever calls this vouches that nothing in them was read at this end."""
        self.told = sentence
        return self

    def with_note(self, note: str) -> Self:
        """Add what stays at home, such as numbers of images: a traceback and the site's own log have it."""
        self.add_note(note)
        return self

    @property
    def notes(self) -> tuple[str, ...]:
        """What was added with `with_note`."""
        return tuple(getattr(self, "__notes__", ()))


class SettingsError(FedretinaError, ValueError):
    """A setting is missing, contradicts another or is out of range."""

    public = True


class DataError(FedretinaError):
    """A site's images, labels or manifest cannot be used; the message may name files, so it stays at home."""


class SeveralPagesError(DataError):
    """An image file holds more than one picture, so nobody can tell which of them was graded."""


class TrainingError(FedretinaError):
    """Training cannot go on: a loss that is not finite, a split without images, one class alone."""

    public = True


class DivergedError(TrainingError):
    """A loss that is not finite."""


class RefusedError(FedretinaError):
    """A payload breaks the rules of the exchange: its stamp, kinds, keys, shapes or values."""

    public = True


class NotApprovedError(RefusedError):
    """The hospital has not decided about a plan, or its approval has ended: the run waits and asks again."""


class StateError(FedretinaError):
    """Stored state is missing, damaged, locked or of another version; the message may name files."""


class QuorumError(FedretinaError):
    """Fewer updates were accepted in a round than the quorum asks for."""

    public = True


class AdminError(FedretinaError):
    """The federation cannot be reached from the admin side, or does not do what it was asked."""


class UnreachableError(AdminError):
    """No server answers."""


class NotFoundError(AdminError):
    """There is no such job, run or kit."""


class NotDoneError(AdminError):
    """The job has not ended yet."""


class TimeOverError(NotDoneError):
    """The time that a command was given is over."""


class StoppedError(FedretinaError):
    """The run was aborted while a site was at work; nothing of the round is kept."""

    public = True


def require_package(name: str, sentence: str) -> None:
    """Check that a package of an extra can be imported.

    Args:
        name: Of the package.
        sentence: What needs it, and how to install it.

    Raises:
        SettingsError: It cannot, in these words.
    """
    try:
        import_module(name)
    except ImportError as error:
        raise SettingsError(sentence) from error
