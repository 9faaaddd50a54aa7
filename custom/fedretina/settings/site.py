"""What a hospital, or the server, decides for itself, and how it is read from the startup kit or a site file.

None of it leaves the machine. A job never names a path; a site says where its images and its state are in its own
startup kit (`local/privacy.json`, `properties` of the scope, under the key `fedretina`), else through environment
variables, else by default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedretina.errors import DataError, SettingsError
from fedretina.settings.columns import Column
from fedretina.settings.exchange import Kind
from fedretina.settings.faults import settings_faults
from fedretina.settings.gpu import GpuSettings
from fedretina.settings.images import modality_settings
from fedretina.settings.policy import PolicySettings
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.scheme import GradingScheme, preset, preset_modality
from fedretina.yaml_file import YamlFileError, read_yaml

PROPERTY = "fedretina"

SERVER_PROPERTY = "fedretina_server"

SITE_FILE = "FEDRETINA_SITE_FILE"

APPROVAL, REQUIRED = "approval", "required"
"""Beside `site_file` in the scope property, as a hardened kit has it: then the site file cannot take it back."""

SITE_NAME = "{SITE_NAME}"
"""Stands for the site's name in the paths of a file that serves many."""


UNUSUAL = 0.25
"""The share of `SiteDataSettings.unusual` where a site names none."""


class PromiseSettings(BaseModel):
    """How many of a site's patients with referable disease may pass without being referred.

    Attributes:
        missed: The largest share of them, such as 0.05. The smaller, the more patients are referred, and the more ill
            patients of the validation split it takes (docs/promise.md).
        sure: With what probability that is to hold, such as 0.9.
        drawn: Where the site's own ill patients are too few to promise anything, take a threshold all the same, drawn
            towards the other sites' patients as far as these let counts go (`policy.referral_curve`, in a job with
            `referral_curve`). No promise comes with it, and the model's card says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    missed: float = Field(default=0.05, gt=0, le=0.5)
    sure: float = Field(default=0.9, ge=0.5, lt=1)
    drawn: bool = False


class SiteDataSettings(BaseModel):
    """Where a site's data lie and how they are graded; the site's own, never a job's.

    Attributes:
        manifest: The manifest; without one the site is a phantom hospital.
        images: Image root; by default the manifest's folder. It, `cache`, `bad_files`, `changes` and `columns` are
            refused without a manifest.
        scheme: The grading scheme or a preset's name; must be given with a manifest, save for pre-training alone.
        modality: What the images are, as `images.modality` of a job calls it, so that a job for others is refused; None
            is what the preset that `scheme` names grades, and for a scheme of the site's own nothing is refused.
        public_set: Name of the public set that the images are of, as `fedretina data import` calls it and writes it
            here; None for a hospital's own. The model's card warns where its encoder was pre-trained on that set.
        cache: Folder of the image cache.
        feature_cache_gb: Gigabytes of the disk, beside the image cache, that may be filled with what frozen stages of
            networks make of the images, so that a round does not compute it anew; what was not read for longest is
            removed first. 0 keeps nothing. It changes how long a run takes, never its figures.
        bad_files: Whether images that cannot be read are left out or stop the site.
        limit: At most so many images of a split, chosen by a hash of the file's name, for short runs. "pretrain" takes
            from the images of train that its own limit leaves and from those without a label.
        min_count: Fewest patients behind any count of answers that leaves the site, behind any figure and any sum of
            features of its validation or test split, and behind the statistics of its training images (FedAP); more
            than it has, and none leaves.
        changes: What happens when the manifest lists other files, labels, patients or splits than when the site's
            rounds of a run began, so that it could be tested on what it was trained on: "refuse" keeps the site out of
            the run until the old manifest is back, "accept" goes on, and the model's card says so.
        columns: Optional columns of the manifest that are read: camera, camera_maker, sex, age_band, eye, quality and
            first_visit tell subgroups of patients, for which the site's report then has figures of their own; eye also
            tells which photographs are of one eye, and macular_oedema counts as vision-threatening. A column that is
            named must be there, and hold nothing but its words or nothing. No cell of them ever leaves; sums do where
            `policy.subgroups` names the column.
        unusual: Largest share of the site's own patients that a doctor is to see only because a photograph of theirs is
            one of the least usual here, in looks or in the model's features; eyes of another camera are mostly found
            so, and most of the site's own among them are referred anyway (docs/gate.md). 0 refers none for that.
        phantom_images: Training images of an average phantom hospital; refused with a manifest.
        promise: What the site asks of its referral; None asks nothing. It never leaves, and needs a scheme that names
            referable grades.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: Path | None = None
    images: Path | None = None
    scheme: GradingScheme | str | None = None
    modality: str | None = None
    public_set: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    cache: Path | None = None
    feature_cache_gb: float = Field(default=20.0, ge=0, le=100_000)
    bad_files: Literal["skip", "refuse"] = "skip"
    limit: dict[Literal["train", "val", "test", "pretrain"], int] | None = None
    min_count: int = Field(default=MIN_COUNT, ge=2)
    changes: Literal["refuse", "accept"] = "refuse"
    columns: tuple[Column, ...] = ()
    unusual: float = Field(default=UNUSUAL, ge=0, le=0.5)
    phantom_images: int = Field(default=160, ge=1)
    promise: PromiseSettings | None = None

    @model_validator(mode="after")
    def _all_is_read(self) -> Self:
        phantom = self.manifest is None
        named = ("images", "cache", "bad_files", "changes", "columns") if phantom else ("phantom_images",)
        unread = [name for name in named if getattr(self, name) != type(self).model_fields[name].default]
        if unread:
            listed = " and ".join(unread)
            raise ValueError(
                f"{listed} can only be used with a manifest: name the manifest that lists and grades the site's "
                f"images, or leave {listed} out."
                if phantom
                else f"{listed} is for a phantom hospital, and a manifest is set: leave one of the two out."
            )
        return self

    @field_validator("modality")
    @classmethod
    def _modality_is_known(cls, name: str | None) -> str | None:
        if name is not None:
            modality_settings(name)  # refuses what it does not know
        return name

    @field_validator("limit")
    @classmethod
    def _check_limit(cls, limit: dict[str, int] | None) -> dict[str, int] | None:
        low = {split: count for split, count in (limit or {}).items() if count < 1}
        if low:
            raise ValueError(f"limit is {low}: allow at least one image per split, or leave the split out.")
        return limit

    def most(self, split: str) -> int | None:
        """How many images of a split are taken at most, 1 or more; None for all."""
        return {str(name): most for name, most in (self.limit or {}).items()}.get(split)


def job_data(site: str, settings: SiteDataSettings, phantom_images: int) -> SiteDataSettings:
    """A site's data as a job takes them: one that points to none is a phantom hospital of the job's size.

    Args:
        site: Name of the site.
        settings: The site's own.
        phantom_images: The job's; 0 takes no phantom hospitals.

    Raises:
        DataError: The site points to no data, and the job takes no phantom hospitals.
    """
    if settings.manifest is not None:
        return settings
    if not phantom_images:
        raise DataError(f"{site} points to no data, and this job takes no phantom hospitals: set its site_file.")
    return settings.model_copy(update={"phantom_images": phantom_images})


def site_scheme(settings: SiteDataSettings) -> GradingScheme | None:
    """The scheme that a site's settings name or hold; None where they say none.

    Raises:
        DataError: There is no such preset.
    """
    if not isinstance(settings.scheme, str):
        return settings.scheme
    try:
        return preset(settings.scheme)
    except SettingsError as error:
        raise DataError(str(error)) from error


def site_modality(settings: SiteDataSettings) -> str | None:
    """What a site's images are; None where the site does not say. Phantoms are drawn as a job asks."""
    said = settings.modality
    return preset_modality(settings.scheme) if said is None and settings.manifest is not None else said


class TrackingSettings(BaseModel):
    """Curves and log lines of this end's own; a job cannot ask for them.

    Attributes:
        tensorboard: Whether curves go to `tensorboard/` in the run's folder; needs the extra `tensorboard`.
        mlflow: Where MLflow keeps its runs, a tracking URI such as `sqlite:////srv/fedretina/mlflow.db`; needs the
            extra `mlflow`. None for no MLflow.
        wandb: Whether curves go to `wandb/` in the run's folder as an offline run of Weights & Biases; needs the extra
            `wandb`. Nothing is sent: `wandb sync` does that, if somebody calls it.
        log: Whether `log.jsonl` in the run's folder gets a line for every step: run, site, phase, round, attempt, what
            happened. No line holds a path, a file's name or a patient.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    tensorboard: bool = False
    mlflow: str | None = None
    wandb: bool = False
    log: bool = False


class SiteSettings(BaseModel):
    """A site's private settings; none of them leaves the site.

    Attributes:
        data: Where images and manifest are; a site with none is a phantom hospital.
        state_root: Folder for the state of runs, outside FLARE's folders. It is one hospital's: the noise budget counts
            every ledger in it, also those under a name that the site had before.
        weights_file: The site's copy of the weights that a job names by SHA-256.
        he_keys: The sites' file of `fedretina kit he-keys`, for a job that encrypts; secret.
        trainer: Where the site's work is done: "inline", in the process of FLARE's job, or "child", in a process of its
            own for each order, whose death (out of memory, say) costs one answer instead of the whole job. The bits
            are the same; a child costs the time to start Python and torch, and to open the data again.
        gpu: Which graphics card the site's work is done on, and how much of its memory it may take.
        policy: What the site lets go, how exactly, and with how much noise; a job can only ask for less. A phantom
            hospital that sets none lets every kind go, a head and a referral curve too: its images are synthetic.
        tracking: Curves and log lines of the site's own numbers, at the site.
        page: Where the site's page is written, a file that ends in .html, such as one on a share of the hospital's IT;
            None for `status/NAME.html` in the folder of the site's runs. It shows no image, file, path or patient.
        approval: "required" lets a run begin only when the hospital has said yes to its plan (`fedretina site
            approve`), and go on only as long as that holds; "off" lets every job that the consortium may send begin.
            A hardened kit can require it, whatever is set here. It holds from a job's start on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    data: SiteDataSettings = SiteDataSettings()
    state_root: Path | None = None
    weights_file: Path | None = None
    he_keys: Path | None = None
    trainer: Literal["inline", "child"] = "inline"
    gpu: GpuSettings = GpuSettings()
    policy: PolicySettings = PolicySettings()
    tracking: TrackingSettings = TrackingSettings()
    page: Path | None = None
    approval: Literal["off", "required"] = "off"

    @field_validator("page")
    @classmethod
    def _is_a_page(cls, page: Path | None) -> Path | None:
        return _require_page(page)

    @property
    def own_policy(self) -> PolicySettings:
        """The policy that holds at the site.

        A site that points to no data and has set no policy is a phantom hospital: there is nothing to protect, and jobs
        whose heads travel run as they lie in the simulator and in the rehearsal. With data, a head stays unless the
        site names its kind.
        """
        if "policy" in self.model_fields_set or self.data.manifest is not None:
            return self.policy
        return PolicySettings(kinds=frozenset(Kind), referral_curve=True)


class ServerSettings(BaseModel):
    """The server's own settings, read from the scope property `fedretina_server` of its startup kit.

    Attributes:
        state_root: Folder for the state of runs, outside FLARE's folders.
        weights_file: The server's copy of the weights that a job names by SHA-256.
        he_keys: The server's file of `fedretina kit he-keys`, which mixes and cannot read.
        tracking: Curves and log lines of what sites let go, at the server.
        page: Where the consortium's page is written, a file that ends in .html; None for `status/server.html` in the
            folder of the server's runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    state_root: Path | None = None
    weights_file: Path | None = None
    he_keys: Path | None = None
    tracking: TrackingSettings = TrackingSettings()
    page: Path | None = None

    @field_validator("page")
    @classmethod
    def _is_a_page(cls, page: Path | None) -> Path | None:
        return _require_page(page)


def _require_page(page: Path | None) -> Path | None:
    if page is not None and page.suffix != ".html":
        raise ValueError(f"page is {str(page)!r}: name a file that ends in .html, and a browser opens it.")
    return page


def scope_properties(privacy: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties of the default scope in what a `privacy.json` says; none where it names none."""
    scopes = {scope.get("name"): scope for scope in privacy.get("scopes") or []}
    return scopes.get(privacy.get("default_scope"), {}).get("properties") or {}


def read_site_settings(properties: Mapping[str, Any], site: str, folder: Path) -> SiteSettings:
    """Read a site's settings: the scope property, then the environment, then none.

    Args:
        properties: Properties of the scope.
        site: Name of the site.
        folder: What a relative path in the scope property starts at: the kit's `local` folder.

    Raises:
        DataError: The settings point to a file that is missing or cannot be used.
    """
    settings = properties.get(PROPERTY)
    if settings is None and os.environ.get(SITE_FILE):
        settings, folder = {"site_file": os.environ[SITE_FILE]}, Path.cwd()
    if settings is None:
        return SiteSettings()
    if not isinstance(settings, Mapping) or not settings:
        raise DataError(
            f"the scope property {PROPERTY!r} of {site} must hold settings, got {settings!r}: name a site_file."
        )
    if "site_file" in settings:
        if not settings["site_file"]:
            raise DataError(f"the site file of {site} is not set: name a file, or remove the property.")
        if beside := sorted(str(name) for name in settings.keys() - {"site_file", APPROVAL}):
            raise DataError(
                f"{beside[0]} stands beside the site file of {site}, where only {APPROVAL} is read: write it into the "
                "site file, or correct its name."
            )
        path = _path(settings["site_file"], folder, site, f"the site file of {site}")
        asks = settings.get(APPROVAL)
        if asks not in (None, REQUIRED):
            raise DataError(
                f"{APPROVAL} beside the site file of {site} is {asks!r}: write {REQUIRED!r}, or take it out."
            )
        found = read_site_file(path, site)
        return found.model_copy(update={APPROVAL: REQUIRED}) if asks else found
    return _site_settings(dict(settings), folder, site, f"the settings of {site}")


def shares_named_root(settings: SiteSettings, properties: Mapping[str, Any]) -> bool:
    """Whether sites of other hospitals may lie under the state root that a site's settings name, if they name one.

    So it is where the environment names the site file, as in a rehearsal on one machine. A root that a site's own kit
    names is one hospital's, whatever it was called before.

    Args:
        settings: The site's.
        properties: Properties of the scope.
    """
    return settings.state_root is not None and PROPERTY not in properties


def read_server_settings(properties: Mapping[str, Any]) -> ServerSettings:
    """Read the settings of a server; a site's settings and its environment variable mean nothing here.

    Raises:
        SettingsError: The property cannot be used.
    """
    settings = properties.get(SERVER_PROPERTY) or {}
    try:
        return ServerSettings.model_validate(settings)
    except ValidationError as error:
        faults = settings_faults(error, SERVER_PROPERTY, ServerSettings)
        raise SettingsError(
            f"the scope property {SERVER_PROPERTY!r} may hold state_root, weights_file, he_keys and page, all "
            f"paths, and tracking: {faults}"
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
        settings = read_yaml(path, "the site file")
    except YamlFileError as error:
        raise DataError(str(error)) from error
    return _site_settings(settings, path.parent, site, f"the site file {path}")


def _site_settings(settings: dict[str, Any], base: Path, site: str | None, what: str) -> SiteSettings:
    data = {} if settings.get("data") is None else settings["data"]
    if not isinstance(data, Mapping):
        raise DataError(f"{what} holds no settings of its data: write `data:` and below it manifest and scheme.")
    data = dict(data)
    for holder, names, place in (
        (data, ("manifest", "images", "cache"), "data."),
        (settings, ("state_root", "weights_file", "he_keys", "page"), ""),
    ):
        for name in names:
            if holder.get(name) is not None:
                holder[name] = _path(holder[name], base, site, f"{place}{name} of {what}")
    try:
        return SiteSettings.model_validate({**settings, "data": data})
    except ValidationError as error:
        raise DataError(f"{what} cannot be used: {settings_faults(error, 'settings', SiteSettings)}") from error


def _path(value: object, base: Path, site: str | None, what: str) -> Path:
    """A path as a site wrote it, from `base` on, with its name filled in; anything else would name a folder, too."""
    text = str(value) if isinstance(value, str | Path) else ""  # a Path comes from Python code, never from a file
    if not text:
        raise DataError(f"{what} is {value!r}: write a path, or take it out.")
    if text.startswith("~"):
        raise DataError(f"{what} is {text!r}, and ~ stands for no folder there: write the path out from / on.")
    return base / text.replace(SITE_NAME, SITE_NAME if site is None else site)


def read_data_settings(path: Path, site: str | None = None) -> SiteDataSettings:
    """Read the `data` part of a site file, without FLARE; relative paths are relative to the file's folder.

    The whole file is checked, as a run would check it.

    Args:
        path: The site file.
        site: What the word `{SITE_NAME}` in its paths stands for.

    Raises:
        DataError: The file is missing, no YAML, names settings that there are not, or its paths need a site's name.
    """
    data = read_site_file(path, site).data
    for place in (data.manifest, data.images, data.cache):
        if site is None and place is not None and SITE_NAME in str(place):
            raise DataError(f"{path} serves many sites ({place.name!r}): say which one with --site.")
    return data
