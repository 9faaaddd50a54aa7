"""The `data` part of a site file, read without FLARE."""

from __future__ import annotations

from pathlib import Path

from fedretina.errors import DataError
from fedretina.settings.site import SITE_NAME, SiteDataSettings
from fedretina.settings.site import read_site_file as read_whole


def read_site_file(path: Path, site: str | None = None) -> SiteDataSettings:
    """Read where a site's data lie; relative paths are relative to the file's folder.

    The whole file is checked, as a run would check it.

    Args:
        path: The site file.
        site: What the word `{SITE_NAME}` in its paths stands for.

    Raises:
        DataError: The file is missing, no YAML, names settings that there are not, or its paths need a site's name.
    """
    data = read_whole(path, site).data
    for place in (data.manifest, data.images, data.cache):
        if site is None and place is not None and SITE_NAME in str(place):
            raise DataError(f"{path} serves many sites ({place.name!r}): say which one with --site.")
    return data
