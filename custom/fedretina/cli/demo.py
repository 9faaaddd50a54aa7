"""`fedretina demo`: what an installed wheel shows without a checkout, images or a network."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.cli.shared import PHANTOMS, RUN
from fedretina.cli.simulate import simulate
from fedretina.cli.trial import ROOT

_QUICK = ("phantom_images=32", "images.image_size=32", "network.weights.source=none")


@click.command()
@click.option("--quick", is_flag=True, help="Two hospitals, one round, few images: is the installation whole?")
@click.option("--root", type=click.Path(path_type=Path), default=ROOT, help="Folder of runs.")
@click.option("--run", type=RUN, help="Name of the run [demo, or demo_quick]; an unfinished one goes on.")
@click.option("--threads", type=click.IntRange(1), help="Sites that work at once [all, as far as there are cores].")
@click.pass_context
def demo(ctx: click.Context, quick: bool, root: Path, run: str | None, threads: int | None) -> None:
    """Run FedUAA over five phantom hospitals through FLARE's simulator.

    Needs the installed package alone: no images, no checkout, no network. It takes one to two minutes on two idle
    cores (--quick: less), and ends with the table, each hospital's verdict and the paths of the reports. The images are
    synthetic: they show that the software works, not how good a method is. Research software, not a medical device.

    `fedretina simulate feduaa` does the same and takes your own sites and settings.
    """
    ctx.invoke(
        simulate,
        experiment="feduaa",
        pairs=(),
        sites=PHANTOMS[:2] if quick else PHANTOMS,
        rounds=1 if quick else None,
        changes=_QUICK if quick else (),
        root=root,
        run=run or ("demo_quick" if quick else "demo"),
        threads=threads,
    )
