"""The page of the study that joins pre-training without labels to heads from sums: a table for each budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedretina.report.text import number
from fedretina.storage import read_json
from fedretina_papers.alone_or_shared import LEAD, TITLES, Row, helped, lacking, line, moved
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import OfRun, Records
from fedretina_papers.engine.table import Column, mean_count, mean_signed, paired, render, seeds
from fedretina_papers.first_phase import LEAST, MAJORITY, STUDY
from fedretina_papers.markdown import NOT_RUN, listed, several

_PROBE = "imagenet_own"
_HEADS = {"own": "own head", "federated": "head from all sites' sums", "both": "mean of both heads"}


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
        least=LEAST,
        primary=TITLES[study["figures"][0]],
        missing=missing(study, rows, budgets),
        means={budget: budget_table(study, rows, records) for budget, records in budgets.items()},
        tests={budget: test_table(study, rows, records) for budget, records in budgets.items()},
        helped={budget: helped(rows, records, _primary(study)) for budget, records in budgets.items()},
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
    """What was stored of a budget, of the draws that every row has which has run.

    Heads on an encoder that has been trained further since are left out. So are draws that one of the rows lacks, as a
    study that goes on has them: means over different draws could not be compared.
    """
    runs: dict[str, dict[int, Any]] = {}
    for encoder in study["encoders"]:
        name, blind = encoder["name"], encoder["who"] == "nobody"
        done = None if blind else trained[name]
        files = {site: "start" if done is None else done["files"][site]["sha256"] for site in study["sites"]}
        for draw in range(study["draws"]):
            file = out / "results" / name / f"budget-{budget}-draw-{draw}.json"
            record = read_json(file) if file.exists() else None
            if (
                record is None
                or record["encoders"] != files
                or record.get("least") != LEAST
                or (not blind and done is None)
            ):
                continue
            for row, sites in record["rows"].items():
                moved = dict(record["bytes"])
                if row in ("federated", "both"):
                    moved["up"] += record["sums_bytes"] * len(sites)
                    moved["down"] += record["sums_bytes"] * len(sites)
                key = row if row == MAJORITY else f"{name}_{row}"
                told = {"sites": sites, "passes": record["passes"], "bytes": moved["up"] + moved["down"]}
                runs.setdefault(key, {})[draw] = told
    common = set.intersection(*(set(draws) for draws in runs.values())) if runs else set()
    same = {row: {draw: draws[draw] for draw in sorted(common)} for row, draws in runs.items()}
    return Records(same, sorted(study["sites"]))


def missing(study: Mapping[str, Any], rows: Sequence[Row], budgets: Mapping[int, Records]) -> list[str]:
    """What has not run, in words."""
    told = ((budget, lacking(rows, records, _primary(study), study["draws"])) for budget, records in budgets.items())
    return [f"{budget} images a site: {words}" for budget, words in told if words]


def budget_table(study: Mapping[str, Any], rows: Sequence[Row], records: Records) -> list[str]:
    """The means of the sites and what each row cost."""
    columns = [
        Column("draws", _primary(study), show=seeds),
        *(Column(TITLES[one], f"test.{one}", better="highest") for one in study["figures"]),
        Column("passes without labels", OfRun("passes"), show=mean_count),
        Column(
            "bytes up and down, all sites",
            OfRun("bytes"),
            show=moved,
        ),
    ]
    return render(records, LEAD, [line(row) for row in rows], columns)


def test_table(study: Mapping[str, Any], rows: Sequence[Row], records: Records) -> list[str]:
    """Each row less the probe, paired over draws."""
    primary = _primary(study)
    lines = [line(row, _PROBE) for row in rows if row.name != _PROBE]
    columns = [Column("difference to the probe", primary, show=mean_signed, difference=True), *paired(primary)]
    return render(records, LEAD, lines, columns)


def _primary(study: Mapping[str, Any]) -> str:
    return f"test.{study['figures'][0]}"


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
