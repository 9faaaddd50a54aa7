"""The durable state of the server in one run: a model per step, a record per step, and what counts as done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedretina.aggregation.results import sites_without_result
from fedretina.errors import StateError
from fedretina.evaluation.model_selection import candidates
from fedretina.exchange.min_count import told_outcomes
from fedretina.exchange.partition import Partition
from fedretina.exchange.payload import Tensors
from fedretina.report.render import render_server, write_page
from fedretina.report.server_report import server_report
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.storage import DROPPED, read_json, read_tensors, set_aside, write_json, write_tensors
from fedretina.version import versions

_log = logging.getLogger(__name__)
_ENDS = ("results", "report", "encoder")  # files of a run's end, which is no more
_OF = "@"  # between a step and the site whose own model it is; neither holds the sign


class RunStore:
    """Records and models of a run under one folder.

    A step is done once `run.json` names it and its files are there. Their content is durable before `run.json` is
    written, their names with its name: a power cut in that moment may keep the one and not the others, and the step is
    done again. For each step that the run can go back to, `run.json` names the models that it stood on then.

    Args:
        folder: The server's folder of the run.
        digest: What both ends agreed on; a store of other settings or another version is refused.
        head: What `run.json` says of the run besides (settings, versions); written when the run begins.
        name_of: Name of a step in files.

    Raises:
        StateError: The folder holds a run of other settings or another version, or cannot be read.
    """

    def __init__(self, folder: Path, digest: str, head: dict[str, Any], name_of: Callable[[int], str]) -> None:
        self.folder = folder
        self._name_of = name_of
        self._path = folder / "run.json"
        if self._path.exists():
            self._run = read_json(self._path)
            found = str(self._run.get("digest", ""))
            if found != digest:
                raise StateError(
                    f"{folder} holds a run of other settings or another version (digest {found[:12]} against "
                    f"{digest[:12]}): continue it with the job and version that began it, or choose another name."
                )
        else:
            self._run = {**head, "digest": digest, "done": 0, "kept": [], "back": {"0": []}, "restarts": []}
            write_json(self._path, self._run)
        if self.done and not self._whole(self.done - 1):
            last = self.done - 1
            _log.warning("%s is not whole, as after a power cut: it is done again", name_of(last))
            self._run = {**self._run, "done": last, "kept": self._back().get(last, [])}
        self.records = [self._read_record(step) for step in range(self.done)]

    @property
    def done(self) -> int:
        """Number of steps that are done."""
        return int(self._run["done"])

    @property
    def restarts(self) -> tuple[str, ...]:
        """Marks of the times that the run went back, in order."""
        return tuple(one["mark"] for one in self._run.get("restarts", []))

    @property
    def returns(self) -> tuple[int, ...]:
        """Steps that the run can go back to, in order: the first, and those whose models are here."""
        return tuple(sorted({0, *(number for number in self._back() if number <= self.done)}))

    def go_back(self, step: int, mark: str) -> list[str]:
        """Take a step and all after it as not done; what they left is moved into a folder beside, never erased.

        Killed at any point, it is done again by the next call with the same mark.

        Args:
            step: One of `returns`.
            mark: Names the folder; see `RestartSettings`.

        Returns:
            Names of the steps that were dropped.

        Raises:
            StateError: The disk is full or not writable; the run stands where it stood.
        """
        dropped = [self._name_of(number) for number in range(step, self.done)]
        left = [path for path in self.folder.iterdir() if path.is_file() and self._of(path) in dropped]
        ends = [path for path in self.folder.iterdir() if path.is_file() and path.stem in _ENDS]
        set_aside([self._path, *left, *ends], self.folder / f"{DROPPED}-{mark}")
        for path in ends:  # before the run is said to be shorter: its end must not be told of any more
            path.unlink()
        back = {str(number): kept for number, kept in self._back().items() if number <= step} | {"0": []}
        restarts = [*self._run.get("restarts", []), {"mark": mark, "step": self._name_of(step), "dropped": dropped}]
        run = {**self._run, "done": step, "kept": back[str(step)], "back": back, "restarts": restarts}
        write_json(self._path, run)
        self._run = run
        del self.records[step:]
        for path in left:
            path.unlink()
        return dropped

    def commit(
        self, step: int, record: dict[str, Any], tensors: Tensors | None, keep: frozenset[int], oldest: int = 0
    ) -> None:
        """Make a step durable, then forget the models that nobody will ask for.

        Args:
            step: The step, the next one that is not done.
            record: What happened in it.
            tensors: The model after it; None when the step trains nothing.
            keep: Earlier models that are still needed.
            oldest: The oldest step, besides the first, that the run is to be able to go back to.

        Raises:
            StateError: The disk is full or not writable; the run stands where it stood.
        """
        if tensors is not None:
            write_tensors(self._model(step), tensors, {"step": step}, named=False)
        for path in self.folder.glob(f"{self._name_of(step)}{_OF}*.safetensors"):
            # Of an attempt that was not committed, or left by a kill while the run went back.
            if path.stem.partition(_OF)[2] not in record.get("mixing", {}):
                path.unlink(missing_ok=True)
        write_json(self._record(step), record, named=False)
        kept = sorted(keep | ({step} if tensors is not None else set()))
        back = {number: models for number, models in self._back().items() if oldest <= number <= step}
        back[step + 1] = kept
        named = {"0": [], **{str(number): models for number, models in back.items()}}
        run = {**self._run, "done": step + 1, "kept": kept, "back": named}
        write_json(self._path, run)
        self._run = run
        self.records.append(record)
        # Of the steps' models alone: the encoder that a run without labels ends with lies here too.
        unwanted = {self._name_of(number) for number in range(step + 1)} - {
            self._name_of(number) for models in back.values() for number in models
        }
        for path in self.folder.glob("*.safetensors"):
            if self._of(path) in unwanted:
                path.unlink(missing_ok=True)

    def reopen(self) -> dict[str, Any]:
        """Take the last step as not done, until it is committed again; on disk it stays done.

        Returns:
            Its record.
        """
        self._run = {**self._run, "done": self.done - 1}
        return self.records.pop()

    def put_for(self, step: int, site: str, tensors: Tensors) -> None:
        """Store a site's own model of a step that is about to be committed."""
        write_tensors(self._model(step, site), tensors, {"step": step}, named=False)

    def model(self, step: int, site: str = "") -> dict[str, torch.Tensor]:
        """The model after a training step: all sites', or the site's own where it has one."""
        own = self._model(step, site)
        return read_tensors(own if own.exists() else self._model(step))[0]

    def _whole(self, step: int) -> bool:
        """Whether the files of a step are there; whose name is there, the content is."""
        if not self._record(step).exists():
            return False
        models = [self._model(step)] if step in self._run["kept"] else []
        own = self._read_record(step).get("mixing", {}) if models else {}
        return all(path.exists() for path in [*models, *(self._model(step, site) for site in own)])

    def _back(self) -> dict[int, list[int]]:
        """By step, the models that the run stood on before it; one that an older version began knows of now alone."""
        found = self._run.get("back", {str(self.done): self._run["kept"]})
        return {int(number): list(models) for number, models in found.items()}

    def _of(self, path: Path) -> str:
        """Name of the step that a file belongs to, if it belongs to one."""
        return path.stem.partition(_OF)[0]

    def _read_record(self, step: int) -> dict[str, Any]:
        return read_json(self._record(step))

    def _record(self, step: int) -> Path:
        return self.folder / f"{self._name_of(step)}.json"

    def _model(self, step: int, site: str = "") -> Path:
        return self.folder / f"{self._name_of(step)}{_OF if site else ''}{site}.safetensors"


_END = ("task", "refused", "bytes_up", "bytes_down")
"""What the results tell of the record of `finalise` itself."""


def run_head(run: str, experiment: Experiment, parts: Partition) -> dict[str, Any]:
    """Name, settings, keys that travel by kind, and versions."""
    travelling = parts.sendable
    return {
        "run": run,
        "settings": experiment.agreed(),
        "partition": {
            kind.value: sorted(key for key in travelling if parts.kinds[key] is kind)
            for kind in sorted(parts.shared_kinds())
        },
        "versions": versions(),
    }


def run_results(
    head: Mapping[str, Any], digest: str, plan: Plan, records: Sequence[Mapping[str, Any]], final: Mapping[str, Any]
) -> dict[str, Any]:
    """All that the server knows at the end; scalars that the sites let go, and nothing else of theirs.

    Args:
        head: See `run_head`.
        digest: What both ends agreed on.
        plan: The run's steps.
        records: Records of the steps before the last.
        final: Record of `finalise`, with the number of the `chosen` step.
    """
    chosen = int(final["chosen"])
    trained = records[chosen]
    sites = {
        site: {
            **figures,
            "theta": trained["scalars"].get(site, {}).get("theta"),
            "weight": trained.get("weights", {}).get(site),
        }
        for site, figures in final["scalars"].items()
    }
    # Who was not even there when the end was asked for must not go missing from the results in silence.
    absent = dict.fromkeys(sites_without_result(records, plan[chosen].name, sites), "it was not connected.")
    return {
        **head,
        "digest": digest,
        "chosen": plan[chosen].name,
        "model_digest": trained["digest"],
        "validation": _validation(plan, records),
        "sites": sites,
        "verdicts": told_outcomes(final.get("verdicts", {})),
        "without_result": dict(sorted({**absent, **final["refused"]}.items())),
        "steps": list(records),
        # Its scalars stand under `sites`; what it moved would be missing from every sum.
        "end": {"step": plan[len(records)].name} | {key: final[key] for key in _END},
    }


def _validation(plan: Plan, records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Validation AUC by round: over all grades, and what rounds are chosen by where support is asked for."""
    chosen_by = {c.step: c for c in candidates(records, plan.training, "supported")}
    return {
        plan[c.step].name: {
            "mean_auc": c.mean,
            "auc": dict(c.aucs),
            "mean_auc_supported": chosen_by[c.step].mean,
            "auc_supported": dict(chosen_by[c.step].aucs),
        }
        for c in candidates(records, plan.training)
        if c.step in chosen_by
    }


def write_results(folder: Path, results: Mapping[str, Any], page: bool) -> None:
    """Write `results.json`, the report that is made of it, and its page.

    Args:
        folder: The server's folder of the run.
        results: See `run_results`.
        page: Whether the page is written at once.

    Raises:
        StateError: The disk is full or not writable.
    """
    write_json(folder / "results.json", results)
    if not any("grades" in figures for figures in results["sites"].values()):
        return  # a run without labels gives an encoder; there is no answer to report on
    report = server_report(results)
    write_json(folder / "report.json", report)
    if page:
        write_page(folder / "report.html", render_server(report))
