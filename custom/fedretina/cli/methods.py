"""What a row is: `fedretina methods` lists the table, `partition` says what travels under a file's settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from fedretina.cli.shared import fail, progress
from fedretina.errors import FedretinaError, SettingsError

if TYPE_CHECKING:
    from fedretina.networks.network import Network
    from fedretina.settings.experiment import Experiment

_GRADES = 5  # of a head that travels, and of the head whose size is shown as staying


@click.command()
@click.argument("row", required=False)
@click.option("--encoder", default="resnet50", show_default=True, help="Encoder whose bytes are counted.")
@click.option(
    "--experiment", type=click.Path(exists=True, path_type=Path), help="Take the encoder of this file instead."
)
@click.option("--sites", type=click.IntRange(1), default=5, show_default=True, help="Number of sites.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def methods(row: str | None, encoder: str, experiment: Path | None, sites: int, as_json: bool) -> None:
    """List the methods with their axes and bytes, or show one ROW in full."""
    from fedretina.settings.choice import load_parts
    from fedretina.settings.experiment import Experiment

    try:
        load_parts()  # rows of packages that are installed are listed too
        chosen = encoder if experiment is None else Experiment.load(experiment).network.encoder
        with progress("methods") as tell:
            listed = work_out(chosen, sites, [row] if row else (), tell)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps([method._asdict() for method in listed], indent=1))
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


class Method(NamedTuple):
    """A row with what follows from it for a given network.

    Attributes:
        name: The row's name.
        title: The method's name in print.
        paper: Where it comes from.
        objective: What a site minimises.
        correction: How drift is held back.
        personal: What stays at the site, with the BatchNorm policy.
        aggregation: How the server mixes.
        phases: The tasks of a run, in order.
        travels: Bytes by kind of tensor that go up with each update.
        stays: Bytes of the network that never leave a site.
        up: Bytes of one site's update in a round.
        down: Bytes that a site is sent in a round.
        once: Bytes that a site sends once, before or after training.
        federation: Bytes of a round, up and down, over all sites.
    """

    name: str
    title: str
    paper: str
    objective: str
    correction: str
    personal: str
    aggregation: str
    phases: tuple[str, ...]
    travels: Mapping[str, int]
    stays: int
    up: int
    down: int
    once: int
    federation: int


def work_out(
    encoder: str, sites: int, names: Sequence[str] = (), tell: Callable[[int, int], None] = lambda done, of: None
) -> list[Method]:
    """Work out the rows for an encoder.

    Args:
        encoder: Name of the encoder; the rest of the network is the row's.
        sites: Number of sites N.
        names: Rows to list; by default all that the encoder fits: FedAP needs one with BatchNorm, and a ViT samples of
            whole patches.
        tell: Called after each row: how many are worked out, and of how many.

    Raises:
        SettingsError: An unknown row or encoder, or a row in `names` that the encoder does not fit.
    """
    from fedretina.networks.build import build_on_meta
    from fedretina.rows import ROWS
    from fedretina.settings.experiment import Experiment

    found, unfit = [], SettingsError("there is no row.")
    networks: dict[str, Network] = {}  # many rows have the same one, and building it is most of the work
    for done, name in enumerate(names or ROWS, start=1):
        try:
            experiment = Experiment.resolve({"row": name, "network": {"encoder": encoder}})
            wanted = experiment.network.model_dump_json()
            networks[wanted] = networks.get(wanted) or build_on_meta(experiment.network, _GRADES)
            found.append(_method(name, experiment, networks[wanted], sites))
        except SettingsError as error:
            unfit = error
            if names:
                raise
        tell(done, len(names or ROWS))
    if not found:
        raise unfit
    return found


def _method(name: str, experiment: Experiment, network: Network, sites: int) -> Method:
    from fedretina.exchange.partition import partition_of
    from fedretina.rows import ROWS
    from fedretina.settings.plan import Plan

    parts = partition_of(experiment, network)
    travels: dict[str, int] = {}
    for key in parts.travelling:
        kind = parts.kinds[key].value
        travels[kind] = travels.get(kind, 0) + parts.sizes[key][1]
    up = sum(travels.values())
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
        travels=travels,
        stays=sum(parts.sizes[key][1] for key in parts.personal),
        up=up,
        down=up,
        once=sum(parts.sizes[key][1] for key in (*parts.statistics, *parts.moments, *parts.sums)),
        federation=2 * up * sites,
    )


def methods_text(listed: Sequence[Method], sites: int) -> str:
    """Render the methods, a line of axes each, with the bytes of a round."""
    from fedretina.rows import ROWS

    header = ("row", "objective", "correction", "personal", "aggregation", "MB up", "MB per round")
    lines = [
        (m.name, m.objective, m.correction, m.personal, m.aggregation, f"{m.up / 1e6:.2f}", f"{m.federation / 1e6:.1f}")
        for m in listed
    ]
    widths = [max(len(line[at]) for line in (header, *lines)) for at in range(len(header))]
    rendered = []
    for line in (header, *lines):
        words = [cell.ljust(width) for cell, width in zip(line[:5], widths, strict=False)]
        rendered.append("  ".join([*words, line[5].rjust(widths[5]), line[6].rjust(widths[6])]))
    unfit = [name for name in ROWS if name not in {m.name for m in listed}]
    if unfit:
        rendered.append(f"Not with this encoder, each says why when asked for by name: {', '.join(unfit)}.")
    note = f"MB up: one site's update, in 1e6 bytes. MB per round: up and down, {sites} sites. Filters may change it."
    return "\n".join([*rendered, note])


def method_text(method: Method, sites: int) -> str:
    """Render one method in full."""
    kinds = ", ".join(f"{kind} {size / 1e6:.2f} MB" for kind, size in sorted(method.travels.items())) or "nothing"
    pairs = [
        ("", f"{method.name}: {method.title}"),
        ("paper", method.paper),
        ("phases", " > ".join(method.phases)),
        ("objective", method.objective),
        ("correction", method.correction),
        ("personal", method.personal),
        ("aggregation", method.aggregation),
        ("travels, both ways", kinds),
        ("sent once", f"{method.once / 1e6:.3f} MB of statistics" if method.once else "nothing"),
        ("stays", f"{method.stays / 1e6:.2f} MB of the network, with images, labels and grades"),
        ("a round", f"{method.federation / 1e6:.1f} MB over {sites} sites"),
    ]
    return "\n".join(f"{name:<20}{text}" if name else text for name, text in pairs)
