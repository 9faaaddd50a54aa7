"""What this process finds around it: the job's experiment, the site's own settings, where state lives."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from pydantic import ValidationError

from fedretina.errors import DataError, SettingsError
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import (
    ServerSettings,
    SiteSettings,
    read_server_settings,
    read_site_settings,
    scope_properties,
    shares_named_root,
)
from fedretina.told import one_line
from fedretina.yaml_file import YamlFileError

STATE_ROOT = "FEDRETINA_STATE_ROOT"
RUN = "FEDRETINA_RUN"
RELEASE = "fedretina_release"
"""Property of a task's context at the site, which does not travel: an answer's stamp and its `Payload.release`."""
_SIMULATED_JOB = "simulate_job"


def load_experiment(fl_ctx: FLContext, file_name: str) -> Experiment:
    """Read the experiment file that lies in the job's config folder, as it was sent.

    Raises:
        SettingsError: The file is missing, its settings cannot be used, or they need all images in one place.
    """
    if Path(file_name).name != file_name:
        raise SettingsError("the experiment file must be a plain name in the job's config folder.")
    # Kits that `nvflare package` writes name no config folder, and FLARE then takes the app's folder for it.
    app = Path(fl_ctx.get_engine().get_workspace().get_app_dir(fl_ctx.get_job_id()))
    try:
        return Experiment.load(app / "config" / file_name).require_federated()
    except YamlFileError as error:  # its words stay here: the file was written elsewhere, and may hold anything
        raise SettingsError(error.outside).telling(error.outside).with_note(str(error)) from error
    except SettingsError as error:
        if isinstance(error.__cause__, ValidationError):
            names = sorted({".".join(map(str, one["loc"])) or "experiment" for one in error.__cause__.errors()})
            error.telling(
                f"settings of the job's experiment cannot be used, {one_line(', '.join(names), 200)}: `fedretina "
                "submit` of the version that runs here says what is wrong with each."
            )
        raise


def load_site_settings(fl_ctx: FLContext) -> SiteSettings:
    """Read the settings of this site: scope property, then environment, then none.

    Raises:
        DataError: The settings point to a file that is missing or cannot be used.
    """
    folder = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
    return read_site_settings(_scope_properties(fl_ctx), fl_ctx.get_identity_name(), folder)


def load_server_settings(fl_ctx: FLContext) -> ServerSettings:
    """Read the settings of this server.

    Raises:
        SettingsError: The property cannot be used.
    """
    return read_server_settings(_scope_properties(fl_ctx))


def simulated(fl_ctx: FLContext) -> bool:
    """Whether the job runs in FLARE's simulator."""
    return bool(fl_ctx.get_job_id() == _SIMULATED_JOB)


def state_root(fl_ctx: FLContext, settings: SiteSettings | ServerSettings) -> Path:
    """Where the state of runs lies: the site's setting, the environment, else beside FLARE's workspace.

    The simulator wipes its workspace at every start, so there the default is a folder beside it.
    """
    chosen = settings.state_root or os.environ.get(STATE_ROOT)
    if chosen:
        return Path(str(chosen).replace("{SITE_NAME}", fl_ctx.get_identity_name())).resolve()
    root = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).resolve()
    if simulated(fl_ctx):
        root = root.parent.parent
    return root / "fedretina_runs"


def shares_state_root(fl_ctx: FLContext, settings: SiteSettings) -> bool:
    """Whether sites of other hospitals may lie under the same state root: in a rehearsal on one machine.

    So it is in the simulator, and where the environment says where state lies, which all processes of a rehearsal have:
    itself, or by a site file. A root that lies in a site's own kit is one hospital's.
    """
    of_environment = settings.state_root is None and bool(os.environ.get(STATE_ROOT))
    return simulated(fl_ctx) or of_environment or shares_named_root(settings, _scope_properties(fl_ctx))


def with_weights_file(experiment: Experiment, settings: SiteSettings | ServerSettings) -> Experiment:
    """Point an experiment that names weights by SHA-256 to this machine's copy of the file.

    Raises:
        SettingsError: The job asks for a file that this machine was not told of.
    """
    return experiment.with_weights_file(settings.weights_file)


def _scope_properties(fl_ctx: FLContext) -> Mapping[str, Any]:
    found = fl_ctx.get_prop(FLContextKey.SCOPE_PROPERTIES)
    if found is None:
        # The simulator reads privacy.json but does not put its properties into the context, so they are read here.
        path = Path(fl_ctx.get_engine().get_workspace().get_site_privacy_file_path())
        try:
            raw = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        found = scope_properties(raw)
    return found or {}
