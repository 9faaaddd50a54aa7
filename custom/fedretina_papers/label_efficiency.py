"""What pre-training is worth where labels are few: one fine-tuning from several starts, over shares of the labels.

Two stages in one folder. First each start that is pre-trained here is pre-trained once a seed, without labels, and
leaves an encoder file. Then every start meets every share of the labels as a row of an ordinary benchmark, so that runs
are stored, resumed and paired over seeds like any others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedretina.errors import SettingsError
from fedretina.exchange.moved import run_moved
from fedretina.storage import folder_lock, read_json, write_json
from fedretina_papers.choices import RowChoice
from fedretina_papers.label_plan import LabelPlan, row_name
from fedretina_papers.one_run import sites_of, train
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.runner import Told, Work, begun, each_run, run_benchmark

LABELS = "labels.json"


def run_labels(
    plan: LabelPlan,
    out: Path,
    jobs: int,
    tell: Callable[[Told], None],
    read: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, str]:
    """Pre-train, then fine-tune from every start with every share, and store every result.

    Args:
        plan: The plan; a folder that holds another plan's results is refused.
        out: Folder of the benchmark.
        jobs: Runs at a time, each in a process of its own.
        tell: Called after each run.
        read: Called while the sites' images are read: as `sites_of`.

    Returns:
        Why runs are missing, by "row, seed"; empty when all are stored.

    Raises:
        SettingsError: The folder belongs to another plan.
        StateError: The folder is in use, or cannot be written.
        DataError: A site's data cannot be used.
    """
    missing: dict[str, str] = {}
    with folder_lock(out / "encoders", 0):
        kept = _required_alike(plan, out)
        # Read before anything is kept: a plan whose sites cannot be read must not stand in another's way. It builds the
        # image caches once, too, before processes share them.
        made = plan.fine_tuning({})
        sites_of(made, out, made.seeds[0], read=read)
        write_json(out / LABELS, kept)
        encoders = _encoders(plan, out, jobs, tell, missing) if plan.pretrained else {}
    made = plan.fine_tuning(encoders)
    needed = {start.name: set(plan.all_seeds) - set(encoders.get(start.name, {})) for start in plan.pretrained}
    lacking = {name for name, seeds in needed.items() if seeds}
    without = {
        row_name(start.name, share.tag, method.name)
        for method, start in plan.fine_tuned
        if start.name in lacking
        for share in plan.shares
    }
    rows = tuple(choice for choice in made.rows if choice.name not in without)
    if not rows:
        return missing
    reference = made.reference if made.reference not in without else rows[0].name
    return missing | run_benchmark(made.model_copy(update={"rows": rows, "reference": reference}), out, jobs, tell)


def _required_alike(plan: LabelPlan, out: Path) -> dict[str, Any]:
    """Seeds and shares may be added later; what a stored encoder or row depends on may not change."""
    fixed = plan.model_dump(mode="json", include={"row", "experiment", "splits"}) | {"sites": sorted(plan.sites)}
    stored = read_json(out / LABELS) if (out / LABELS).exists() and begun(out) else {"fixed": fixed, "starts": {}}
    starts = {start.name: start.model_dump(mode="json") for start in plan.starts}
    changed = [name for name, one in starts.items() if name in stored["starts"] and stored["starts"][name] != one]
    if stored["fixed"] != fixed or changed:
        raise SettingsError(
            f"the folder {out.name} holds runs that were begun with other settings, starts or sites: give this plan "
            "another folder."
        )
    shares = [{"share": one.share, "tag": one.tag} for one in plan.shares]
    order = {"order": list(starts), "against": list(plan.against), "shares": shares}
    return {"fixed": fixed, "starts": {**stored["starts"], **starts}, **order}


def _encoders(
    plan: LabelPlan, out: Path, jobs: int, tell: Callable[[Told], None], missing: dict[str, str]
) -> dict[str, dict[int, dict[str, Any]]]:
    """The encoder of each start and seed that has one."""
    first = plan.pre_training()
    works = [Work(number, seed, 0) for seed in plan.all_seeds for number in range(len(first.rows))]
    waiting = [work for work in works if not _encoder(out, first.rows[work.row], work.seed).exists()]
    for told in each_run(first, out, waiting, jobs, len(works), _pretrained, missing):
        tell(told)
    found: dict[str, dict[int, dict[str, Any]]] = {start.name: {} for start in plan.pretrained}
    for work in works:
        path = _encoder(out, first.rows[work.row], work.seed)
        if path.exists():
            stored = read_json(path)
            file = out / stored["file"]
            found[plan.pretrained[work.row].name][work.seed] = {"file": str(file), "sha256": stored["sha256"]}
    return found


def _pretrained(settings: dict[str, Any], out: Path, work: Work) -> str:
    """Pre-train one encoder; runs in a process of its own."""
    plan = BenchmarkPlan.model_validate(settings)
    choice = plan.rows[work.row]
    folder = train(plan, choice, work.seed, {}, out)
    results = read_json(folder / "server" / "results.json")
    # A site's copy: the server's rounds are erased once a run is done, and its encoder with them.
    final = folder / min(results["sites"]) / "final"
    stored = read_json(final / "encoder.json")
    steps = [step for step in results["steps"] if step["task"] == "pretrain"]
    losses = [sum(one["contrast_loss"] for one in step["scalars"].values()) / len(step["scalars"]) for step in steps]
    record = {
        "file": str((final / "encoder.safetensors").relative_to(out)),
        "sha256": stored["sha256"],
        "encoder": stored["encoder"],
        "settings": stored["settings"],
        "seconds": read_json(folder / "seconds.json")["seconds"],
        "rounds": len(steps),
        "bytes": sum(run_moved(results)),
        "contrast_loss": losses,
    }
    write_json(_encoder(out, choice, work.seed), record)
    return f"contrastive loss {losses[0]:.3f} to {losses[-1]:.3f}"


def _encoder(out: Path, choice: RowChoice, seed: int) -> Path:
    return out / "encoders" / choice.name / f"seed-{seed}.json"
