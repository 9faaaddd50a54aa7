"""The report's pages: one HTML file each, with all its pictures inside and nothing to load from anywhere.

File names, names of sites and reasons come from elsewhere and are escaped; a policy in the page forbids scripts and
every request, should anything slip through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedretina.errors import StateError
from fedretina.evaluation.verdict import FEDERATED
from fedretina.report import REPORT_FORMAT, charts, summary, text, verdict_words
from fedretina.report.page_templates import templates
from fedretina.report.svg import BLACK, BLUE, VERMILION, Chart
from fedretina.settings.scheme import in_words
from fedretina.storage import write_bytes

if TYPE_CHECKING:
    from jinja2 import Environment

_SITE_TILES = ("accuracy", "auc", "kappa", "error_auroc")
_SERVER_FIGURES = ("auc_supported", "auc", "accuracy", "kappa", "error_auroc", "ece", "referable_auc")
_SUBGROUP_FIGURES = (
    "accuracy",
    "auc_supported",
    "referable_sensitivity",
    "referable_specificity",
    "referable_auc",
    "threatening_sensitivity",
    "threatening_specificity",
)
_REFERRAL_FIGURES = (
    ("load", "patients that a doctor would see"),
    ("gated_load", "with the gate as well: those with an image that it stops or calls unusual"),
    ("doubt_load", "patients that a doctor would see for doubt alone"),
    ("sensitivity", "patients with referable disease that a doctor would see"),
    ("missed", "patients with referable disease that would be missed"),
    ("specificity", "patients without it that no doctor would need to see"),
)


def render_site(report: Mapping[str, Any]) -> str:
    """The page of a site's report.

    Raises:
        StateError: The record is no site's report of this format.
    """
    _require(report, "site")
    rounds = report["rounds"]
    steps = [entry["step"] for entry in rounds]
    referral = report["referral"] or {}
    verdict = report.get("verdict")
    return _render(
        "site.html.j2",
        report=report,
        sentences=summary.site_summary(report),
        controls=verdict_words.verdict_table(verdict) if verdict else None,
        federated=report.get("model", FEDERATED) == FEDERATED,
        whose_rounds=verdict_words.rounds_sentence(verdict),
        tiles=_site_tiles(report),
        round_name=summary.round_words(report["chosen"], steps),
        referral=referral,
        missed=(referral.get("test") or {}).get("missed"),
        referral_figures=_REFERRAL_FIGURES,
        referral_words=summary.referral_words(referral),
        subgroup_figures=_SUBGROUP_FIGURES,
        confusion=_shaded(report["confusion"]),
        charts=_drawn(
            reliability=charts.reliability("reliability", report["reliability"]),
            reliability_tempered=charts.reliability("tempered", report["reliability_tempered"])
            if report["reliability_tempered"]
            else None,
            uncertainty=charts.uncertainty("uncertainty", report["uncertainty"], referral.get("threshold")),
            risk_coverage=charts.risk_coverage("risk", report["risk_coverage"]),
            validation=_over(rounds, "validation", _chooses(report), "validation AUC", report["chosen"], unit=True),
            theta=charts.rounds("theta", steps, [_theta_line(rounds)], "theta", report["chosen"]),
            weight=_over(rounds, "weight", "weight", "weight", report["chosen"]),
            loss=_over(rounds, "loss", "loss", "training loss", report["chosen"]),
        ),
        limits=[*text.SITE_LIMITS, *(report["card_limits"] or text.MODEL_LIMITS)],
        ledger=[_ledger_row(line) for line in report["provenance"]["ledger"]],
    )


def _site_tiles(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The figures on top, by name."""
    figures = report["figures"]
    found = {name: figures[name] for name in _SITE_TILES if name != "kappa" or report.get("ordered", True)}
    if figures.get("auc_supported", {}).get("value") is not None:
        found = {"auc_supported" if name == "auc" else name: figure for name, figure in found.items()}
        found["auc_supported"] = figures["auc_supported"]
    return {**found, "error_auroc": summary.own_mistakes(report)}


def render_server(report: Mapping[str, Any]) -> str:
    """The page of the server's report.

    Raises:
        StateError: The record is no server's report of this format.
    """
    _require(report, "server")
    sites, pooled = text.by_site(report["sites"]), report["pooled"]
    trained = [entry for entry in report["rounds"] if entry["task"] == "train"]
    steps = [entry["step"] for entry in trained]
    names = {site for entry in trained for site in entry["theta"]} | set(sites)

    blind = [entry for entry in report["rounds"] if entry["task"] == "pretrain"]

    def by_site(key: str, rounds: Sequence[Mapping[str, Any]] = trained) -> dict[str, list[float | None]]:
        found = {site: [entry.get(key, {}).get(site) for entry in rounds] for site in text.by_name(names)}
        return {site: column for site, column in found.items() if any(value is not None for value in column)}

    moved = {
        way: list(accumulate(entry[way] / 1e6 for entry in report["rounds"])) for way in ("bytes_up", "bytes_down")
    }
    measured = any(entry.get("mean_val_auc_supported") is not None for entry in trained)
    by = "_supported" if report.get("chosen_by") == "supported" and measured else ""
    lines = {
        "contrast": charts.site_lines(by_site("contrast_loss", blind)),
        "validation": charts.site_lines(by_site(f"val_auc{by}"), [entry.get(f"mean_val_auc{by}") for entry in trained]),
        "theta": charts.site_lines(by_site("theta")),
        "weight": charts.site_lines(by_site("weight")),
        "bytes": [
            charts.Line("up, from the sites", moved["bytes_up"], BLUE),
            charts.Line("down, to the sites", moved["bytes_down"], VERMILION, "5 2"),
        ],
    }
    labels = {
        "contrast": "contrastive loss",
        "validation": "validation AUC",
        "theta": "theta",
        "weight": "weight",
        "bytes": "MB",
    }
    over = {"bytes": [entry["step"] for entry in report["rounds"]], "contrast": [entry["step"] for entry in blind]}
    ordered = report.get("ordered", True)
    agreement = ("kappa",) if ordered else ()
    drawn = ("auc_supported" if "auc_supported" in report["means"] else "auc", "accuracy", *agreement, "error_auroc")
    overall = {
        f"site_{name}": charts.forest(
            f"site-{name}",
            text.FIGURES[name].title,
            [(site, entry["figures"].get(name, {})) for site, entry in sites.items()],
            report["means"].get(name, {}).get("mean"),
            name == "accuracy",
        )
        for name in drawn
    }
    return _render(
        "server.html.j2",
        report=report,
        sentences=summary.server_summary(report),
        one_model=sum(entry["task"] in ("train", "sums") for entry in report["rounds"]) == 1,
        round_name=summary.round_words(report["chosen"], steps),
        drawn_figures=drawn,
        shown_figures=[name for name in _SERVER_FIGURES if name in report["means"] and (ordered or name != "kappa")],
        confusions={site: _shaded(entry["confusion"]) for site, entry in sites.items() if entry["confusion"]},
        charts=_drawn(
            **overall,
            **{
                key: charts.rounds(
                    key,
                    over.get(key, steps),
                    lines[key],
                    labels[key],
                    None if key in over else report["chosen"],
                    unit=key == "validation",
                    over="step" if key == "bytes" else "round",
                )
                for key in lines
            },
            reliability=charts.reliability("reliability", pooled["reliability"]) if pooled else None,
            uncertainty=charts.uncertainty("uncertainty", pooled["uncertainty"], None) if pooled else None,
            risk_coverage=charts.risk_coverage("risk", pooled["risk_coverage"], points=True) if pooled else None,
        ),
        legends={key: charts.legend(found) for key, found in lines.items()},
        limits=text.SERVER_LIMITS,
    )


def _require(report: Mapping[str, Any], kind: str) -> None:
    if report.get("kind") != kind or report.get("format") != REPORT_FORMAT:
        raise StateError(
            f"this record is a {report.get('kind')} report of format {report.get('format')}, but a {kind} report of "
            f"format {REPORT_FORMAT} is needed: make it again with the version of fedretina that reads it."
        )


def render_reading(reading: Mapping[str, Any]) -> str:
    """The page of doctors' decisions against the answers of a work list, see `prediction.decisions.reading_record`.

    Raises:
        StateError: The record is none of a reading.
    """
    if reading.get("kind") != "reading":
        raise StateError("this record is none of a reading: give `fedretina report` the decisions that a page saved.")
    ordered = reading.get("ordered", True)
    sentences = [summary.reading_summary(one, reading["referable"], ordered) for one in reading["readers"]]
    kappa = summary.kappa_name(ordered)
    return _render("reading.html.j2", reading=reading, sentences=sentences, ordered=ordered, kappa=kappa)


def render_cases(cases: Mapping[str, Any]) -> str:
    """The page of a benchmark's single cases, see `fedretina_papers.cases`."""
    return _render("cases.html.j2", cases=cases)


def _render(template: str, **values: Any) -> str:
    page: str = _templates().get_template(template).render(**values)
    return "\n".join(line.rstrip() for line in page.splitlines() if line.strip()) + "\n"


@cache
def _templates() -> Environment:
    environment = templates(
        percent=text.percent,
        points=text.points,
        number=text.number,
        count=text.count,
        size=text.size,
        shown=text.shown,
        grade=in_words,
        flat=_flat,
        by_name=text.by_name,
        by_site=text.by_site,
    )
    environment.globals |= {"words": text, "between": text.between}
    return environment


def _drawn(**found: Chart | None) -> dict[str, Any]:
    from markupsafe import Markup

    return {
        name: None if chart is None else {"svg": Markup(chart.svg), "alt": chart.alt} for name, chart in found.items()
    }


def _over(
    rounds: Sequence[Mapping[str, Any]], name: str, key: str, label: str, chosen: str, unit: bool = False
) -> Chart | None:
    line = charts.Line(label, [entry[key] for entry in rounds], BLUE)
    return charts.rounds(name, [entry["step"] for entry in rounds], [line], label, chosen, unit=unit)


def _chooses(report: Mapping[str, Any]) -> str:
    """The validation AUC that this site gave to the choice of the round."""
    by = report["provenance"]["settings"].get("choice", {}).get("by", "auc")
    known = any(entry.get("val_auc_supported") is not None for entry in report["rounds"])
    return "val_auc_supported" if by == "supported" and known else "val_auc"


def _theta_line(rounds: Sequence[Mapping[str, Any]]) -> charts.Line:
    hollow = tuple(at for at, entry in enumerate(rounds) if entry["theta_reason"] != "youden")
    return charts.Line("theta", [entry["theta"] for entry in rounds], BLACK, hollow=hollow)


def _shaded(matrix: Sequence[Sequence[int | None]]) -> list[list[dict[str, Any]]]:
    """Cells with their share of the row, in tenths, which the style sheet turns into a shade."""
    table = []
    for true, row in enumerate(matrix):
        total = sum(cell for cell in row if cell is not None)
        table.append(
            [
                {
                    "count": cell,
                    "shade": round(10 * cell / total) if cell and total else 0,
                    "right": true == answer,
                }
                for answer, cell in enumerate(row)
            ]
        )
    return table


def _ledger_row(line: Mapping[str, Any]) -> dict[str, Any]:
    scalars = line.get("scalars", {})
    counts = [name for name in scalars if name.startswith(("bin_", "confusion_", "group_", "curve_"))]
    named = [f"{name} {value:.6g}" for name, value in sorted(scalars.items()) if name not in counts]
    said = [f"error: {line['words']}"] if line.get("words") else []
    return {
        "step": f"{line.get('phase')}, round {line.get('round')}, attempt {line.get('attempt')}",
        "tensors": ", ".join(f"{many} {kind}" for kind, many in sorted(line.get("tensors", {}).items())) or "none",
        "bytes": line.get("bytes"),
        "scalars": ", ".join([*named, *([f"{len(counts)} counts of answers"] if counts else []), *said]),
        "digest": str(line.get("digest", ""))[:12],
    }


def _flat(settings: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Nested settings as lines, such as ("network.encoder", "resnet18")."""
    rows: list[tuple[str, str]] = []
    for name, value in sorted(settings.items()):
        full = f"{above}{name}"
        if isinstance(value, Mapping):
            rows += _flat(value, f"{full}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for at, item in enumerate(value):
                rows += _flat(item, f"{full}[{at}].")
        else:
            rows.append((full, "none" if value is None else str(value)))
    return rows


def write_page(path: Path, page: str) -> None:
    """Write a page in one go. It can be rendered again from its record, so it need not survive a power cut.

    Raises:
        StateError: The disk is full or the folder not writable; what was there is whole.
    """
    try:
        write_bytes(path, page.encode("utf-8"), durable=False)
    except StateError as error:
        raise StateError(f"{path} was not written ({error.__cause__}): make room, or name another place.") from error
