"""A run on this machine: `fedretina loop` runs it, `show` and `report` say what is stored of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from fedretina.cli.shared import PHANTOMS, RUN, SITE, fail, progress, site_files, steps
from fedretina.cli.trial import ROOT, chosen, run_words, say_end, settings_of_sites, without_keys
from fedretina.errors import FedretinaError

_DAMAGED = "{} is damaged, or of another version: restore it from a backup, or use the version that wrote it."


@click.command()
@run_words
def loop(
    experiment: str,
    pairs: tuple[tuple[str, str], ...],
    sites: tuple[str, ...] | None,
    rounds: int | None,
    changes: tuple[str, ...],
    root: Path,
    run: str | None,
) -> None:
    """Run a row, or an experiment file, over sites in the plain loop, without FLARE.

    A ROW (`fedretina methods` lists them) has the settings of the job of its name that `fedretina job write` writes.

    All sites' images are read by this one process, and no policy of a site holds anything back: it is for research on
    one machine. `fedretina simulate` takes the same words and runs through FLARE, with the same bits. On a terminal a
    bar shows how many answers of sites are in. The run ends with code 2 if a site has no model in the end.
    """
    from fedretina.settings.experiment import Experiment
    from fedretina.storage import require_sites

    try:
        files = site_files(pairs)
        names = require_sites([*files, *(sites or (() if files else PHANTOMS))])
        # Before torch is loaded, which takes seconds: a typo is told at once.
        settings = Experiment.resolve(chosen(experiment, rounds, changes))
        run = run or settings.run or settings.name
        own_files = without_keys(settings, settings_of_sites(names, files, settings.phantom_images))
        from fedretina.data.site_data import load_site_data
        from fedretina.loop import run_loop
        from fedretina.settings.site import job_data

        weights = next((own.weights_file for own in own_files.values() if own.weights_file is not None), None)
        if weights is not None:  # one file on one machine; it is compared with the SHA-256 of the settings
            settings = settings.with_weights_file(weights)
        with steps() as tell_of:
            data = {
                site: load_site_data(
                    site,
                    job_data(site, own_files[site].data, settings.phantom_images),
                    settings.images,
                    settings.seed,
                    root / "cache" / site,
                    settings.supervised,
                    partial(tell_of, f"images of {site}"),
                    settings.trains,
                )
                for site in names
            }
        with progress("answers") as tell:
            found = run_loop(settings, data, root, run, tell=tell)
        say_end(root / run / "server" / "results.json")
        if without := found["without_result"]:
            fail(f"no model for {', '.join(without)}: what stands below the table says why.")
    except FedretinaError as error:
        fail(str(error))


@click.command()
@click.argument("run", type=RUN, required=False)
@click.option("--root", type=click.Path(path_type=Path), default=ROOT, help="Folder of runs.")
def show(run: str | None, root: Path) -> None:
    """Print the table of a finished RUN, of the latest one by default, and where its results lie.

    Where its sites are on this machine, too, each hospital's verdict stands below the table.
    """
    found = sorted(root.glob("*/server/results.json"), key=lambda path: path.stat().st_mtime)
    path = root / run / "server" / "results.json" if run else (found[-1] if found else None)
    if path is None or not path.exists():
        named = f"finished run {run}" if run else "finished run"
        fail(f"no {named} under {root}: give --root, or run `fedretina simulate feduaa`.")
    try:
        say_end(path)
    except FedretinaError as error:
        fail(str(error))
    except (KeyError, TypeError, AttributeError):  # whatever of a record is not there
        fail(f"{path} is damaged, or no results.json of fedretina: restore it from a backup.")


@click.command()
@click.argument("run", required=False)
@click.option("--root", type=click.Path(path_type=Path), default=ROOT, help="Folder of runs.")
@click.option("--site", type=SITE, help="Render this site's report, from its stored figures.")
@click.option("--server", "at_server", is_flag=True, help="Render the server's report; this is the default.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the page goes; by default beside what is stored.")
@click.option(
    "--decisions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A CSV that the page of a work list saved; repeat it for several readers. Needs --list.",
)
@click.option(
    "--list",
    "work_list",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the work list that the decisions are on: the --out of `fedretina predict`.",
)
def report(
    run: str | None,
    root: Path,
    site: str | None,
    at_server: bool,
    out: Path | None,
    decisions: tuple[Path, ...],
    work_list: Path | None,
) -> None:
    """Render the report of RUN, of the latest finished run by default.

    RUN is a run's name, its folder, or the path of a report.json.

    The page is one HTML file that needs nothing else. At the server it is made of `server/results.json`, and
    `server/report.json` is written with it; at a site (--site NAME) of `NAME/final/report.json`, which the run has
    written. A site's page names files and shows images of patients: it stays at the site.

    With --decisions and --list it renders how doctors' decisions on a work list compare with the answers: patients that
    the list missed, agreement, kappa, and where they differ. It writes reading.html and reading.json into the folder of
    the list, where they stay.
    """
    from fedretina.report.render import write_page

    if decisions or work_list is not None:
        if run is not None or site is not None or at_server:
            fail("--decisions is about a work list, not about a run: leave out RUN, --site and --server.")
        if not decisions or work_list is None:
            fail("--decisions and --list belong together: name the saved decisions and the folder of their work list.")
        _reading(decisions, work_list, out)
        return

    if site is not None and at_server:
        fail("--site and --server exclude each other: choose one.")
    try:
        given = Path(run) if run and run.endswith(".json") else None
        source = given or _stored(root, run, site)
        record = _record(source, write=given is None)
        page = _page(source, record)
        target = out or source.with_name("report.html")
        write_page(target, page)
    except FedretinaError as error:
        fail(str(error))
    click.echo(f"report: {target}")


def _reading(files: tuple[Path, ...], folder: Path, out: Path | None) -> None:
    from fedretina.prediction.decisions import joined, read_list, reading_record
    from fedretina.report.render import render_reading, write_page
    from fedretina.report.summary import reading_summary
    from fedretina.storage import write_json

    try:
        of = read_list(folder)
        record = reading_record(joined(files, of), of)
        target = out or folder / "reading.html"
        write_json(target.with_suffix(".json"), record)
        write_page(target, render_reading(record))
    except FedretinaError as error:
        fail(str(error))
    for one in record["readers"]:
        for sentence in reading_summary(one, record["referable"], of.ordered):
            click.echo(f"{one['reader']}: {sentence}" if one["reader"] else sentence)
    click.echo(of.record["notice"])
    click.echo(f"report: {target}")


def _stored(root: Path, run: str | None, site: str | None) -> Path:
    from fedretina.local.site_state import without_model

    part = Path("server/results.json") if site is None else Path(site) / "final" / "report.json"
    named = [root / run, Path(run)] if run else list(root.glob("*"))  # a name, or the run's folder wherever it lies
    runs = [folder for folder in named if folder.is_dir()][: 1 if run else None]
    found = sorted((path for path in (folder / part for folder in runs) if path.exists()), key=_changed)
    if not found:
        who = "finished run" if site is None else f"report of {site} in a run"
        which = f" {run}" if run else ""
        why = "" if site is None else next(filter(None, (without_model(folder / site) for folder in runs)), "")
        fail(f"no {who}{which} under {root}: give --root, or end the run first; see `fedretina show`.{why}")
    return found[-1]


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _record(source: Path, write: bool) -> dict[str, Any]:
    from fedretina.report.server_report import server_report
    from fedretina.storage import read_json, write_json

    record = read_json(source)
    if "kind" in record:
        return record
    if "sites" not in record:
        fail(f"{source} is neither a report.json nor a results.json of fedretina: name one of those.")
    try:
        record = server_report(record)
    except (KeyError, TypeError, AttributeError):
        fail(_DAMAGED.format(source))
    if write:
        write_json(source.with_name("report.json"), record)
    return record


def _page(source: Path, record: dict[str, Any]) -> str:
    from fedretina.report.render import render_server, render_site

    try:
        return render_site(record) if record["kind"] == "site" else render_server(record)
    except (KeyError, TypeError, AttributeError):  # whatever of a record is not there
        fail(_DAMAGED.format(source))
