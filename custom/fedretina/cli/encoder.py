"""`fedretina encoder`: what a file of an encoder's weights is, before a job names it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedretina.cli.shared import fail, progress
from fedretina.errors import FedretinaError

if TYPE_CHECKING:
    from fedretina.networks.encoder_check import EncoderCheck

_FEW = 5


@click.group()
def encoder() -> None:
    """Look at a file of an encoder's weights."""


@encoder.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--encoder", "name", help="Encoder that the file is meant for.  [default: the one that it fits]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: Path, name: str | None, as_json: bool) -> None:
    """Say what a FILE of weights is, and whether a run can start from it.

    Whose form it has, which encoder it fits, the size and normalisation of its images, what is missing or left over,
    its SHA-256, what it was pre-trained on and what its owner allows. Nothing but the file is read, and no code in it
    runs. Ends with code 1 when it cannot be loaded whole, with 2 when it cannot be read at all.
    """
    from fedretina.networks.encoder_check import check_weights

    try:
        with progress("encoders") as tell:
            found = check_weights(file, name, tell)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps({**found._asdict(), "whole": found.whole}, indent=1))
    else:
        click.echo("\n".join(_lines(found)))
    sys.exit(0 if found.whole else 1)


def _lines(found: EncoderCheck) -> list[str]:
    lines = [f"sha256          {found.sha256}"]
    if found.wrapper is not None:
        lines.append(f"checkpoint      the weights are under {found.wrapper!r}; what is beside them is not read")
    if not found.layout:
        keys = ", ".join(found.left_over[:_FEW])
        return [
            *lines,
            f"It has none of the forms that the product knows. Its first keys are {keys}.",
            "It cannot be loaded: docs/encoders.md lists the forms, and docs/add_a_method.md says how one is added.",
        ]
    lines.append(f"form            {found.layout}")
    if found.encoder is None:
        return [*lines, f"It cannot be loaded: {found.notes[0]}."]
    lines += [
        f"encoder         {found.encoder}",
        f"images          {_images(found)}",
        f"normalisation   {found.normalisation}",
        f"pre-trained on  {found.pretrained_on}",
        f"licence         {found.licence}",
    ]
    if found.sets:
        lines.append(f"public sets     {', '.join(found.sets)}: figures on them may be too good")
    if found.dropped:
        lines.append(f"left out        {_some(found.dropped)}: no encoder needs them")
    lines += [f"note            {note}" for note in found.notes]
    faults = (
        ("missing", found.missing),
        ("left over", found.left_over),
        ("another shape", found.other_shape),
        ("not finite", found.not_finite),
    )
    lines += [f"{title:<16}{_some(keys)}" for title, keys in faults if keys]
    if not found.whole:
        return [*lines, f"It cannot be loaded: {found.faults} tensors do not fit {found.encoder}."]
    return [
        *lines,
        "It can be loaded. In the experiment:",
        f"  network: {{encoder: {found.encoder}, weights: {{source: file, sha256: {found.sha256}}}}}",
        "and weights_file at the server and at each site. Whether your federation may use it is between you and its "
        "owner.",
    ]


def _images(found: EncoderCheck) -> str:
    made = "its owner must say for which size" if found.side is None else f"made for {found.side} px"
    takes = f"multiples of {found.patch} px" if found.patch > 1 else "any size"
    moved = "" if found.positions is None else f"; positions are those of {found.positions} px, resampled for others"
    return f"{made}; takes {takes}{moved}"


def _some(keys: tuple[str, ...]) -> str:
    more = len(keys) - _FEW
    return ", ".join(keys[:_FEW]) + (f" and {more} more" if more > 0 else "")
