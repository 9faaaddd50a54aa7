"""What this process finds around it: the job's experiment, the site's own settings, where state lives.

A job never names a path. A site says where its images and its state are in its own startup kit (`local/privacy.json`,
`properties` of the scope, under the key `fedretina`), else through environment variables, else by default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedretina.data.site_data import SiteDataSettings
from fedretina.errors import DataError, SettingsError
from fedretina.exchange.kinds import Kind
from fedretina.experiment import Experiment

PROPERTY = "fedretina"
SERVER_PROPERTY = "fedretina_server"
SITE_FILE = "FEDRETINA_SITE_FILE"
STATE_ROOT = "FEDRETINA_STATE_ROOT"
RUN = "FEDRETINA_RUN"
_SIMULATED_JOB = "simulate_job"


class SiteSettings(BaseModel):
    """A site's private settings; none of them leaves the site.

    Attributes:
        data: Where images and manifest are; a site with none is a phantom hospital.
        state_root: Folder for the state of runs, outside FLARE's folders.
        weights_file: The site's copy of the weights that a job names by SHA-256.
        may_leave: Kinds of tensors that the site lets go; a job can only ask for fewer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    data: SiteDataSettings = SiteDataSettings()
    state_root: Path | None = None
    weights_file: Path | None = None
    may_leave: frozenset[Kind] = Field(
        default=frozenset({Kind.ENCODER, Kind.NORM, Kind.STATISTIC, Kind.COUNTER, Kind.CONTROL, Kind.PROJECTOR})
    )


class ServerSettings(BaseModel):
    """The server's own settings, read from the scope property `fedretina_server` of its startup kit.

    Attributes:
        state_root: Folder for the state of runs, outside FLARE's folders.
        weights_file: The server's copy of the weights that a job names by SHA-256.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    state_root: Path | None = None
    weights_file: Path | None = None


def load_experiment(fl_ctx: FLContext, file_name: str) -> Experiment:
    """Read the experiment file that lies in the job's config folder, as it was sent.

    Raises:
        SettingsError: The file is missing or its settings cannot be used.
    """
    if Path(file_name).name != file_name:
        raise SettingsError(f"the experiment file must be a plain name in the job's config folder, got {file_name!r}.")
    folder = fl_ctx.get_engine().get_workspace().get_app_config_dir(fl_ctx.get_job_id())
    return Experiment.load(Path(folder) / file_name)


def load_site_settings(fl_ctx: FLContext) -> SiteSettings:
    """Read the settings of this site: scope property, then environment, then none.

    Raises:
        DataError: The settings point to a file that is missing or cannot be used.
    """
    site = fl_ctx.get_identity_name()
    found = _scope_properties(fl_ctx).get(PROPERTY)
    if found is None and os.environ.get(SITE_FILE):
        found = {"site_file": os.environ[SITE_FILE]}
    if found is None:
        return SiteSettings()
    if not isinstance(found, Mapping) or not found:
        raise DataError(
            f"the scope property {PROPERTY!r} of {site} must hold settings, got {found!r}: name a site_file."
        )
    words, base = dict(found), Path.cwd()
    if "site_file" in words:
        if not words["site_file"]:
            raise DataError(f"the site file of {site} is not set: name a file, or remove the property.")
        path = Path(str(words["site_file"]).replace("{SITE_NAME}", site))
        words, base = _read_site_file(path, site), path.parent
    return _site_settings(words, base, site)


def load_server_settings(fl_ctx: FLContext) -> ServerSettings:
    """Read the settings of this server; a site's settings and its environment variable mean nothing here.

    Raises:
        SettingsError: The property cannot be used.
    """
    found = _scope_properties(fl_ctx).get(SERVER_PROPERTY) or {}
    try:
        return ServerSettings.model_validate(found)
    except ValidationError as error:
        raise SettingsError(
            f"the scope property {SERVER_PROPERTY!r} may hold state_root and weights_file, both paths: {error}"
        ) from error


def state_root(fl_ctx: FLContext, settings: SiteSettings | ServerSettings) -> Path:
    """Where the state of runs lies: the site's setting, the environment, else beside FLARE's workspace.

    The simulator wipes its workspace at every start, so there the default is a folder beside it.
    """
    chosen = settings.state_root or os.environ.get(STATE_ROOT)
    if chosen:
        return Path(str(chosen).replace("{SITE_NAME}", fl_ctx.get_identity_name())).resolve()
    root = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).resolve()
    if fl_ctx.get_job_id() == _SIMULATED_JOB:
        root = root.parent.parent
    return root / "fedretina_runs"


def with_weights_file(experiment: Experiment, settings: SiteSettings | ServerSettings) -> Experiment:
    """Point an experiment that names weights by SHA-256 to this machine's copy of the file.

    Raises:
        SettingsError: The job asks for a file that this machine was not told of.
    """
    weights = experiment.network.weights
    if weights.source != "file":
        return experiment
    if settings.weights_file is None:
        raise SettingsError(
            f"the job starts from a weights file with sha256 {str(weights.sha256)[:12]}...: "
            "set weights_file in this site's settings to a copy of it."
        )
    chosen = weights.model_copy(update={"file": settings.weights_file})
    network = experiment.network.model_copy(update={"weights": chosen})
    return experiment.model_copy(update={"network": network})


def _scope_properties(fl_ctx: FLContext) -> Mapping[str, Any]:
    found = fl_ctx.get_prop(FLContextKey.SCOPE_PROPERTIES)
    if found is None:
        # The simulator reads privacy.json but does not put its properties into the context, so they are read here.
        path = Path(fl_ctx.get_engine().get_workspace().get_site_privacy_file_path())
        try:
            words = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        scopes = {scope.get("name"): scope for scope in words.get("scopes", [])}
        found = scopes.get(words.get("default_scope"), {}).get("properties")
    return found or {}


def _read_site_file(path: Path, site: str) -> dict[str, Any]:
    try:
        words = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"the site file of {site} is missing: {path}. Write it, or correct the setting.") from error
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"the site file of {site} cannot be read: {path} ({error}).") from error
    if not isinstance(words, dict):
        raise DataError(f"the site file of {site} holds no settings: {path}.")
    return words


def _site_settings(words: dict[str, Any], base: Path, site: str) -> SiteSettings:
    data = dict(words.get("data") or {})
    for holder, name in (
        (data, "manifest"),
        (data, "images"),
        (data, "cache"),
        (words, "state_root"),
        (words, "weights_file"),
    ):
        if holder.get(name) is not None:
            holder[name] = base / str(holder[name]).replace("{SITE_NAME}", site)
    try:
        return SiteSettings.model_validate({**words, "data": data})
    except ValidationError as error:
        raise DataError(f"the settings of {site} cannot be used: {error}") from error
