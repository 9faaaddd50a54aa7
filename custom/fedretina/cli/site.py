"""`fedretina site`: what a hospital's own staff ask of their site."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import click

from fedretina.cli.approval import approvals, approve, decision_words, withdraw
from fedretina.cli.shared import RUN, fail
from fedretina.cli.upgrade import upgrade
from fedretina.errors import FedretinaError
from fedretina.plurals import counted
from fedretina.report.text import size as size_words

_COLUMNS = ("time", "run", "phase", "round", "attempt", "tensors", "bytes", "scalars", "policy", "digest", "words")
_CHAIN = ("number", "time", "event", "previous")
_DIGEST = 12


@click.group()
def site() -> None:
    """Check a hospital's site; approve runs; read its ledger and audit log; write its page; upgrade it."""


for _command in (approve, approvals, withdraw, upgrade):
    site.add_command(_command)


@site.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--experiment",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Experiment file whose network the dry pass uses [FedUAA's defaults, for the site's own kind of images].",
)
@click.option("--offline", is_flag=True, help="Leave the server alone.")
@click.option("--phantom", is_flag=True, help="Allow a site without data of its own, for rehearsals.")
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON list of findings.")
def check(folder: Path, experiment: Path | None, offline: bool, phantom: bool, as_json: bool) -> None:
    """Check a site by its KIT: certificate, hardening, versions, server and clock, disk, data, a dry pass.

    The server is asked one question over mutual TLS; nothing is registered, so a running site is not disturbed (unlike
    FLARE's preflight check, which must never be run on one). Data are read, a few images decoded; nothing is sent. Ends
    with code 1 when something must be mended.
    """
    from fedretina.kit.findings import all_good, render
    from fedretina.kit.site_check import check_site, keep_findings, usual_experiment
    from fedretina.kit.startup_kit import open_kit
    from fedretina.settings.experiment import Experiment

    try:
        kit = open_kit(folder)
        chosen = usual_experiment(kit) if experiment is None else Experiment.load(experiment)
        findings = check_site(kit, chosen, offline, phantom)
        keep_findings(kit, findings)
    except FedretinaError as error:
        fail(str(error))
    click.echo(json.dumps([finding._asdict() for finding in findings], indent=1) if as_json else render(findings))
    sys.exit(0 if all_good(findings) else 1)


@site.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--run", type=RUN, help="One run only.")
@click.option("--json", "as_json", is_flag=True, help="Every line as it is kept, as a JSON list.")
@click.option("--csv", "as_csv", is_flag=True, help="Every line as a row of a spreadsheet.")
def ledger(folder: Path, run: str | None, as_json: bool, as_csv: bool) -> None:
    """Show all that has left the site of a KIT: kinds of tensors, scalars with their values, bytes, words of errors.

    What left under a name that the site had before is shown with that name.

    What the hospital approved, refused and withdrew stands there, too (`fedretina site approvals` shows it alone).

    A line is written before the message it describes may go, so the ledger can list too much, never too little. An
    answer that was sent again has a line again.
    """
    from fedretina.exchange.ledger import REFUSALS, Ledger
    from fedretina.kit.approvals import APPROVALS, LIST
    from fedretina.kit.site_check import site_ledgers, site_settings, state_root_of
    from fedretina.kit.startup_kit import open_kit

    if as_json and as_csv:
        fail("choose one of --json and --csv.")
    try:
        kit = open_kit(folder)
        own = site_settings(kit)
        lines = []
        for path in site_ledgers(kit, own, run):
            name = path.parent.name
            before = {} if name == kit.name else {"site": name}
            lines += [{**line, **before} for line in Ledger(path).lines()]
        if run is None:
            lines += Ledger(kit.folder / REFUSALS).lines()
        decided = Ledger(kit.folder / APPROVALS / LIST).lines()
        lines += [line for line in decided if run is None or line["run"] == run]
    except FedretinaError as error:
        fail(str(error))
    if run and not lines:
        fail(f"nothing of a run {run!r} has left {kit.name}: its ledgers are under {state_root_of(kit, own)}.")
    if as_json:
        click.echo(json.dumps(lines, indent=1))
    elif as_csv:
        click.echo(_spreadsheet(kit.name, lines), nl=False)
    else:
        click.echo(_table(kit.name, lines))


@site.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it there [what the settings say].")
def page(folder: Path, out: Path | None) -> None:
    """Write the page of a site, or of the server, by its KIT, and say where it is.

    It says whether the end is connected, which run is where, what left, what ends next and what must be mended. A
    running site of a hardened kit writes it anew every minute; this writes it at any time, also where nothing runs.
    """
    from fedretina.kit.end_status import EndFiles
    from fedretina.kit.startup_kit import open_kit
    from fedretina.report.status_page import status_page
    from fedretina.seeds import devices_seen
    from fedretina.storage import write_text

    try:
        kit = open_kit(folder)
        if kit.role == "admin":
            fail(f"{folder} is the kit of an admin: only a site and the server have a page.")
        files = EndFiles(kit)
        made = status_page(files.status(False, devices_seen() if kit.role == "site" else None))
        write_text(out or files.page, made, None if out else files.page_mode)
    except FedretinaError as error:
        fail(str(error))
    click.echo(str(out or files.page))


@site.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--noted", metavar="NUMBER:DIGEST", help="An earlier last line of this command, as you noted it elsewhere."
)
@click.option("--json", "as_json", is_flag=True, help="Every event as it is kept, as a JSON list.")
def audit(folder: Path, noted: str | None, as_json: bool) -> None:
    """Show and verify the audit log of a KIT, a site's or the server's: sign-ins, and what became of each job.

    Each event holds the digest of the one before, so one that was changed, taken out or put in is found and named, and
    so is an end that was cut off. Ends with code 1 then. Note the last line elsewhere: with it, --noted finds out later
    whether somebody who may write in the kit wrote the whole log anew.
    """
    from fedretina.kit.audit import AuditLog
    from fedretina.kit.startup_kit import open_kit

    number, colon, digest = (noted or "").partition(":")
    if noted is not None and not (number.isdigit() and colon and len(digest) >= _DIGEST):
        fail(f"--noted is {noted!r}: give it as NUMBER:DIGEST, with at least {_DIGEST} characters of the digest.")
    try:
        kit = open_kit(folder)
        found = AuditLog(kit.folder).verify((int(number), digest) if noted else None)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(found.events, indent=1))
    else:
        for event in found.events:
            rest = {name: value for name, value in event.items() if name not in _CHAIN}
            words = "; ".join(f"{name} {value}" for name, value in rest.items())
            click.echo(f"{event['number']:>5}  {event['time']}  {event['event']}{': ' if words else ''}{words}")
    for fault in found.faults:
        click.echo(f"FAIL  {fault}", err=as_json)
    if found.unfinished:
        click.echo(
            "note  a last line is unfinished: the disk was full or the power gone. The next event cuts it.", err=as_json
        )
    if not found.faults:
        last = int(found.events[-1]["number"]) if found.events else 0
        click.echo(
            f"ok    {counted(last, 'event')}, and the chain is whole. Note elsewhere: {last}:{found.digest}",
            err=as_json,
        )
    sys.exit(1 if found.faults else 0)


def _row(line: dict[str, Any]) -> tuple[object, ...]:
    tensors = "; ".join(f"{count} {kind}" for kind, count in line["tensors"].items())
    scalars = "; ".join(f"{name}={value:g}" for name, value in line["scalars"].items())
    policy = "; ".join(
        f"{name}={json.dumps(line[name])}"
        for name in ("held_back", "mantissa_bits", "scalar_digits", "privacy")
        if name in line
    )
    place = (line.get("time", ""), line["run"], line["phase"], line["round"], line["attempt"])
    words = decision_words(line["approval"]) if "approval" in line else line.get("words", "")
    return (*place, tensors, line["bytes"], scalars, policy, line["digest"], words)


def _spreadsheet(site: str, lines: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_COLUMNS, "site"))
    writer.writerows((*_row(line), line.get("site", site)) for line in lines)
    return text.getvalue()


def _table(site: str, lines: list[dict[str, Any]]) -> str:
    if not lines:
        return f"nothing has left {site}."
    shown = []
    decided = [line["approval"] for line in lines if "approval" in line]
    lines = [line for line in lines if "approval" not in line]
    if decided:
        shown = [f"decisions of the hospital: {len(decided)}", *(f"  {decision_words(made)}" for made in decided)]
    for run, name in dict.fromkeys((line["run"], line.get("site", site)) for line in lines):
        of_run = [line for line in lines if (line["run"], line.get("site", site)) == (run, name)]
        if not run:
            shown.append(f"jobs that were not taken: {len(of_run)}")
            shown.extend(f"  job {line['job']}: {line['words']}" for line in of_run)
            continue
        total = sum(line["bytes"] for line in of_run)
        under = "" if name == site else f" (under the name {name})"
        shown.append(f"run {run}{under}: {counted(len(of_run), 'message')}, {size_words(total)} of tensors")
        for line in of_run:
            _, _, phase, number, attempt, tensors, size, scalars, policy, digest, words = _row(line)
            again = f" (attempt {attempt})" if attempt else ""
            if words:
                shown.append(f"  {phase} {number}{again}: an error: {words}")
                continue
            shown.append(
                f"  {phase} {number}{again}: {tensors or 'no tensors'}, {size} bytes, sha256 {str(digest)[:12]}"
            )
            shown.append(f"    scalars: {scalars or 'none'}")
            if policy:
                shown.append(f"    policy: {policy}")
    kinds = sorted({kind for line in lines for kind in line["tensors"]})
    names = sorted({name for line in lines for name in line["scalars"]})
    shown.append(f"in all: kinds {', '.join(kinds) or 'none'}; scalars {', '.join(names) or 'none'}")
    budgets = [line["privacy"]["epsilon_so_far"] for line in lines if "privacy" in line]
    if budgets:
        shown.append(f"privacy budget spent over all runs: epsilon {max(budgets):.3g}")
    return "\n".join(shown)
