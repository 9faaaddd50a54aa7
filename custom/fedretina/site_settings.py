"""What a hospital, or the server, decides for itself, and how it is read from the startup kit or a site file.

None of it leaves the machine. A job never names a path; a site says where its images and its state are in its own
startup kit (`local/privacy.json`, `properties` of the scope, under the key `fedretina`), else through environment
variables, else by default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedretina.data.site_data_settings import SiteDataSettings
from fedretina.errors import DataError, SettingsError
from fedretina.exchange.kinds import Kind
from fedretina.exchange.policy import PolicySettings
from fedretina.settings_faults import settings_faults
from fedretina.tracking.settings import TrackingSettings
from fedretina.yaml_file import YamlFileError, read_yaml

PROPERTY = "fedretina"
SERVER_PROPERTY = "fedretina_server"
SITE_FILE = "FEDRETINA_SITE_FILE"
SITE_NAME = "{SITE_NAME}"
"""Stands for the site's name in the paths of a file that serves many."""


class SiteSettings(BaseModel):
    """A site's private settings; none of them leaves the site.

    Attributes:
        data: Where images and manifest are; a site with none is a phantom hospital.
        state_root: Folder for the state of runs, outside FLARE's folders.
        weights_file: The site's copy of the weights that a job names by SHA-256.
        he_keys: The sites' file of `fedretina kit he-keys`, for a job that encrypts; secret.
        trainer: Where the site's work is done: "inline", in the process of FLARE's job, or "child", in a process of its
            own for each order, whose death (out of memory, say) costs one answer instead of the whole job. The bits
            are the same; a child costs the time to start Python and torch, and to open the data again.
        policy: What the site lets go, how exactly, and with how much noise; a job can only ask for less. A phantom
            hospital that sets none lets every kind go, a head too: its images are synthetic.
        tracking: Curves and log lines of the site's own numbers, at the site.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    data: SiteDataSettings = SiteDataSettings()
    state_root: Path | None = None
    weights_file: Path | None = None
    he_keys: Path | None = None
    trainer: Literal["inline", "child"] = "inline"
    policy: PolicySettings = PolicySettings()
    tracking: TrackingSettings = TrackingSettings()

    @property
    def own_policy(self) -> PolicySettings:
        """The policy that holds at the site.

        A site that points to no data and has set no policy is a phantom hospital: there is nothing to protect, and jobs
        whose heads travel run as they lie in the simulator and in the rehearsal. With data, a head stays unless the
        site names its kind.
        """
        if "policy" in self.model_fields_set or self.data.manifest is not None:
            return self.policy
        return PolicySettings(kinds=frozenset(Kind))


class ServerSettings(BaseModel):
    """The server's own settings, read from the scope property `fedretina_server` of its startup kit.

    Attributes:
        state_root: Folder for the state of runs, outside FLARE's folders.
        weights_file: The server's copy of the weights that a job names by SHA-256.
        he_keys: The server's file of `fedretina kit he-keys`, which mixes and cannot read.
        tracking: Curves and log lines of what sites let go, at the server.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    state_root: Path | None = None
    weights_file: Path | None = None
    he_keys: Path | None = None
    tracking: TrackingSettings = TrackingSettings()


def read_site_settings(properties: Mapping[str, Any], site: str, folder: Path) -> SiteSettings:
    """Read a site's settings: the scope property, then the environment, then none.

    Args:
        properties: Properties of the scope.
        site: Name of the site.
        folder: What a relative path in the scope property starts at: the kit's `local` folder.

    Raises:
        DataError: The settings point to a file that is missing or cannot be used.
    """
    found = properties.get(PROPERTY)
    if found is None and os.environ.get(SITE_FILE):
        found, folder = {"site_file": os.environ[SITE_FILE]}, Path.cwd()
    if found is None:
        return SiteSettings()
    if not isinstance(found, Mapping) or not found:
        raise DataError(
            f"the scope property {PROPERTY!r} of {site} must hold settings, got {found!r}: name a site_file."
        )
    words, base = dict(found), folder
    if "site_file" in words:
        if not words["site_file"]:
            raise DataError(f"the site file of {site} is not set: name a file, or remove the property.")
        path = folder / str(words["site_file"]).replace(SITE_NAME, site)
        return read_site_file(path, site)
    return _site_settings(words, base, site, f"the settings of {site}")


def read_server_settings(properties: Mapping[str, Any]) -> ServerSettings:
    """Read the settings of a server; a site's settings and its environment variable mean nothing here.

    Raises:
        SettingsError: The property cannot be used.
    """
    found = properties.get(SERVER_PROPERTY) or {}
    try:
        return ServerSettings.model_validate(found)
    except ValidationError as error:
        faults = settings_faults(error, SERVER_PROPERTY, ServerSettings)
        raise SettingsError(
            f"the scope property {SERVER_PROPERTY!r} may hold state_root, weights_file and he_keys, all paths, and "
            f"tracking: {faults}"
        ).telling("the server's own settings cannot be used: its log says what and where.") from error


def read_site_file(path: Path, site: str | None) -> SiteSettings:
    """Read a site file; relative paths in it start at its folder.

    Args:
        path: The site file.
        site: What the word `{SITE_NAME}` in its paths stands for; None leaves it as it is.

    Raises:
        DataError: The file cannot be read, or holds settings that cannot be used.
    """
    try:
        words = read_yaml(path, "the site file")
    except YamlFileError as error:
        raise DataError(str(error)) from error
    return _site_settings(words, path.parent, site, f"the site file {path}")


def _site_settings(words: dict[str, Any], base: Path, site: str | None, what: str) -> SiteSettings:
    if not isinstance(words.get("data") or {}, Mapping):
        raise DataError(f"{what} holds no settings of its data: write `data:` and below it manifest and scheme.")
    data = dict(words.get("data") or {})
    for holder, name in (
        (data, "manifest"),
        (data, "images"),
        (data, "cache"),
        (words, "state_root"),
        (words, "weights_file"),
        (words, "he_keys"),
    ):
        if holder.get(name) is not None:
            holder[name] = base / str(holder[name]).replace(SITE_NAME, SITE_NAME if site is None else site)
    try:
        return SiteSettings.model_validate({**words, "data": data})
    except ValidationError as error:
        raise DataError(f"{what} cannot be used: {settings_faults(error, 'settings', SiteSettings)}") from error
