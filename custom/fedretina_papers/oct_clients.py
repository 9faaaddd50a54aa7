"""Scans at several numbers of clients: each call trains one federation, and all of them stand on one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedretina.data.site_data import SiteData
from fedretina.data.splits import labelled_subset
from fedretina.storage import read_json, write_json
from fedretina_papers.label_efficiency import encoder_record, run_labels
from fedretina_papers.label_plan import LabelPlan, row_name
from fedretina_papers.one_run import sites_of
from fedretina_papers.runner import Told
from fedretina_papers.statistics.classification import classification
from fedretina_papers.stored import read_answers

STUDY = "clients.json"
POOLED = "pooled.json"
FOLDER = "clients-"
MAJORITY = "majority"


def run_clients(
    plan: LabelPlan,
    out: Path,
    jobs: int,
    tell: Callable[[Told], None],
    read: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, str]:
    """Train what is missing of a federation, and store the figures of all its test images together.

    Args:
        plan: The plan; its sites are the clients.
        out: Folder of the study, with a folder for each number of clients.
        jobs: Runs at a time, each in a process of its own.
        tell: Called after each run.
        read: Called while the sites' images are read: as `sites_of`.

    Returns:
        Why runs are missing, by "row, seed"; empty when all are stored.

    Raises:
        SettingsError: The federation's folder belongs to another plan.
        StateError: It is in use, or cannot be written.
        DataError: A site's data cannot be used.
    """
    folder = out / f"{FOLDER}{len(plan.sites)}"
    missing = run_labels(plan, folder, jobs, tell, read)
    made = plan.fine_tuning({})
    sites = sites_of(made, folder, plan.seeds[0])
    write_json(folder / STUDY, _study(plan, folder, sites))
    write_json(folder / POOLED, pooled_figures(plan, folder, sites))
    return missing


def pooled_figures(plan: LabelPlan, folder: Path, sites: dict[str, SiteData]) -> dict[str, Any]:
    """Figures of all test images of a federation together, by row and seed, with the commonest answer's.

    Sites of one label space alone: a row's own head answers in the same classes at each.

    Args:
        plan: The plan.
        folder: Of the federation.
        sites: Its sites.
    """
    found: dict[str, dict[str, Any]] = {}
    for method, start in plan.fine_tuned:
        for share in plan.shares:
            row = row_name(start.name, share.tag, method.name)
            for seed in plan.seeds:
                file = folder / "results" / row / f"seed-{seed}.json"
                if not file.exists():
                    continue
                record = read_json(file)
                answers = [read_answers(folder, row, seed, site) for site in sorted(record["sites"])]
                probabilities = np.concatenate([one.probabilities for one in answers])
                figures = _figures(probabilities, np.concatenate([one.labels for one in answers]))
                passes = record["rounds"] * record["settings"]["phases"][-1]["training"]["epochs"]
                moved = record["bytes_up"] + record["bytes_down"]
                found.setdefault(row, {})[str(seed)] = {"test": figures, "bytes": moved, "passes": passes}
    for share in plan.shares:
        for seed in plan.seeds:
            figures = _figures(*_commonest(sites, share.share, seed))
            found.setdefault(row_name(MAJORITY, share.tag), {})[str(seed)] = {"test": figures, "bytes": 0, "passes": 0}
    return found


def _commonest(sites: dict[str, SiteData], share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Every site answers with the commonest of the labels that it may use."""
    answers, truth = [], []
    for data in sites.values():
        train, test = data.split("train"), data.split("test")
        known = train.labels
        if share < 1:
            known = known[torch.tensor(labelled_subset(train.patients, known.tolist(), share, seed))]
        counts = torch.bincount(known, minlength=data.scheme.num_classes)
        answers.append(np.tile(np.eye(len(counts))[int(counts.argmax())], (len(test.labels), 1)))
        truth.append(test.labels.numpy())
    return np.concatenate(answers), np.concatenate(truth)


def _figures(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    found = classification(probabilities, labels)
    return {"auc": found.auc, "balanced_accuracy": found.recall, "accuracy": found.accuracy}


def _study(plan: LabelPlan, folder: Path, sites: dict[str, SiteData]) -> dict[str, Any]:
    """What the page says of a federation: counts, and the rows that were planned."""
    rows = [
        {
            "method": method.title or method.name,
            "start": start.title,
            "shared": method.shared,
            "pretrained": start.pretrain is not None,
            "names": {share.tag: row_name(start.name, share.tag, method.name) for share in plan.shares},
        }
        for method, start in plan.fine_tuned
    ]
    files = [encoder_record(folder, start.name, seed) for start in plan.pretrained for seed in plan.all_seeds]
    encoders = [read_json(file) for file in files if file.exists()]
    return {
        "clients": len(sites),
        "seeds": list(plan.seeds),
        "shares": {share.tag: share.share for share in plan.shares},
        "rows": rows,
        "sites": {
            name: {
                "train": data.counts["train"],
                "test": data.counts["test"],
                "train_by_grade": torch.bincount(
                    data.split("train").labels, minlength=data.scheme.num_classes
                ).tolist(),
                "grades": list(data.scheme.grades),
                "synthetic": data.synthetic,
            }
            for name, data in sites.items()
        },
        "pretraining": [
            {name: one[name] for name in ("sha256", "rounds", "bytes", "contrast_loss", "seconds")} for one in encoders
        ],
        "settings": plan.experiment,
    }
