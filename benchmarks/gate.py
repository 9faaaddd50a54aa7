"""What the gate stops: `python -m benchmarks.gate fundus --site NAME=FILE ... --strangers KIND=FOLDER ...`.

Each row is run over real sites in the plain loop, and each site's model is then given what `fedretina predict` would be
given: its own test images, other sites' eyes, its own eyes spoiled in six ways, scans, other pictures. What is counted
is what becomes of them: stopped by the gate, referred for another reason, or let pass. Nothing of it had a part in
fitting the gate, whose limit is of validation images. `--render` writes docs/gate.md from what is stored: counts, and
nothing of any image. The images are not part of the project.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import small_sites
from benchmarks.common import RESULTS, ROOT, machine
from fedretina.data.manifest import PRETRAIN, UNLABELLED
from fedretina.data.site_data import SiteData, Split, load_site_data, pools
from fedretina.gate.spoils import SPOILS
from fedretina.loop import run_loop
from fedretina.prediction.predictor import ImageRow, Predictor
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import read_data_settings
from fedretina.storage import write_json
from fedretina_papers.packed import pack, unpack

STORED = RESULTS / "gate.jsonl.gz"
SETS: Mapping[str, dict[str, Any]] = {
    **small_sites.SETS,
    "dermoscopy": {"images": {"modality": "dermoscopy"}, "grades": 8},
}
_SHORT = {"pretrain": 2, "train": 3}
"""Rounds by what a phase does; heads from sums take the one that they are."""
_TRAIN, _OWN, _AWAY, _SPOILED = 400, 300, 200, 60
MORE: Mapping[str, Callable[[Any], Any]] = {
    **SPOILS,
    "mirrored": lambda image: image[:, :, ::-1].copy(),
    "red and blue exchanged": lambda image: image[::-1].copy(),
}
_BATCH = 60


def main() -> int:
    """Measure what is not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS), nargs="?")
    parser.add_argument("--site", action="append", default=[], metavar="NAME=FILE", help="a site and its site file")
    parser.add_argument("--strangers", action="append", default=[], metavar="KIND=FOLDER", help="a folder of pictures")
    parser.add_argument("--rows", help="instead of every row of the set")
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch" / "gate")
    parser.add_argument("--render", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    if not chosen.render:
        sites, strangers = (dict(pair.split("=", 1) for pair in given) for given in (chosen.site, chosen.strangers))
        rows = chosen.rows.split(",") if chosen.rows else rows_of(chosen.set)
        _run_all(chosen.set, sites, strangers, rows, chosen.scratch)
    from benchmarks.gate_page import write_page

    write_page(STORED)
    return 0


def rows_of(kind: str) -> list[str]:
    """Rows of the product whose pictures are of a kind."""
    return [row for row in ROWS if Experiment.resolve({"row": row}).images.modality == kind]


def settings_of(row: str) -> dict[str, Any]:
    """A row of the product as it is run here: as it stands where nothing trains, else at 96 pixels and in few rounds.

    Photographs are trained on by the recipe for small sites, and heads of theirs keep each site's own grades.
    """
    raw: dict[str, Any] = {"row": row, "verdict": "off"}
    experiment = Experiment.resolve({"row": row})
    tasks = [phase.task for phase in experiment.phases]
    if not set(tasks) & set(_SHORT):
        return raw
    fundus = experiment.images.modality == "fundus"
    phases = []
    for phase in experiment.phases:
        trained = {} if fundus else {"training": {"epochs": 1}}
        short = {"rounds": _SHORT[phase.task], **trained} if phase.task in _SHORT else {}
        phases.append({"name": phase.name, **short})
    raw |= {"images": {"image_size": 96}, "phases": phases, "training": {"epochs": 1, "threads": 1}}
    stays = experiment.exchange.personal in ("head", "everything") and not experiment.sums
    raw |= {"recipe": "small_sites"} if fundus else {}
    # Dropout that stands after an early stage needs the stages before it to be run anew each time.
    raw |= {"network": {"frozen": "nothing"}} if fundus and experiment.network.dropout is not None else {}
    return raw | ({"classes": None} if stays else {})


def way(experiment: Experiment) -> str:
    """How a run's encoder comes to be what it is, which is all of a row that its gate depends on.

    A gate is fitted on pixels and on what the encoder gives of them. Head, loss, weights of the sites and corrections
    act on it through the encoder's weights alone.
    """
    if any(phase.task == "pretrain" for phase in experiment.phases):
        return "pre-trained without labels, then trained"
    if not any(phase.task == "train" for phase in experiment.phases):
        return "frozen"
    if experiment.network.exits is not None:
        return "trained, early exits on its stages"
    if experiment.exchange.personal == "everything" or experiment.exchange.batchnorm in ("local_all", "local_stats"):
        return "trained, BatchNorm of the site's own"
    return "trained, BatchNorm of all"


def _run_all(
    kind: str, files: Mapping[str, str], strangers: Mapping[str, str], rows: Sequence[str], scratch: Path
) -> None:
    done = scratch / "stored"
    done.mkdir(parents=True, exist_ok=True)
    if STORED.exists() and not any(done.iterdir()):
        unpack(STORED, done)
    for row in rows:
        wanted = {site: done / f"{kind}-{row}-{site}.json" for site in files}
        if all(file.exists() for file in wanted.values()):
            continue
        experiment = Experiment.resolve({**merged(merged(small_sites.BASE, SETS[kind]), settings_of(row)), "seed": 1})
        settings = {site: read_data_settings(Path(file), site) for site, file in files.items()}
        data = {
            site: _few(load_site_data(site, settings[site], experiment.images, 1, scratch / "cache" / site))
            for site in files
        }
        run_loop(experiment, data, scratch / "runs", f"{kind}-{row}")  # goes on where it stopped
        roots = {site: one.images for site, one in settings.items()}
        # The model of a site whose images were pooled is its pool's.
        joined = pools(data, by_grades=True) if experiment.pooled else []
        pool = {site: one.data.name for one in joined for site in one.members}
        for site, file in wanted.items():
            if not file.exists():
                model = Predictor.load(scratch / "runs" / f"{kind}-{row}" / pool.get(site, site), "cpu")
                found = _of_site(model, site, data, roots, strangers)
                write_json(file, {"set": kind, "row": row, "site": site, **found, "machine": machine()})
                print(file.name, flush=True)
        pack(done, STORED)


def _few(data: SiteData) -> SiteData:
    """The site with its first training images of each patient until there are enough."""
    split = data.split("train")
    rows = np.linspace(0, len(split.labels) - 1, min(_TRAIN, len(split.labels))).astype(int)
    names = [tuple(one[at] for at in rows) for one in (split.patients, split.files, split.pixel_digests())]
    train = Split(split.images[rows], split.labels[rows], *names)
    blind = train._replace(labels=torch.full_like(train.labels, UNLABELLED))
    taken = {"train": train, "val": data.split("val"), "test": data.split("test"), PRETRAIN: blind}
    counts = {name: len(one.labels) for name, one in taken.items()}
    return replace(data, _read=taken.__getitem__, counts=counts, min_count=1)


def _of_site(
    model: Predictor,
    site: str,
    data: Mapping[str, SiteData],
    roots: Mapping[str, Path | None],
    strangers: Mapping[str, str],
) -> dict[str, Any]:
    groups: dict[str, dict[str, Any]] = {}
    for name, one in data.items():
        test, own = one.split("test"), name == site
        for group, rows in _parts(one, test, own).items():
            ill = np.isin(test.labels.numpy()[rows], one.scheme.referable_classes)
            root = roots[name]
            assert root is not None
            said = model.predict(root, [test.files[at] for at in rows])
            groups[group if own else f"images of {name}"] = _counted(said, ill)
        if not own:
            groups[f"ill of {name}"] = _of_ill(model, one, roots[name])
    test = data[site].split("test")
    rows = _spread(_gradable(data[site], test), _SPOILED)
    ill = np.isin(test.labels.numpy()[rows], data[site].scheme.referable_classes)
    for name, spoil in MORE.items():
        images = torch.from_numpy(np.stack([spoil(test.images[int(at)].numpy()) for at in rows]))
        groups[name] = _counted(model.answer([str(at) for at in rows], images), ill)
    for name, folder in strangers.items():
        root = Path(folder)
        files = sorted(path.name for path in root.iterdir())
        groups[name] = _counted(model.predict(root, files), np.zeros(len(files), bool))
    card = model.card
    return {
        "groups": groups,
        "look": {
            "own": {name: card["look"]["own"][name] for name in ("images", "stopped")},
            "spoiled": card["look"]["spoiled"],
            "limit": card["look"]["gate"]["limit"],
        },
        "patients": card["look"]["gate"].get("patients"),
        "threshold": model.threshold,
        "doubt": card["doubt"],
    }


def _of_ill(model: Predictor, data: SiteData, root: Path | None) -> dict[str, Any]:
    """What becomes of all of another site's ill eyes that nobody trained on."""
    files = []
    for split in (data.split("val"), data.split("test")):
        rows = np.flatnonzero(np.isin(split.labels.numpy(), data.scheme.referable_classes))
        files += [split.files[at] for at in rows]
    assert root is not None
    return _counted(model.predict(root, files), np.ones(len(files), bool))


def _parts(data: SiteData, test: Split, own: bool) -> dict[str, np.ndarray]:
    """Test images that the site grades, and of its own those that it calls ungradable."""
    graded = _gradable(data, test)
    found = {"own": _spread(graded, _OWN if own else _AWAY)}
    if own and len(graded) < len(test.labels):
        found["called ungradable by the site"] = np.setdiff1d(np.arange(len(test.labels)), graded)
    return found


def _gradable(data: SiteData, test: Split) -> np.ndarray:
    grade = data.scheme.ungradable_class
    return np.flatnonzero(test.labels.numpy() != (-2 if grade is None else grade))


def _spread(rows: np.ndarray, most: int) -> np.ndarray:
    found: np.ndarray = rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)]
    return found


def _counted(rows: Iterable[ImageRow], ill: np.ndarray) -> dict[str, Any]:
    """What becomes of images: how many there are, are stopped, by which reason, and pass; of the ill ones likewise.

    "unusual" counts those that are referred for nothing but that.
    """
    stops = ("another kind of image", "ungradable", "unlike this site's photographs")
    said = list(rows)
    why: Counter[str] = Counter()
    alone = np.array([row.referral.reasons == ("unusual for this site",) for row in said])
    stopped, referred = np.zeros(len(said), bool), np.zeros(len(said), bool)
    for at, row in enumerate(said):
        found = [reason for reason in stops if reason in row.referral.reasons and row.fault]
        why.update(found[:1])
        stopped[at], referred[at] = bool(found) or row.grade is None, row.referral.refer
    return {
        "images": len(said),
        "stopped": int(stopped.sum()),
        "passed": int((~referred).sum()),
        "why": dict(sorted(why.items())),
        "unusual": int(alone.sum()),
        "ill": int(ill.sum()),
        "ill_unusual": int((ill & alone).sum()),
        "ill_passed": int((ill & ~referred).sum()),
    }


if __name__ == "__main__":
    raise SystemExit(main())
