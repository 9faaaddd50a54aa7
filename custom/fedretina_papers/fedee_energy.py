"""Energy and CO2 equivalents of FedEE's methods: Table 12 and Figure 10."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from fedretina.local.supervised import batches_an_epoch
from fedretina.report.svg import Chart
from fedretina.report.text import number
from fedretina_papers.choices import EnergySettings
from fedretina_papers.costs.energy import Energy, Footprint, communication, estimated, footprint
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, mean_number, render
from fedretina_papers.fedee_results import FedeeResults
from fedretina_papers.line_chart import Series, line_chart
from fedretina_papers.markdown import NOT_RUN
from fedretina_papers.pictures import Pictures
from fedretina_papers.published import METHODS, published_fedee
from fedretina_papers.stored import end_words


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


def energy_values(results: FedeeResults, costs: Mapping[str, Any], shown: Pictures) -> dict[str, Any]:
    """What the page's Table 12 and Figure 10 name, with what they assume.

    Args:
        results: What was run.
        costs: The stored costs.
        shown: Takes the pictures.
    """
    energies = energy_of(results, costs)
    names = set(published_fedee().rows["FedAvg"].values()) & set(results.benchmark.runs)
    charts = {"traffic": traffic_chart, "computation": computation_chart, "emission": emission_chart}
    return {
        "table": energy_table(results, energies),
        "settings": EnergySettings.model_validate(results.benchmark.plan.get("energy") or {}),
        "metered": any(one.get("power") for one in costs["methods"].values()),
        "moving": end_words(run for name in names for run in results.benchmark.runs[name].values()),
        "charts": [shown.show(name, chart(energies)) for name, chart in charts.items()],
    }


def energy_of(results: FedeeResults, stored: Mapping[str, Any]) -> dict[str, MethodEnergy]:
    """Energy of a method's runs under FedAvg: time of its training steps times power, and what moved.

    Args:
        results: What was run.
        stored: The stored costs.
    """
    settings = EnergySettings.model_validate(results.benchmark.plan.get("energy") or {})
    told = {}
    for method, name in published_fedee().rows["FedAvg"].items():
        runs = list(results.benchmark.runs.get(name, {}).values())
        measured = "Backbone" if method == "Deep Ens." else method
        costs = stored["methods"].get(measured)
        if not runs or costs is None:
            continue
        members = len(runs[0].get("reading", {}).get("runs", (1,)))
        rounds, steps = int(runs[0]["rounds"]), members * steps_a_round(runs[0])
        seconds = steps * seconds_of(stored["methods"], measured, "training")
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


def steps_a_round(record: Mapping[str, Any]) -> int:
    """Training steps of all sites in a round of a stored run."""
    settings = record["settings"]
    training = settings["phases"][-1]["training"] or settings["training"]
    images = [site["images"]["train"] for site in record["sites"].values() if site.get("trained", True)]
    size, whole = training["batch_size"], training["drop_last"]
    return sum(batches_an_epoch(one, size, whole) * training["epochs"] for one in images)


def seconds_of(methods: Mapping[str, Any], method: str, what: str) -> float:
    """Seconds of a method's answer or training step: the backbone's times the ratio of turns that it shared.

    Two methods met the backbone at different moments, under different loads; their own seconds cannot be set beside
    each other, their ratios can.

    Args:
        methods: Stored measurements by method.
        method: Whose.
        what: "inference" or "training".
    """
    base = float(methods["Backbone"][f"{what}_s"]["median"])
    return base if method == "Backbone" else base * float(methods[method][f"{what}_ratio"]["median"])


def energy_table(results: FedeeResults, energies: Mapping[str, MethodEnergy]) -> list[str]:
    """Table 12."""
    printed = {} if results.printed is None else published_fedee().table12[results.printed]

    shown: dict[str, tuple[int, Callable[[MethodEnergy], float]]] = {
        "seconds a round": (1, lambda one: one.seconds),
        "Wh a round": (4, lambda one: one.run.training.wh / one.rounds),
        "Wh a round, moving": (4, lambda one: one.run.communication.wh / one.rounds),
        "Wh a run": (3, lambda one: one.run.total_wh),
        "CO2e (g)": (3, lambda one: one.run.co2e_g),
        "MB a round": (1, lambda one: one.bytes / 1e6),
    }
    held = {method: {1: {title: value(one) for title, (_, value) in shown.items()}} for method, one in energies.items()}

    def power(line: Line) -> str:
        one = energies.get(line.row)
        return NOT_RUN if one is None else f"{number(one.watts, 0)}{'' if one.run.metered else ' assumed'}"

    columns = [
        Column("power (W)", told=power),
        *(Column(title, title, show=mean_number, places=places) for title, (places, _) in shown.items()),
        *printed_columns(("paper: W", "s", "Wh", "Wh, moving", "Wh, total", "g"), printed, 2),
    ]
    return render(Records(held), ["method"], [Line((method,), method) for method in METHODS], columns)


def printed_columns(titles: Sequence[str], printed: Mapping[str, Sequence[float]], places: int) -> list[Column]:
    """What the paper prints of each method; nothing where ours are other data.

    Args:
        titles: Of its columns.
        printed: Figures by method, in the order of the titles.
        places: Decimals.
    """

    def told(line: Line, at: int) -> str:
        return number(printed[line.row][at] if line.row in printed else None, places)

    return [Column(title, told=partial(told, at=at)) for at, title in enumerate(titles)] if printed else []


def traffic_chart(energies: Mapping[str, MethodEnergy]) -> Chart | None:
    """Figure 10, communication: what has moved after so many rounds, in GB."""
    return _by_round("traffic", energies, lambda one: one.bytes / 1e9, "moved, up and down (GB)")


def computation_chart(energies: Mapping[str, MethodEnergy]) -> Chart | None:
    """Figure 10, computation: time of all sites' training steps after so many rounds, in minutes."""
    return _by_round("computation", energies, lambda one: one.seconds / 60, "training steps (min)")


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
    return line_chart(name, bold, "round", label)
