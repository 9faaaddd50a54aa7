"""The page of the study that joins pre-training without labels to heads from sums: a table for each budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedretina.report.text import number, size
from fedretina.storage import read_json
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import OfRun, Records
from fedretina_papers.engine.table import Column, Line, mean_count, mean_signed, paired, render, seeds
from fedretina_papers.first_phase import MAJORITY, STUDY
from fedretina_papers.markdown import NOT_RUN, listed, several, table
from fedretina_papers.statistics.multiple_tests import holm
from fedretina_papers.statistics.paired_seeds import seed_test

_PROBE = "imagenet_own"
_TITLES = {
    "auc": "macro AUC",
    "referable_auc": "referable AUC",
    "kappa": "quadratic kappa",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
}
_HEADS = {"own": "own head", "federated": "head from all sites' sums", "both": "mean of both heads"}
_LEVEL = 0.05


@dataclass(frozen=True)
class Row:
    """A row of the tables.

    Attributes:
        name: Encoder and head.
        title: In print.
        shared: Whether anything of other sites is in it: if not, it is one of the rows that a site can have alone.
    """

    name: str
    title: str
    shared: bool


def write_first_phase_page(out: Path, page: Path) -> None:
    """Render the page; the same bytes for the same records.

    Args:
        out: The study's folder.
        page: Markdown file to write.

    Raises:
        StateError: There is no study, or a record is damaged.
    """
    study = read_json(out / STUDY)
    rows = rows_of(study)
    trained = {
        one["name"]: read_json(file) if (file := out / "encoders" / f"{one['name']}.json").exists() else None
        for one in study["encoders"]
        if one["who"] != "nobody"
    }
    budgets = {budget: records_of(out, study, budget, trained) for budget in study["budgets"]}
    write_page(
        "first_phase.md.j2",
        page,
        study=study,
        drawn=[name for name, site in study["sites"].items() if site["synthetic"]],
        sites=_sites(study),
        pretraining=_pretraining(study, trained),
        primary=_TITLES[study["figures"][0]],
        missing=missing(study, rows, budgets),
        means={budget: budget_table(study, rows, records) for budget, records in budgets.items()},
        tests={budget: test_table(study, rows, records) for budget, records in budgets.items()},
        helped={budget: helped(study, rows, records) for budget, records in budgets.items()},
        titles={row.name: row.title for row in rows},
    )


def rows_of(study: Mapping[str, Any]) -> list[Row]:
    """The rows that a study has, controls first."""
    found = [Row(MAJORITY, "majority: the commonest grade of the site's training images", False)]
    for encoder in study["encoders"]:
        alone, blind = encoder["who"] == "alone", encoder["who"] == "nobody"
        for head, title in _HEADS.items():
            if head == "own" or not alone:
                shared = head != "own" or not (alone or blind)
                found.append(Row(f"{encoder['name']}_{head}", f"{encoder['title']}; {title}", shared))
    return sorted(found, key=lambda row: row.shared)


def records_of(out: Path, study: Mapping[str, Any], budget: int, trained: Mapping[str, Any]) -> Records:
    """What was stored of a budget; heads on an encoder that has been trained further since are left out."""
    runs: dict[str, dict[int, Any]] = {}
    for encoder in study["encoders"]:
        name, blind = encoder["name"], encoder["who"] == "nobody"
        done = None if blind else trained[name]
        files = {site: "start" if done is None else done["files"][site]["sha256"] for site in study["sites"]}
        for draw in range(study["draws"]):
            file = out / "results" / name / f"budget-{budget}-draw-{draw}.json"
            record = read_json(file) if file.exists() else None
            if record is None or record["encoders"] != files or (not blind and done is None):
                continue
            for row, sites in record["rows"].items():
                moved = dict(record["bytes"])
                if row in ("federated", "both"):
                    moved["up"] += record["sums_bytes"] * len(sites)
                    moved["down"] += record["sums_bytes"] * len(sites)
                key = row if row == MAJORITY else f"{name}_{row}"
                told = {"sites": sites, "passes": record["passes"], "bytes": moved["up"] + moved["down"]}
                runs.setdefault(key, {})[draw] = told
    return Records(runs, sorted(study["sites"]))


def missing(study: Mapping[str, Any], rows: Sequence[Row], budgets: Mapping[int, Records]) -> list[str]:
    """What has not run, in words."""
    told = []
    for budget, records in budgets.items():
        lacking = [row.title for row in rows if len(records.values(row.name, study["figures"][0])) < study["draws"]]
        if lacking:
            told.append(f"{budget} images a site: {listed(lacking)}")
    return told


def budget_table(study: Mapping[str, Any], rows: Sequence[Row], records: Records) -> list[str]:
    """The means of the sites and what each row cost."""
    columns = [
        Column("draws", study["figures"][0], show=seeds),
        *(Column(_TITLES[one], f"test.{one}", better="highest") for one in study["figures"]),
        Column("passes without labels", OfRun("passes"), show=mean_count),
        Column(
            "bytes up and down, all sites",
            OfRun("bytes"),
            show=lambda values, _: size(round(values[0])) if values else "–",
        ),
    ]
    columns[0] = Column("draws", f"test.{study['figures'][0]}", show=seeds)
    return render(records, ["row", "alone or shared"], [_line(row) for row in rows], columns)


def test_table(study: Mapping[str, Any], rows: Sequence[Row], records: Records) -> list[str]:
    """Each row less the probe, paired over draws."""
    primary = f"test.{study['figures'][0]}"
    lines = [_line(row, _PROBE) for row in rows if row.name != _PROBE]
    columns = [Column("difference to the probe", primary, show=mean_signed, difference=True), *paired(primary)]
    return render(records, ["row", "alone or shared"], lines, columns)


def helped(study: Mapping[str, Any], rows: Sequence[Row], records: Records) -> list[str]:
    """Which shared rows beat every row that a site can have alone, by Holm over all these comparisons of the budget."""
    primary = f"test.{study['figures'][0]}"
    alone = [row.name for row in rows if not row.shared]
    pairs = [(row, other) for row in rows if row.shared for other in alone]
    tests = [seed_test(records.gaps(row.name, other, primary)) for row, other in pairs]
    adjusted = holm([test.p for test in tests])
    lines = []
    for row in (row for row in rows if row.shared):
        mine = [(test, p) for (one, _), test, p in zip(pairs, tests, adjusted, strict=True) if one is row]
        if any(test.n < 2 for test, _ in mine):
            lines.append([row.title, NOT_RUN, NOT_RUN, NOT_RUN])
            continue
        least = min((test.mean for test, _ in mine if test.mean is not None), default=None)
        worst = max((1.0 if p is None else p for _, p in mine), default=1.0)
        every = least is not None and least > 0 and worst < _LEVEL
        lines.append([row.title, number(least, 3), number(worst, 3), "**yes**" if every else "no"])
    return table(["shared row", "least difference to a row alone", "largest p (Holm)", "beats every row alone"], lines)


def _line(row: Row, against: str = "") -> Line:
    return Line((row.title, "shared" if row.shared else "alone"), row.name, against)


def _sites(study: Mapping[str, Any]) -> list[str]:
    found = []
    for name, site in sorted(study["sites"].items()):
        grades = ", ".join(
            f"{count} {grade}" for grade, count in zip(site["grades"], site["test_by_grade"], strict=True)
        )
        found.append(
            f"- **{name}**: {site['pretrain']} images without labels, {site['train']} of them to draw labels from; "
            f"{site['test']} test images of {several(site['test_patients'], 'patient')} ({grades})."
        )
    return found


def _pretraining(study: Mapping[str, Any], trained: Mapping[str, Any]) -> list[str]:
    found = []
    for encoder in study["encoders"]:
        if encoder["who"] == "nobody":
            continue
        done = trained[encoder["name"]]
        if done is None or not done["rounds"]:
            found.append(f"- {encoder['title']}: {NOT_RUN}.")
            continue
        digests = sorted({one["sha256"][:12] for one in done["files"].values()})
        shown = f"digest {digests[0]}" if len(digests) == 1 else f"digests {listed(digests)}"
        found.append(
            f"- {encoder['title']}: {done['rounds']} of {done['of']} rounds, {done['passes']} passes over each site's "
            f"images, {number(done['minutes'], 0)} minutes of one core; contrastive loss "
            f"{number(done['losses'][0], 3)} to {number(done['losses'][-1], 3)}; {shown}."
        )
    return found
