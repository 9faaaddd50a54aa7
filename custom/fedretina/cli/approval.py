"""`fedretina site approve`, `approvals` and `withdraw`: the hospital says whether a run may use its images."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedretina.cli.shared import fail
from fedretina.errors import DataError, FedretinaError, StateError
from fedretina.plurals import counted

if TYPE_CHECKING:
    from fedretina.kit.startup_kit import StartupKit
    from fedretina.kit.waiting_plans import WaitingPlan

_USUAL_DAYS = 90
KIT = click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
_BY = click.option("--by", help="Name of the person who decides; without it, it is asked for on a terminal.")
_REASON = ("Reason (it stays here)", "a reason: give --reason")
# Not the account: these commands run as the service's user, whose name says nothing of who decided.
_WHO = ("Who decides", "the name of the person who makes it: give --by")


@click.command()
@KIT
@click.argument("plan", required=False)
@click.option("--yes/--no", "answer", default=None, help="The decision; without it, it is asked for on a terminal.")
@click.option("--reason", help="Why; it stays at the site.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help=f"Last day of a yes, UTC [{_USUAL_DAYS} days on].")
@click.option(
    "--standing",
    metavar="SETTINGS",
    help="A yes also to later plans of the same submitter that differ in these settings alone, such as "
    "seed,phases.rounds,training.learning_rate.",
)
@_BY
@click.option(
    "--json", "as_json", is_flag=True, help="For scripts: the plan with all its settings; nothing is decided."
)
def approve(
    folder: Path,
    plan: str | None,
    answer: bool | None,
    reason: str | None,
    until: datetime | None,
    standing: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    """Show what a run that waits at the site of a KIT would do, in plain words, and say yes or no.

    PLAN is its number or the run's name, where several wait. Without --yes or --no, and without a terminal, the plan is
    only shown. The decision is signed with the site's key and stands in its ledger. A yes is for this run of this plan
    until its last day: another run, changed settings, or a run that goes back asks again.
    """
    from fedretina.kit.approvals import Approvals, require_may_differ
    from fedretina.kit.site_check import site_settings
    from fedretina.kit.waiting_plans import WaitingPlans
    from fedretina.report.plan_words import plan_words

    open_ = [name.strip() for name in (standing or "").split(",") if name.strip()]
    try:
        kit = _own_kit(folder)
        found = WaitingPlans(kit).find(plan)
        if open_:
            require_may_differ(open_, found.asked)
        words = plan_words(found, site_settings(kit), _ledger_lines(kit))
        if as_json:
            click.echo(json.dumps({"words": dict(words), **found.asked._asdict()}, indent=1))
            return
        _show(words)
        if answer is None:
            if not sys.stdin.isatty():
                click.echo(f"\nNothing is decided: add --yes or --no, and --reason, to {found.asked.number}.")
                return
            answer = click.confirm("\nMay this run use your images?", default=None)
        reason = reason or _prompt(*_REASON)
        who = by or _prompt(*_WHO)
        last = until.date() if until else (datetime.now(UTC) + timedelta(days=_USUAL_DAYS)).date()
        number = Approvals(kit).decide(found.asked, answer, who, reason, last if answer else None, open_)
        WaitingPlans(kit).drop(found.asked)
        word = "run approved" if answer else "run refused"
        _audit(kit, word, found, number, who)
    except FedretinaError as error:
        fail(str(error))
    if answer:
        also = f", and so is every later plan of {found.asked.submitter} that differs in {', '.join(open_)} alone"
        click.echo(f"run {found.asked.run} is approved until {last}, as number {number}{also if open_ else ''}.")
        click.echo("The server asks again within half a minute. To take it back: `fedretina site withdraw`.")
    else:
        click.echo(f"run {found.asked.run} is refused. Its server is told so, and not the reason.")


@click.command()
@KIT
@click.option("--json", "as_json", is_flag=True, help="Every decision as it is kept, and what waits.")
def approvals(folder: Path, as_json: bool) -> None:
    """List what the hospital of a KIT has approved, refused and withdrawn, and which plans wait for it.

    Ends with code 1 when the signature of an approval does not hold, which then counts for nothing.
    """
    from fedretina.kit.approvals import Approvals
    from fedretina.kit.startup_kit import open_kit
    from fedretina.kit.waiting_plans import WaitingPlans

    try:
        kit = open_kit(folder)
        held = Approvals(kit)
        decisions, waiting = held.decisions(), WaitingPlans(kit).all()
    except FedretinaError as error:
        fail(str(error))
    false = [made for made in decisions if not held.is_genuine(made)]
    if as_json:
        listed = [{**made, "genuine": made not in false} for made in decisions]
        click.echo(json.dumps({"decisions": listed, "waiting": [plan.asked._asdict() for plan in waiting]}, indent=1))
    else:
        for made in decisions:
            click.echo(f"{'FAIL  its signature does not hold: ' if made in false else ''}{decision_words(made)}")
        for plan in waiting:
            click.echo(f"{plan.asked.number}  {plan.words}")
        if not decisions and not waiting:
            click.echo("nothing was decided, and nothing waits.")
    sys.exit(1 if false else 0)


@click.command()
@KIT
@click.argument("what", metavar="RUN|NUMBER")
@click.option("--reason", help="Why; it stays at the site.")
@_BY
def withdraw(folder: Path, what: str, reason: str | None, by: str | None) -> None:
    """Take an approval of the site of a KIT back: by its NUMBER, or all that lets a RUN go on.

    The run stops here at its next step, and an answer that is being worked on does not leave; where another approval
    lets it go on, the command says which. What has left before cannot be called back; it says what others keep.
    """
    from fedretina.kit.approvals import Approvals
    from fedretina.kit.end_status import EndFiles
    from fedretina.kit.waiting_plans import WaitingPlans

    try:
        kit = _own_kit(folder)
        held = Approvals(kit)
        here = EndFiles(kit).run_names() | {plan.asked.run for plan in WaitingPlans(kit).all()}
        one = next((made for made in held.decisions() if made["number"] == what), None)
        run = what if one is None else one["run"]
        reason, who = reason or _prompt(*_REASON), by or _prompt(*_WHO)
        held.withdraw(what, who, reason, here)
        _note(kit, "approval withdrawn", run=run, by=who)
        lines = [line for line in _ledger_lines(kit) if line["run"] == run]
        others, standing = held.lasting(run), held.standing() if run == what else []
    except FedretinaError as error:
        fail(str(error))
    click.echo(f"the approval of {what} is withdrawn{'.' if others else f': run {run} stops here at its next step.'}")
    for made in others:
        same = one is not None and (made["plan"], made["restart"]) == (one["plan"], one["restart"])
        goes_on = "goes on" if same else "goes on if it works by the plan of that one"
        click.echo(
            f"Approval {made['number']} holds until {made['until']}, so run {run} {goes_on}. To take it back too: "
            f"`fedretina site withdraw {folder} {made['number']}`."
        )
    if one is not None and "standing" in one:
        click.echo("It was a standing one: other runs that went on by it alone stop too.")
    for made in standing:
        click.echo(f"Standing approval {made['number']} goes on for other runs: withdraw it by its number.")
    click.echo(_kept_by_others(run, lines))


def decision_words(made: Mapping[str, Any]) -> str:
    """A decision in a line."""
    until = f" until {made['until']}" if made["until"] else ""
    wide = f", and all that differ in {', '.join(made['standing']['open'])} alone" if "standing" in made else ""
    asked = f", asked for by {made['submitter']}" if made["submitter"] else ""
    of = f" (number {made['of']})" if made.get("of") else ""
    run = f"run {made['run']}{of}{wide}{asked}"
    return f"{made['number']}  {made['decision']}{until}: {run}; by {made['by']}, {made['decided']}: {made['reason']}"


def _kept_by_others(run: str, lines: list[dict[str, Any]]) -> str:
    """What left before, which stays where it is."""
    from fedretina.report.text import size

    sent = [line for line in lines if line["tensors"] or line["scalars"]]
    if not sent:
        return f"Nothing of run {run} has left this site, so nobody keeps anything of it."
    kinds = sorted({kind for line in sent for kind in line["tensors"]})
    names = sorted({name for line in sent for name in line["scalars"]})
    return (
        f"What {counted(len(sent), 'message')} brought to the server stays with the others: "
        f"{size(sum(line['bytes'] for line in sent))} of {' and '.join(kinds) or 'no tensors'} are mixed into the "
        f"models of their steps, which the server and the other sites keep and use; the server keeps the figures "
        f"{', '.join(names) or '(none)'}. To have them deleted, ask the consortium; `fedretina site ledger` lists each."
    )


def _own_kit(folder: Path) -> StartupKit:
    from fedretina.kit.startup_kit import open_kit

    kit = open_kit(folder)
    if kit.role != "site":
        raise DataError(f"{folder} is no site's kit but that of {kit.name}: only a site approves runs.")
    owner = kit.folder.stat().st_uid
    if os.getuid() == 0 and owner != 0:
        raise DataError(
            "root's files would be closed to the service: run it as the kit's owner, "
            f"`sudo -u '#{owner}' fedretina site ... {kit.folder}`."
        )
    return kit


def _ledger_lines(kit: StartupKit) -> list[dict[str, Any]]:
    from fedretina.exchange.ledger import Ledger
    from fedretina.kit.site_check import site_ledgers, site_settings

    return [line for path in site_ledgers(kit, site_settings(kit)) for line in Ledger(path).lines()]


def _show(words: list[tuple[str, str]]) -> None:
    for what, said in words:
        lines = textwrap.wrap(said, 96, break_long_words=False, break_on_hyphens=False)
        click.echo(f"{what}:")
        click.echo(textwrap.indent("\n".join(lines), "    "))


def _prompt(what: str, lacks: str) -> str:
    if not sys.stdin.isatty():
        raise DataError(f"a decision needs {lacks}.")
    said: str = click.prompt(what)
    return said


def _audit(kit: StartupKit, word: str, plan: WaitingPlan, number: str, by: str) -> None:
    _note(kit, word, run=plan.asked.run, plan=plan.asked.number, decision=number, submitter=plan.asked.submitter, by=by)


def _note(kit: StartupKit, word: str, **fields: str) -> None:
    from fedretina.kit.audit import AuditLog

    try:
        AuditLog(kit.folder).note(word, **fields)
    except StateError as error:  # what was decided holds all the same: it stands in the signed list
        click.echo(f"warning: {error}", err=True)
