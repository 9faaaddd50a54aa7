"""FedEE's costs on the page: Table 4 and Figure 2, what an answer and a training step take, then energy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedretina.report.svg import BLUE, ORANGE, Chart, draw
from fedretina.report.text import NONE, number
from fedretina.storage import read_json
from fedretina_papers.fedee_costs import COSTS
from fedretina_papers.fedee_energy import energy_values, seconds_of
from fedretina_papers.fedee_results import FedeeResults
from fedretina_papers.markdown import NOT_RUN, table
from fedretina_papers.pictures import Pictures
from fedretina_papers.published import METHODS, published_fedee

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
    head = ["method", "parameters (M)", "multiply-adds (G)"]
    head += ["paper, size (M)", "paper, FLOPs (G)"] if printed else []
    head += ["answer (ms)", "of the backbone's", "training step (ms)", "of the backbone's"]
    head += ["memory, answer (MB)", "memory, training step (MB)"]
    rows = []
    for method in METHODS:
        one = costs["methods"].get(method)
        theirs = [number(value, 3) for value in printed.get(method, ())] if printed else []
        if one is None:
            rows.append([method, NOT_RUN, NOT_RUN, *theirs, *[NOT_RUN] * 6])
            continue
        rows.append(
            [
                method,
                number(one["parameters"] / 1e6, 3),
                number(one["multiply_adds"] / 1e9, 4),
                *theirs,
                number(1e3 * seconds_of(costs["methods"], method, "inference"), 1),
                _spread(one.get("inference_ratio"), 3),
                NONE if "training_s" not in one else number(1e3 * seconds_of(costs["methods"], method, "training"), 1),
                _spread(one.get("training_ratio"), 3),
                number(one["memory_inference"] / 1e6, 0),
                NONE if one["memory_training"] is None else number(one["memory_training"] / 1e6, 0),
            ]
        )
    return table(head, rows)


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
