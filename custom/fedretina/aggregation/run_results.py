"""What the server says of a run as a whole: its head, and `results.json` at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedretina.aggregation.choice import candidates
from fedretina.aggregation.owed import owed_sites
from fedretina.exchange.parts import Partition
from fedretina.experiment import Experiment
from fedretina.plan import Plan
from fedretina.report.render import render_server, write_page
from fedretina.report.server_report import server_report
from fedretina.storage import write_json
from fedretina.version import versions


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
    absent = dict.fromkeys(owed_sites(records, plan[chosen].name, sites), "it was not connected.")
    return {
        **head,
        "digest": digest,
        "chosen": plan[chosen].name,
        "model_digest": trained["digest"],
        "validation": {
            plan[c.step].name: {"mean_auc": c.mean, "auc": dict(c.aucs)} for c in candidates(records, plan.training)
        },
        "sites": sites,
        "without_result": dict(sorted({**absent, **final["refused"]}.items())),
        "steps": list(records),
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
