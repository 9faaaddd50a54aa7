"""FedEE's tables and figures of costs: 4 and 12, 2 and 10."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedretina.benchmark.choices import EnergySettings
from fedretina.benchmark.fedee_costs import COSTS, steps_a_round
from fedretina.benchmark.fedee_results import FedeeResults
from fedretina.benchmark.figures import Series, lines
from fedretina.benchmark.markdown import NOT_RUN, table
from fedretina.benchmark.pictures import Pictures
from fedretina.benchmark.published_fedee import METHODS, published_fedee
from fedretina.costs.energy import Energy, Footprint, communication, estimated, footprint
from fedretina.report.numbers import NONE, number
from fedretina.report.svg import BLUE, ORANGE, Chart, draw
from fedretina.storage import read_json

CLAIMED = 1.05
"""What the exits may add to the backbone's time: FedEE speaks of the order of one forward pass."""


class MethodEnergy(NamedTuple):
    """What a method under FedAvg takes, over all sites.

    Attributes:
        rounds: Of a run.
        steps: Training steps in a round, over all members.
        seconds: Of a round's training steps.
        bytes: Up and down in a round.
        watts: Power, metered or assumed.
        run: Energy and CO2 equivalents of a run.
    """

    rounds: int
    steps: int
    seconds: float
    bytes: float
    watts: float
    run: Footprint


def cost_lines(results: FedeeResults, out: Path, shown: Pictures) -> list[str]:
    """Everything on costs; says so where nothing was measured."""
    path = out / "costs" / COSTS
    if not path.exists():
        return ["## Tables 4 and 12, Figures 2 and 10: costs", "", f"{NOT_RUN.capitalize()}.", ""]
    found = read_json(path)
    energies = energy_of(results, found)
    shape = " x ".join(str(one) for one in found["shape"])
    return [
        "## Table 4 and Figure 2: what an answer and a training step cost",
        "",
        *shown.show("costs", cost_chart(found)),
        *cost_table(results, found),
        f"{found['encoder']}, samples of {shape}, batches of {found['batch_size']}. Parameters and multiply-adds are "
        "counted, of one sample; the paper's are for a batch whose size it does not tell, and of its own network. "
        "Times and memory are measured on the CPU after the runs, each method in turn with the backbone, so that what "
        f"else the machine did falls on both: medians of {found['repeats']} turns, quartiles in brackets; a ratio is "
        "that of two times in the same turn. Memory is what network and step take at their highest, over what the "
        "process held before. A deep ensemble trains one network after the other, each like the backbone.",
        "",
        *claim_words(found),
        "## Table 12 and Figure 10: energy and CO2 equivalents of training",
        "",
        *energy_table(results, energies),
        *_assumed(results, found),
        *shown.show("traffic", traffic_chart(energies)),
        *shown.show("emission", emission_chart(energies)),
    ]


def cost_table(results: FedeeResults, found: Mapping[str, Any]) -> list[str]:
    """Table 4, with times and memory."""
    printed = {} if results.printed is None else published_fedee().table4[results.printed]
    head = ["method", "parameters (M)", "multiply-adds (G)"]
    head += ["paper, size (M)", "paper, FLOPs (G)"] if printed else []
    head += ["answer (ms)", "of the backbone's", "training step (ms)", "of the backbone's"]
    head += ["memory, answer (MB)", "memory, training step (MB)"]
    rows = []
    for method in METHODS:
        one = found["methods"].get(method)
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
                _spread(one.get("inference_s"), 1e3, 1),
                _spread(one.get("inference_ratio"), 1, 2),
                _spread(one.get("training_s"), 1e3, 1),
                _spread(one.get("training_ratio"), 1, 2),
                number(one["memory_inference"] / 1e6, 0),
                NONE if one["memory_training"] is None else number(one["memory_training"] / 1e6, 0),
            ]
        )
    return table(head, rows)


def claim_words(found: Mapping[str, Any]) -> list[str]:
    """Whether the exits answer within 1.05 of the backbone's time, as measured."""
    one = found["methods"].get("FedEE")
    if one is None:
        return []
    ratio, ours = one["inference_ratio"], found["methods"]["Backbone"]
    added = one["multiply_adds"] / ours["multiply_adds"]
    held = "holds" if ratio["median"] <= CLAIMED else "does not hold"
    between = "" if ratio["low"] > CLAIMED or ratio["high"] <= CLAIMED else "; its quartiles lie on both sides of it"
    return [
        f"That exits answer within {CLAIMED} of the backbone's time {held} here: the median ratio is "
        f"{number(ratio['median'], 3)} ({number(ratio['low'], 3)} to {number(ratio['high'], 3)}){between}. They add "
        f"{number(100 * (added - 1), 2)} % to its multiply-adds.",
        "",
    ]


def energy_of(results: FedeeResults, found: Mapping[str, Any]) -> dict[str, MethodEnergy]:
    """Energy of a method's runs under FedAvg: time of its training steps times power, and what moved.

    Args:
        results: What was run.
        found: The stored costs.
    """
    settings = EnergySettings.model_validate(results.benchmark.plan.get("energy") or {})
    told = {}
    for method, name in published_fedee().rows["FedAvg"].items():
        runs = list(results.benchmark.runs.get(name, {}).values())
        costs = found["methods"].get("Backbone" if method == "Deep Ens." else method)
        if not runs or costs is None:
            continue
        members = len(runs[0].get("reading", {}).get("runs", (1,)))
        rounds, steps = int(runs[0]["rounds"]), members * steps_a_round(runs[0])
        seconds = steps * costs["training_s"]["median"]
        power = costs["power"]
        watts = settings.watts if power is None else float(power["watts"])
        if power is None:
            training = estimated(seconds * rounds, watts, f"{watts:g} W, assumed")
        else:
            training = Energy(seconds * rounds * watts / 3600, True, str(power["source"]))
        up, down = (fmean(run[key] for run in runs) for key in ("bytes_up", "bytes_down"))
        run = footprint(training, communication(up, down, settings.grid), settings.grid)
        told[method] = MethodEnergy(rounds, steps, seconds, (up + down) / rounds, watts, run)
    return told


def energy_table(results: FedeeResults, energies: Mapping[str, MethodEnergy]) -> list[str]:
    """Table 12."""
    printed = {} if results.printed is None else published_fedee().table12[results.printed]
    head = ["method", "power (W)", "seconds a round", "Wh a round", "Wh a round, moving", "Wh a run", "CO2e (g)"]
    head += ["MB a round"]
    head += ["paper: W", "s", "Wh", "Wh, moving", "Wh, total", "g"] if printed else []
    rows = []
    for method in METHODS:
        one, theirs = energies.get(method), [number(value, 2) for value in printed.get(method, [None] * 6)]
        ours = [NOT_RUN] * 7
        if one is not None:
            ours = [
                f"{number(one.watts, 0)}{'' if one.run.metered else ' assumed'}",
                number(one.seconds, 1),
                number(one.run.training.wh / one.rounds, 4),
                number(one.run.communication.wh / one.rounds, 4),
                number(one.run.total_wh, 3),
                number(one.run.co2e_g, 3),
                number(one.bytes / 1e6, 1),
            ]
        rows.append([method, *ours, *(theirs if printed else [])])
    return table(head, rows)


def cost_chart(found: Mapping[str, Any]) -> Chart | None:
    """Figure 2: time of a batch's answer and of a training step, beside the backbone's."""
    methods = [method for method in METHODS if method in found["methods"]]
    members = found["asked"].get("Deep Ens.", {}).get("networks", 1)

    def value(method: str, key: str) -> float:
        if key == "training_ratio" and method == "Deep Ens.":
            return float(members)  # one network after the other
        return float(found["methods"][method][key]["median"])

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


def traffic_chart(energies: Mapping[str, MethodEnergy]) -> Chart | None:
    """Figure 10, communication: what has moved after so many rounds, in GB."""
    return _by_round("traffic", energies, lambda one: one.bytes / 1e9, "moved, up and down (GB)")


def emission_chart(energies: Mapping[str, MethodEnergy]) -> Chart | None:
    """Figure 10, emission: CO2 equivalents after so many rounds, in g."""
    return _by_round("emission", energies, lambda one: one.run.co2e_g / one.rounds, "CO2 equivalents (g)")


def _by_round(name: str, energies: Mapping[str, MethodEnergy], each: Any, label: str) -> Chart | None:
    series = [
        Series(method, list(range(1, one.rounds + 1)), [[at * each(one) for at in range(1, one.rounds + 1)]], False)
        for method, one in energies.items()
        if one.rounds > 1
    ]
    bold = [one._replace(bold=one.label == "FedEE") for one in series]
    return lines(name, bold, "round", label)


def _assumed(results: FedeeResults, found: Mapping[str, Any]) -> list[str]:
    settings = EnergySettings.model_validate(results.benchmark.plan.get("energy") or {})
    metered = any(one.get("power") for one in found["methods"].values())
    power = (
        "Power is that of the machine's meters while it trained, all parts that have one."
        if metered
        else f"**An estimate**: the machine has no meter that can be read, so that {settings.watts:g} W are assumed."
    )
    grid = settings.grid
    return [
        f"{power} Energy of a round is power times the time of its training steps over all sites (Equation 9), and for "
        f"what moves {grid.router_w:g} W of a router and {grid.idle_w:g} W of a machine that waits, at "
        f"{grid.up_mbit_s:g} Mbit/s up and {grid.down_mbit_s:g} down (Equation 10): assumptions of ours, as the paper "
        f"prints none. {grid.co2e_g_per_kwh:g} g a kWh, which all rows of its table imply, and a power usage "
        f"effectiveness of {grid.pue:g} (Equation 11). Time to load samples and to validate is not in it.",
        "",
    ]


def _spread(one: Mapping[str, float] | None, scale: float, places: int) -> str:
    if one is None:
        return NONE
    low, median, high = (number(scale * one[key], places) for key in ("low", "median", "high"))
    return f"{median} ({low} to {high})"
