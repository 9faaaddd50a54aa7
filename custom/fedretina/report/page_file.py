"""A page on disk: the old one or the new one, never half of each."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fedretina.errors import StateError


def write_page(path: Path, page: str) -> None:
    """Write a page in one go. It can be rendered again from its record, so it need not survive a power cut.

    Raises:
        StateError: The disk is full or the folder not writable; what was there is whole.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StateError(f"{path} was not written ({error}): make room, or name another place.") from error
