"""FedEE's costs on the page: Table 4 and Figure 2, what an answer and a training step take, then energy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedretina.report.svg import BLUE, ORANGE, Chart, draw
from fedretina.report.text import NONE, number
from fedretina.storage import read_json
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, mean_number, render
from fedretina_papers.fedee_costs import COSTS
from fedretina_papers.fedee_energy import energy_values, printed_columns, seconds_of
from fedretina_papers.fedee_results import FedeeResults
from fedretina_papers.markdown import NOT_RUN
from fedretina_papers.pictures import Pictures
from fedretina_papers.published import METHODS, published_fedee

_TIMED = ("inference", "training")
CLAIMED = 1.05
"""How much of the backbone's time we allow the exits; FedEE claims the cost of one forward pass, without a figure."""


def cost_values(results: FedeeResults, out: Path, shown: Pictures) -> dict[str, Any] | None:
    """What the page's part on costs names; None where nothing was measured.

    Args:
        results: What was run.
        out: The benchmark's folder.
        shown: Takes the pictures.
    """
    path = out / "costs" / COSTS
    if not path.exists():
        return None
    found = read_json(path)
    return {
        "measured": found,
        "chart": shown.show("costs", cost_chart(found)),
        "table": cost_table(results, found),
        "claim": claim_words(found),
        "energy": energy_values(results, found, shown),
    }


def cost_table(results: FedeeResults, costs: Mapping[str, Any]) -> list[str]:
    """Table 4, with times and memory."""
    printed = {} if results.printed is None else published_fedee().table4[results.printed]
    methods = costs["methods"]
    own = {
        method: {f"{what}_here": seconds_of(methods, method, what) for what in _TIMED if f"{what}_s" in one}
        for method, one in methods.items()
    }
    records = Records({method: {1: {**one, **own[method]}} for method, one in methods.items()})

    def ratio(line: Line, what: str) -> str:
        return _spread(methods[line.row].get(f"{what}_ratio"), 3) if line.row in methods else NOT_RUN

    def column(title: str, figure: str, scale: float, places: int) -> Column:
        return Column(title, figure, show=mean_number, scale=scale, places=places)

    columns = [
        column("parameters (M)", "parameters", 1e-6, 3),
        column("multiply-adds (G)", "multiply_adds", 1e-9, 4),
        *printed_columns(("paper, size (M)", "paper, FLOPs (G)"), printed, 3),
        column("answer (ms)", "inference_here", 1e3, 1),
        Column("of the backbone's", told=partial(ratio, what="inference")),
        column("training step (ms)", "training_here", 1e3, 1),
        Column("of the backbone's", told=partial(ratio, what="training")),
        column("memory, answer (MB)", "memory_inference", 1e-6, 0),
        column("memory, training step (MB)", "memory_training", 1e-6, 0),
    ]
    return render(records, ["method"], [Line((method,), method) for method in METHODS], columns)


def claim_words(costs: Mapping[str, Any]) -> str:
    """Whether the exits answer within 1.05 of the backbone's time, as measured; "" without a row that has them."""
    one = costs["methods"].get("FedEE")
    if one is None:
        return ""
    ratio, ours = one["inference_ratio"], costs["methods"]["Backbone"]
    added = one["multiply_adds"] / ours["multiply_adds"]
    held = "holds" if ratio["median"] <= CLAIMED else "does not hold"
    between = "" if ratio["low"] > CLAIMED or ratio["high"] <= CLAIMED else "; its quartiles lie on both sides of it"
    return (
        f"That exits answer within {CLAIMED} of the backbone's time {held} here: the median ratio is "
        f"{number(ratio['median'], 3)} ({number(ratio['low'], 3)} to {number(ratio['high'], 3)}){between}. They add "
        f"{number(100 * (added - 1), 2)} % to its multiply-adds."
    )


def cost_chart(costs: Mapping[str, Any]) -> Chart | None:
    """Figure 2: time of a batch's answer and of a training step, beside the backbone's."""
    methods = [method for method in METHODS if method in costs["methods"]]
    members = costs["asked"].get("Deep Ens.", {}).get("networks", 1)

    def value(method: str, key: str) -> float:
        if key == "training_ratio" and method == "Deep Ens.":
            return float(members)  # one network after the other
        return float(costs["methods"][method][key]["median"])

    bars = {
        title: [value(method, key) for method in methods]
        for title, key in (("answer", "inference_ratio"), ("training step", "training_ratio"))
    }

    def paint(axes: Any) -> None:
        for at, (title, values) in enumerate(bars.items()):
            places = [one - 0.2 + 0.4 * at for one in range(len(methods))]
            colour, hatch = ((BLUE, ""), (ORANGE, "////"))[at]
            axes.barh(places, values, 0.38, color=colour, hatch=hatch, edgecolor="white", label=title)
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.set_xlabel("times the backbone")
        axes.grid(visible=False, axis="y")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))

    told = "; ".join(
        f"{title}: " + ", ".join(f"{method} {number(one, 2)}" for method, one in zip(methods, values, strict=True))
        for title, values in bars.items()
    )
    return draw("costs", f"Time over the backbone's. {told}.", paint, left=1.1, right=1.4, width=6.0, height=2.6)


def _spread(one: Mapping[str, float] | None, places: int) -> str:
    if one is None:
        return NONE
    low, median, high = (number(one[key], places) for key in ("low", "median", "high"))
    return f"{median} ({low} to {high})"
