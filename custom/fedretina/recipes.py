"""The rows as recipes of FLARE 2.9, which run in its simulator, in its POC federation and in a real one.

What a recipe runs is a job folder of this package, written as `fedretina job write` writes it; for ProdEnv in the form
that `fedretina submit` sends. Only its settings can be changed: sites that are hardened take no code and no file of a
job, so what FLARE's recipes let one add is refused here, before anything runs.

FLARE takes `--export` and `--export-dir` from the command line of whoever imports this.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from nvflare.job_config.api import FedJob
from nvflare.recipe import PocEnv, PotentialSecretWarning, ProdEnv, Run, SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from fedretina.errors import SettingsError
from fedretina.flare.job_context import STATE_ROOT
from fedretina.flare.simulation import SIMULATOR, require_one_word, simulator
from fedretina.flare.submitted_job import job_sites, named_copy, read_meta
from fedretina.job_export import export_job
from fedretina.jobs import SITES, job_files, read_job, settings_of_row, write_job
from fedretina.kit.job_folder import EXPERIMENT, META
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged, new_run_name
from fedretina.storage import require_sites
from fedretina.yaml_file import parse_yaml, read_text

__all__ = ["AnalyticRecipe", "FedEERecipe", "FedUAARecipe", "JobRecipe", "OCTRecipe", "RowRecipe"]

_CALLED = "the experiment file"
_LOGIN_S = 60.0
_FIXED = (
    "a job of fedretina holds its settings and nothing else, since hardened sites take no code and no file of a job: "
    "leave this out, and say what is to change by a setting (docs/settings.md)."
)


class _FolderJob(FedJob):
    """A job that is a folder's files, where FLARE's own is a list of components.

    Attributes:
        files: Texts by path within the folder; the recipe sets them for each place to run in.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.files: dict[str, str] = {}

    def export_job(self, job_root: str) -> None:
        """Write the folder, by the job's name, below another.

        Raises:
            SettingsError: It is there already, or cannot be written.
        """
        folder = Path(job_root) / self.name
        if folder.exists():
            raise SettingsError(f"{folder} is there already: export to another folder, or remove it first.")
        write_job(folder, self.files)

    def simulator_run(
        self,
        workspace: str,
        n_clients: int | None = None,
        clients: Sequence[str] | None = None,
        threads: int | None = None,
        gpu: str | None = None,
        log_config: str | None = None,
    ) -> int:
        """Run the folder in FLARE's simulator, in a process of its own, and return its exit code.

        Runs lie where all do that nobody says otherwise of, under `fedretina_runs` of the current folder; FLARE's
        default workspace is a temporary folder.

        Raises:
            SettingsError: The simulator cannot start a site in that workspace.
        """
        require_one_word(Path(workspace).absolute(), "workspace_root of SimEnv")
        state = os.environ.get(STATE_ROOT) or str(Path.cwd() / "fedretina_runs")
        with TemporaryDirectory() as folder:
            self.export_job(folder)
            command = [sys.executable, "-m", SIMULATOR, str(Path(folder) / self.name), "-w", workspace]
            for flag, value in (
                *(("-n", n_clients), ("-c", ",".join(clients or ()))),
                *(("-t", threads), ("-gpu", gpu), ("-l", log_config)),
            ):
                command += [flag, str(value)] if value else []
            with simulator(command, env={**os.environ, STATE_ROOT: state}) as process:
                return process.wait()

    def to(self, obj: Any, target: str, id: Any = None, **kwargs: Any) -> NoReturn:
        """Refuse a component.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(_FIXED)

    def add_file_to(self, src_path: str, target: str, dest_dir: Any = None, app_folder_type: Any = None) -> NoReturn:
        """Refuse a file.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(_FIXED)


class _FolderRecipe(Recipe):
    """What the recipes share: which files a job has in which of FLARE's environments."""

    def __init__(
        self,
        name: str,
        sites: Sequence[str] | None,
        run: str | None,
        mandatory: Sequence[str],
        phantoms: bool,
    ) -> None:
        self._folder_job = _FolderJob(name)
        super().__init__(self._folder_job)
        self._given, self._named, self._mandatory, self._phantoms = sites, run, mandatory, phantoms

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites; those of the phantom hospitals where none were named."""
        return tuple(self._given or SITES)

    def run(self, env: ExecEnv, *more: Any, **params: Any) -> Run:
        """As FLARE's: run the job in an environment."""
        with _digest_is_no_secret():
            return super().run(env, *more, **params)

    def export(self, job_dir: str, *more: Any, **params: Any) -> None:
        """As FLARE's: write the job, as `env` is given it, into a folder of the job's name below another."""
        with _digest_is_no_secret():
            super().export(job_dir, *more, **params)

    def process_env(self, env: ExecEnv) -> None:
        """Compose the job for a place to run in.

        Raises:
            SettingsError: The sites are not named, or the environment has others.
        """
        if isinstance(env, ProdEnv):
            if self._given is None:
                raise SettingsError("a federation's sites have names of their own: give them as sites=[...].")
            self._folder_job.files = self._for_federation()
            return
        there = _sites_of(env)
        strange = sorted(set(there or ()) - set(self._given or there or ()))
        if strange:
            raise SettingsError(
                f"the environment has a site {strange[0]}, and the job is for {', '.join(self.sites)}: "
                "give the environment clients=list(recipe.sites), and PocEnv also num_clients, their number."
            )
        sites = there if self._given is None and there else self.sites
        if isinstance(env, PocEnv):
            # It logs in seconds after it has started the server, and on a busy machine FLARE's ten are not enough.
            env.extra.setdefault("login_timeout", _LOGIN_S)
        # PocEnv submits seconds after it has started its sites, and FLARE gives a job to those that have come by then.
        self._folder_job.files = self._for_one_machine(sites, there if isinstance(env, PocEnv) else None)

    def set_per_site_config(self, config: dict[str, dict[str, Any]]) -> NoReturn:
        """Refuse: what concerns one site stands in its own site file, which no job changes.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(
            "a site's settings stand in its own site file, and no job changes them: FEDRETINA_SITE_FILE names one on "
            "this machine, `fedretina simulate` takes one for each site."
        )

    def _validate_before_use(self) -> None:
        """What FLARE exports where it is given no environment."""
        self._folder_job.files = self._for_one_machine(self.sites)

    def _for_one_machine(self, sites: Sequence[str], wait_for: Sequence[str] | None = None) -> dict[str, str]:
        """The job with a `custom` folder, which the simulator and POC ask for; without some sites it does not start."""
        files = self._files(sites)
        more = self._folder_job.job.meta_props or {}  # FLARE's set_recipe_meta
        if wait_for or more:
            meta = json.loads(files[META])
            if wait_for:
                meta["mandatory_clients"] = sorted({*meta.get("mandatory_clients", ()), *wait_for})
            files[META] = json.dumps({**meta, **more}, indent=2) + "\n"
        return files

    def _for_federation(self) -> dict[str, str]:
        """The job as `fedretina job export` and then `fedretina submit` write it."""
        with TemporaryDirectory() as folder:
            base, exported = Path(folder) / "base", Path(folder) / "exported"
            write_job(base, self._for_one_machine(self.sites))
            settings = Experiment.load(base / "app" / "config" / EXPERIMENT)
            run = self._named or settings.run or new_run_name(settings)
            export_job(base, exported, self.sites, None, self._mandatory, self._phantoms, run)
            return read_job(named_copy(exported, Path(folder)).folder)

    @abstractmethod
    def _files(self, sites: Sequence[str]) -> dict[str, str]:
        """The job's files for some sites, as `fedretina job write` writes them."""


class RowRecipe(_FolderRecipe):
    """A row of the table of methods, with the settings of its own job, or an experiment file, as a recipe of FLARE.

    `run`, `execute` and `export` are FLARE's. In SimEnv and PocEnv sites without data are phantom hospitals. ProdEnv
    sends what `fedretina job export` and `fedretina submit` send; these look besides whether the sites are connected,
    and never begin a run twice.

    Args:
        row: Name of the row (`fedretina methods` lists them), or the path of an experiment file.
        changes: Settings to lay over them, such as `{"training": {"epochs": 2}}`; a list, as of phases, is replaced as
            a whole.
        sites: Names of the sites; by default those of SimEnv or PocEnv. ProdEnv needs them.
        name: Name of the experiment and of its job; by default the row's, or the one in the experiment file.
        learner: Whether the sites run the trainer behind FLARE's ModelLearner; the results are the same to the bit.
        run: Name of the run, by default the experiment's; an unfinished run of that name goes on.
        mandatory: Sites without which a federation does not start the job.
        phantoms: Whether a federation's sites without data take part as phantom hospitals.

    Raises:
        SettingsError: There is no such row or file, a setting cannot be, or no federation can run the row.
    """

    def __init__(
        self,
        row: str | Path,
        changes: Mapping[str, Any] | None = None,
        *,
        sites: Sequence[str] | None = None,
        name: str = "",
        learner: bool = False,
        run: str | None = None,
        mandatory: Sequence[str] = (),
        phantoms: bool = False,
    ) -> None:
        file = row if isinstance(row, Path) else None
        recipe = (changes or {}).get("recipe")
        text = settings_of_row(str(row), recipe) if file is None else read_text(file, _CALLED)
        changes = {**(changes or {}), **({"run": run} if run else {}), **({"name": name} if name else {})}
        settings = merged(parse_yaml(text, _CALLED, file), changes)
        experiment = Experiment.resolve(settings).require_federated()
        self._settings: Mapping[str, Any] | str | None = settings
        if file is None and changes.keys() <= {"name"}:
            self._settings = None  # the row's own job, as it is written under any name
        elif not changes:
            self._settings = text  # with its comments
        self._row, self._learner = experiment.row, learner
        super().__init__(name or experiment.name, sites, run, mandatory, phantoms)
        self._files(self.sites)  # what cannot be is told here, and not when it is to run

    def _files(self, sites: Sequence[str]) -> dict[str, str]:
        return job_files(self._row, self.name, sites, self._learner, self._settings)


class FedUAARecipe(RowRecipe):
    """FedUAA: evidential heads with a threshold of each site's own, weighed by it. Takes what `RowRecipe` takes."""

    def __init__(self, changes: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__("feduaa", changes, **more)


class OCTRecipe(RowRecipe):
    """MoCo, then fine-tuning, both under SCAFFOLD, for OCT scans. Takes what `RowRecipe` takes."""

    def __init__(self, changes: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__("oct_moco_scaffold", changes, **more)


class FedEERecipe(RowRecipe):
    """FedEE: an ensemble of early exits that each site keeps to itself. Takes what `RowRecipe` takes."""

    def __init__(self, changes: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__("fedee", changes, **more)


class AnalyticRecipe(RowRecipe):
    """Heads solved from sums, one message up and one down, no GPU. Takes what `RowRecipe` takes."""

    def __init__(self, changes: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__("analytic", changes, **more)


class JobRecipe(_FolderRecipe):
    """A job folder, as it lies there, as a recipe of FLARE: what `job.py` beside each committed job is made of.

    Args:
        folder: A folder that `fedretina job write` wrote.
        sites: Names of the sites; by default those in the folder's `meta.json`.
        run: Name of the run in a federation, by default the one in its experiment file.
        mandatory: Sites without which a federation does not start the job.
        phantoms: Whether a federation's sites without data take part as phantom hospitals.

    Raises:
        SettingsError: The folder is no job of this package.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sites: Sequence[str] | None = None,
        run: str | None = None,
        mandatory: Sequence[str] = (),
        phantoms: bool = False,
    ) -> None:
        self._stored = read_job(folder)
        self._meta = read_meta(folder)
        name = str(self._meta.get("name") or folder.resolve().name)
        super().__init__(name, sites or job_sites(self._meta) or None, run, mandatory, phantoms)

    def _files(self, sites: Sequence[str]) -> dict[str, str]:
        if set(sites) == set(job_sites(self._meta)):
            return dict(self._stored)
        deploy_map = {app: ["server", *require_sites(sites)] for app in self._meta["deploy_map"]}
        return {**self._stored, META: json.dumps({**self._meta, "deploy_map": deploy_map}, indent=2) + "\n"}


@contextmanager
def _digest_is_no_secret() -> Iterator[None]:
    """FLARE takes the digest in a submitted job's `meta.json` for a secret; what else it takes for one, it says."""
    with warnings.catch_warnings():
        said = r"Potential secret value in .*'meta\.json' .*high-entropy hex string .*\(64 chars\)"
        warnings.filterwarnings("ignore", said, PotentialSecretWarning)
        yield


def _sites_of(env: ExecEnv) -> tuple[str, ...] | None:
    """Names of an environment's sites; None where it does not say."""
    if not isinstance(env, SimEnv | PocEnv):
        return None
    return tuple(env.clients or [f"site-{number}" for number in range(1, env.num_clients + 1)])
