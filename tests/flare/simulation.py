"""Runs the real FLARE simulator, by each of its doors, on jobs derived from the committed ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from standing import CEILING_S, standing

REPOSITORY = Path(__file__).resolve().parents[2]
NVFLARE = Path(sys.executable).parent / "nvflare"

# The encoder `few_blocks` and its entry point: for this process, and for all that inherit its environment.
PARTS = Path(__file__).parent / "parts"
sys.path.insert(0, str(PARTS))
os.environ["PYTHONPATH"] = os.pathsep.join([str(PARTS), *filter(None, [os.environ.get("PYTHONPATH")])])

SMALL: dict[str, Any] = {
    "name": "small",
    "row": "feduaa",
    "seed": 3,
    "phases": [{"name": "train", "rounds": 2}],
    "images": {"image_size": 32},
    "network": {"encoder": "few_blocks", "head": {"width": 16}},
    "training": {"batch_size": 8, "learning_rate": 0.05, "threads": 1},
    "phantom_images": 24,
    "report": {"draws": 10, "page": False},
    "verdict": "off",  # through FLARE with it: test_simulator.py, test_covering_rows.py, tests/provisioned
}


def write_job(folder: Path, experiment: Mapping[str, Any], sites: Sequence[str], base: str = "feduaa") -> Path:
    """Copy a committed job, with other sizes and other sites."""
    shutil.copytree(REPOSITORY / "jobs" / base, folder)
    meta = json.loads((folder / "meta.json").read_text())
    meta["deploy_map"] = {"app": ["server", *sites]}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "app/config/experiment.yaml").write_text(yaml.safe_dump(dict(experiment)))
    return folder


def make_hostile(job: Path, **controller: Any) -> Path:
    """Give a job the executors and controllers of hostile.py, and the controllers other settings."""
    shutil.copy(Path(__file__).parent / "hostile.py", job / "app/custom/hostile.py")
    client = job / "app/config/config_fed_client.json"
    client.write_text(client.read_text().replace("fedretina.flare.executor.TrainerExecutor", "hostile.HostileExecutor"))
    path = job / "app/config/config_fed_server.json"
    words = json.loads(path.read_text())
    for workflow in words["workflows"]:
        workflow["args"].update(controller)
    path.write_text(json.dumps(words).replace("fedretina.flare.controller.RoundController", "hostile.SpentBudget"))
    return job


class Simulation:
    """One run of the simulator in a folder of its own, in a process group of its own.

    Of a job folder, by `nvflare simulator`; or by another command that runs the simulator.
    """

    def __init__(self, job: Path | Sequence[str], folder: Path, threads: int | None = None, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDRETINA_")}
        own = [str(NVFLARE), "simulator", str(job), "-w", str(folder / "workspace")]
        own += ["-t", str(threads)] if threads else []
        self.log = folder / "log.txt"
        with open(self.log, "ab") as handle:  # the process keeps its own
            self.process = subprocess.Popen(
                own if isinstance(job, Path) else list(job),
                cwd=folder,
                env={**kept, "HOME": str(folder), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **environment},
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, seconds: float = CEILING_S) -> int:
        """Wait for the end of the run; one that does not end says where it stands, and is ended.

        Raises:
            AssertionError: It did not end: the step, each process, the end of its log and all stacks.
        """
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no end in {seconds:.0f} s\n{self._standing()}") from error
        finally:
            self.kill()

    def until(self, condition: Callable[[], bool], seconds: float = CEILING_S) -> None:
        """Wait until something is so; a run that ends before, or takes longer, is a failure, and is ended.

        Raises:
            AssertionError: As `wait`.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self._standing()
                self.kill()
                raise AssertionError(f"it never came to what was waited for, or not within {seconds:.0f} s\n{said}")
            time.sleep(0.02)

    def _standing(self) -> str:
        """Where it stands; its processes are aborted."""
        held = [psutil.Process(pid) for pid in self.descendants()]
        with suppress(psutil.NoSuchProcess):
            held.append(psutil.Process(self.process.pid))
        return standing(held, [self.log], self.log.parents[1])

    def kill_site(self, site: str) -> None:
        """SIGKILL to the process of one site, which the rest of the run outlives."""
        victims = []
        for pid in self.descendants():
            # A forked site has the command line of what it is a copy of, and the site's name as its own.
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).name() == site:
                    victims.append(pid)
        assert victims, f"no process of {site} was found"
        os.kill(victims[0], signal.SIGKILL)

    def descendants(self) -> list[int]:
        """Processes that this run started, found by their working parent chain."""
        try:
            return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL to the run and all that it started: the simulator puts its clients into sessions of their own."""
        for pid in [*self.descendants(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def text(self) -> str:
        """What the run printed."""
        return self.log.read_text(errors="replace")


def run_oracle(
    root: Path,
    words: Mapping[str, Any],
    sites: Sequence[str],
    promise: Mapping[str, Any] | None = None,
    weights: Path | None = None,
) -> dict[str, Any]:
    """Results of the plain loop over the same phantom sites, less the run's name; its files lie under root / oracle."""
    from fedretina.data.site_data import load_site_data
    from fedretina.loop import run_loop
    from fedretina.settings.experiment import Experiment
    from fedretina.settings.site import SiteDataSettings

    experiment = Experiment.resolve(words).with_weights_file(weights)
    settings = SiteDataSettings.model_validate({"phantom_images": experiment.phantom_images, "promise": promise})
    data = {
        site: load_site_data(site, settings, experiment.images, experiment.seed, root / "cache" / site)
        for site in sites
    }
    run_loop(experiment, data, root, "oracle")
    return results(root, "oracle")


def fill_cache(site_file: Path, site: str, words: Mapping[str, Any], root: Path) -> None:
    """Read a site's images before its run does, into the cache below the root of its state.

    Who reads them imports MONAI, which takes five seconds of CPU: this process does so once for all its sites.
    """
    from fedretina.data.site_data import load_site_data
    from fedretina.settings.experiment import Experiment
    from fedretina.settings.site import read_site_settings

    experiment = Experiment.resolve(words)
    data = read_site_settings({"fedretina": {"site_file": site_file}}, site, site_file.parent).data
    load_site_data(site, data, experiment.images, experiment.seed, root / "cache" / site)


def done(root: Path, run: str) -> int:
    """Steps of a run that its server has stored; -1 before the first."""
    path = root / run / "server" / "run.json"
    return int(json.loads(path.read_text())["done"]) if path.exists() else -1


def results(root: Path, run: str) -> dict[str, Any]:
    """The stored results of a run, less its name."""
    found: dict[str, Any] = json.loads((root / run / "server" / "results.json").read_text())
    found.pop("run")
    return found
