"""The `data` part of a site file, read without FLARE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fedretina.data.site_data_settings import SiteDataSettings
from fedretina.errors import DataError
from fedretina.site_settings import SiteSettings

SITE_NAME = "{SITE_NAME}"
OTHER_KEYS = tuple(name for name in SiteSettings.model_fields if name != "data")


def read_site_file(path: Path, site: str | None = None) -> SiteDataSettings:
    """Read where a site's data lie; relative paths are relative to the file's folder.

    Args:
        path: The site file.
        site: What the word `{SITE_NAME}` in its paths stands for.

    Raises:
        DataError: The file is missing, no YAML, names settings that there are not, or its paths need a site's name.
    """
    try:
        words = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"the site file {path} cannot be read ({error}): mend the path, or the file.") from error
    if not isinstance(words, dict) or not isinstance(words.get("data") or {}, dict):
        raise DataError(f"the site file {path} holds no settings: write `data:` and below it manifest and scheme.")
    strangers = sorted(str(key) for key in words if key not in ("data", *OTHER_KEYS))
    if strangers:
        raise DataError(f"the site file {path} has {strangers}: it may hold {['data', *OTHER_KEYS]}.")
    data = dict(words.get("data") or {})
    for name in ("manifest", "images", "cache"):
        if data.get(name) is not None:
            data[name] = path.parent / _named(str(data[name]), path, site)
    try:
        return SiteDataSettings.model_validate(data)
    except ValidationError as error:
        raise DataError(f"the site file {path} cannot be used:\n{_faults(error)}") from error


def _named(text: str, path: Path, site: str | None) -> str:
    if SITE_NAME in text and site is None:
        raise DataError(f"{path} serves many sites ({text!r}): say which one with --site.")
    return text if site is None else text.replace(SITE_NAME, site)


def _faults(error: ValidationError) -> str:
    """One line a fault, without pydantic's own advice."""
    faults: list[Any] = list(error.errors())
    return "\n".join(f"  data.{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in faults)
