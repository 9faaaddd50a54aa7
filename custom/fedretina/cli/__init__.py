"""The command line: which command stands in which file. Each is imported when it is called."""

from __future__ import annotations

import click

from fedretina.cli.shared import LazyGroup
from fedretina.garbage import collect_rarely, end_quickly
from fedretina.version import __version__

_BESIDE = ("nvflare", "torch", "torchvision", "numpy")


def _say_versions(ctx: click.Context) -> None:
    """Of this package and what it stands on, read where they are installed: none of them is imported."""
    import platform
    from importlib import metadata

    beside = []
    for name in _BESIDE:
        try:
            beside.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            beside.append(f"{name} is not installed")
    click.echo(f"fedretina, version {__version__}")
    click.echo(f"{', '.join(beside)}; Python {platform.python_version()} on {platform.platform(terse=True)}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    lazy={
        "benchmark": "fedretina_papers.command:benchmark",
        "data": "fedretina.cli.data:data",
        "demo": "fedretina.cli.demo:demo",
        "encoder": "fedretina.cli.encoder:encoder",
        "export": "fedretina.cli.export:export",
        "head": "fedretina.cli.head:head",
        "job": "fedretina.cli.job:job",
        "kit": "fedretina.cli.kit:kit",
        "loop": "fedretina.cli.loop:loop",
        "methods": "fedretina.cli.methods:methods",
        "partition": "fedretina.cli.methods:partition",
        "predict": "fedretina.cli.predict:predict",
        "receive": "fedretina.cli.receive:receive",
        "repair": "fedretina.cli.run:repair",
        "report": "fedretina.cli.loop:report",
        "results": "fedretina.cli.run:results",
        "resume": "fedretina.cli.run:resume",
        "simulate": "fedretina.cli.simulate:simulate",
        "show": "fedretina.cli.loop:show",
        "site": "fedretina.cli.site:site",
        "status": "fedretina.cli.run:status",
        "submit": "fedretina.cli.run:submit",
        "watch": "fedretina.cli.run:watch",
        "wheelhouse": "fedretina.cli.wheelhouse:wheelhouse",
    },
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands below too
    absent={
        "fedretina_papers": "the papers' tables are no part of an installed fedretina: run this in a checkout of its "
        "sources that `make demo` has set up."
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, option, asked: _say_versions(ctx) if asked else None,
    help="Show the versions that a report of a fault needs, and end.",
)
@click.option(
    "--json-lines",
    is_flag=True,
    help="What a command tells while it works, and an error, as JSON, an object a line, on the error stream.",
)
def main(json_lines: bool) -> None:
    """Federated learning for retinal images on NVIDIA FLARE. Research software, not a medical device."""
    collect_rarely()
    end_quickly()
