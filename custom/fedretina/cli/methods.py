"""What a row is: `fedretina methods` lists the table, `partition` says what travels under a file's settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedretina.cli.shared import fail, progress
from fedretina.errors import FedretinaError, SettingsError

if TYPE_CHECKING:
    from fedretina.networks.network import Network
    from fedretina.settings.experiment import Experiment

_ENCODER = "resnet50"  # whose bytes one row is shown with
_GRADES = 5  # of a head that travels, and of the head whose size is shown as staying


@click.command()
@click.argument("row", required=False)
@click.option("--encoder", help=f"Count the bytes with this encoder; those of one ROW with {_ENCODER} by default.")
@click.option(
    "--experiment", type=click.Path(exists=True, path_type=Path), help="Count the bytes with the encoder of this file."
)
@click.option("--sites", type=click.IntRange(1), default=5, show_default=True, help="Number of sites.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def methods(row: str | None, encoder: str | None, experiment: Path | None, sites: int, as_json: bool) -> None:
    """List the methods with their axes, or show one ROW in full, with its bytes; those of the list need --encoder."""
    from fedretina.settings.choice import load_parts
    from fedretina.settings.experiment import Experiment

    try:
        load_parts()  # rows of packages that are installed are listed too
        chosen = encoder or (_ENCODER if row else None)
        if experiment is not None:
            chosen = Experiment.load(experiment).network.encoder
        with progress("methods") as tell:
            listed = work_out(chosen, sites, [row] if row else (), tell)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps([method.told() for method in listed], indent=1))
    else:
        click.echo(method_text(listed[0], sites) if row else methods_text(listed, sites))


@click.command()
@click.argument("experiment", type=click.Path(exists=True, path_type=Path))
@click.option("--grades", type=click.IntRange(2), default=5, help="Grades of the site.")
def partition(experiment: Path, grades: int) -> None:
    """Print what travels and what stays under an EXPERIMENT file."""
    from fedretina.settings.experiment import Experiment

    try:
        settings = Experiment.load(experiment)  # before torch is loaded, which takes seconds: a typo is told at once
        from fedretina.exchange.partition import partition_of
        from fedretina.networks.build import build_on_meta

        click.echo(partition_of(settings, build_on_meta(settings.network, grades)).table())
    except FedretinaError as error:
        fail(str(error))


class Traffic(NamedTuple):
    """The bytes of a row for a given network.

    Attributes:
        travels: By kind of tensor, what goes up with each update.
        stays: Of the network, what never leaves a site.
        up: One site's update in a round.
        down: What a site is sent in a round.
        once: What a site sends once, before or after training.
        federation: A round, up and down, over all sites.
    """

    travels: Mapping[str, int]
    stays: int
    up: int
    down: int
    once: int
    federation: int


class Method(NamedTuple):
    """A row with what follows from it.

    Attributes:
        name: The row's name.
        title: The method's name in print.
        paper: Where it comes from.
        objective: What a site minimises.
        correction: How drift is held back.
        personal: What stays at the site, with the BatchNorm policy.
        aggregation: How the server mixes.
        phases: The tasks of a run, in order.
        traffic: Its bytes; None where no network was named.
    """

    name: str
    title: str
    paper: str
    objective: str
    correction: str
    personal: str
    aggregation: str
    phases: tuple[str, ...]
    traffic: Traffic | None

    def told(self) -> dict[str, Any]:
        """Plain values by name, the bytes among them."""
        axes = self._asdict()
        del axes["traffic"]
        return axes if self.traffic is None else {**axes, **self.traffic._asdict()}


def work_out(
    encoder: str | None,
    sites: int,
    names: Sequence[str] = (),
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> list[Method]:
    """Work out the rows, with their bytes for an encoder.

    Args:
        encoder: Name of the encoder; the rest of the network is the row's. None for no bytes, which needs no torch.
        sites: Number of sites N.
        names: Rows to list; by default all that the encoder fits: FedAP needs one with BatchNorm, and a ViT samples of
            whole patches.
        tell: Called after each row: how many are worked out, and of how many.

    Raises:
        SettingsError: An unknown row or encoder, or a row in `names` that the encoder does not fit.
    """
    from fedretina.rows import ROWS
    from fedretina.settings.experiment import Experiment

    found, unfit = [], SettingsError("there is no row.")
    networks: dict[str, Network] = {}  # many rows have the same one, and building it is most of the work
    for done, name in enumerate(names or ROWS, start=1):
        try:
            if encoder is None:
                found.append(_method(name, Experiment.resolve({"row": name}), None))
            else:
                experiment = Experiment.resolve({"row": name, "network": {"encoder": encoder}})
                found.append(_method(name, experiment, _traffic(experiment, networks, sites)))
        except SettingsError as error:
            unfit = error
            if names:
                raise
        tell(done, len(names or ROWS))
    if not found:
        raise unfit
    return found


def _method(name: str, experiment: Experiment, traffic: Traffic | None) -> Method:
    from fedretina.rows import ROWS
    from fedretina.settings.plan import Plan

    stretches = experiment.training.stretches
    inside = f" ({', then '.join(f'{s.train} x{s.epochs}' for s in stretches)})" if stretches else ""
    tasks = [*dict.fromkeys(step.task for step in Plan.of(experiment))]
    exchange = experiment.exchange
    return Method(
        name=name,
        title=ROWS[name].title,
        paper=ROWS[name].paper,
        objective=experiment.objective.name,
        correction=experiment.correction.name,
        personal=f"{exchange.personal}, BatchNorm {exchange.batchnorm}"
        + (" by name" if exchange.bn_match == "name" else ""),
        aggregation=experiment.aggregation.rule.name,
        phases=tuple(f"{task}{inside}" if task in ("pretrain", "train") else task for task in tasks),
        traffic=traffic,
    )


def _traffic(experiment: Experiment, networks: dict[str, Network], sites: int) -> Traffic:
    """The bytes of an experiment; its network is looked up among those there are, and added where it is new."""
    from fedretina.exchange.partition import partition_of
    from fedretina.networks.build import build_on_meta

    wanted = experiment.network.model_dump_json()
    networks[wanted] = networks.get(wanted) or build_on_meta(experiment.network, _GRADES)
    parts = partition_of(experiment, networks[wanted])
    travels: dict[str, int] = {}
    for key in parts.travelling:
        kind = parts.kinds[key].value
        travels[kind] = travels.get(kind, 0) + parts.sizes[key][1]
    up = sum(travels.values())
    return Traffic(
        travels=travels,
        stays=sum(parts.sizes[key][1] for key in parts.personal),
        up=up,
        down=up,
        once=sum(parts.sizes[key][1] for key in (*parts.statistics, *parts.moments, *parts.sums)),
        federation=2 * up * sites,
    )


def methods_text(listed: Sequence[Method], sites: int) -> str:
    """Render the methods, a line of axes each, with the bytes of a round where they were counted."""
    from fedretina.rows import ROWS

    lines = [("row", "objective", "correction", "personal", "aggregation", "MB up", "MB per round")]
    for m in listed:
        figures = ("", "") if m.traffic is None else (f"{m.traffic.up / 1e6:.2f}", f"{m.traffic.federation / 1e6:.1f}")
        lines.append((m.name, m.objective, m.correction, m.personal, m.aggregation, *figures))
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    counted = any(m.traffic for m in listed)
    rendered = []
    for line in lines:
        words = [cell.ljust(width) for cell, width in zip(line[:5], widths, strict=False)]
        if counted:
            words += [line[5].rjust(widths[5]), line[6].rjust(widths[6])]
        rendered.append("  ".join(words).rstrip())
    unfit = [name for name in ROWS if name not in {m.name for m in listed}]
    if unfit:
        rendered.append(f"Not with this encoder, each says why when asked for by name: {', '.join(unfit)}.")
    note = f"MB up: one site's update, in 1e6 bytes. MB per round: up and down, {sites} sites. Filters may change it."
    if not counted:
        note = "Bytes of a round: with --encoder NAME or --experiment FILE. All of one row: `fedretina methods ROW`."
    return "\n".join([*rendered, note])


def method_text(method: Method, sites: int) -> str:
    """Render one method in full, with the bytes that were counted."""
    pairs = [
        ("", f"{method.name}: {method.title}"),
        ("paper", method.paper),
        ("phases", " > ".join(method.phases)),
        ("objective", method.objective),
        ("correction", method.correction),
        ("personal", method.personal),
        ("aggregation", method.aggregation),
    ]
    if (moved := method.traffic) is not None:
        kinds = ", ".join(f"{kind} {size / 1e6:.2f} MB" for kind, size in sorted(moved.travels.items())) or "nothing"
        pairs += [
            ("travels, both ways", kinds),
            ("sent once", f"{moved.once / 1e6:.3f} MB of statistics" if moved.once else "nothing"),
            ("stays", f"{moved.stays / 1e6:.2f} MB of the network, with images, labels and grades"),
            ("a round", f"{moved.federation / 1e6:.1f} MB over {sites} sites"),
        ]
    return "\n".join(f"{name:<20}{text}" if name else text for name, text in pairs)
