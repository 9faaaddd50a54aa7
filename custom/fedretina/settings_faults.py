"""What is wrong with settings, in words: one clause a fault."""

from __future__ import annotations

from pydantic import ValidationError


def settings_faults(error: ValidationError, root: str) -> str:
    """Name each setting that cannot be used, and why.

    Args:
        error: What validation found.
        root: What a fault of the settings as a whole is said of.
    """
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or root}: {one['msg']}" for one in error.errors())
