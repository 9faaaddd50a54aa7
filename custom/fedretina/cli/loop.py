"""A run on this machine: `fedretina loop` runs it, `show` and `report` say what is stored of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedretina.cli.shared import PHANTOMS, RUN, SITE, SITE_FILE, SITES, fail, progress, site_files, steps
from fedretina.errors import FedretinaError, SettingsError

if TYPE_CHECKING:
    from fedretina.settings.site import SiteDataSettings

_DAMAGED = "{} is damaged, or of another version: restore it from a backup, or use the version that wrote it."


@click.command()
@click.argument("experiment", metavar="ROW|FILE")
@click.option("--site", "pairs", type=SITE_FILE, multiple=True,
              help="A site and its site file; once a site.")  # fmt: skip
@click.option("--sites", type=SITES,
              help="Names of further sites, by comma: of phantom hospitals, or of the sites that FEDRETINA_SITE_FILE "
              "serves where it is set.  [default: site-1 to site-5, where there is no --site]")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), help="Rounds of each phase that trains [those of the experiment].")
@click.option("--set", "changes", metavar="KEY=VALUE", multiple=True,
              help="A setting of the experiment, such as training.epochs=2; may be repeated.")  # fmt: skip
@click.option("--root", type=click.Path(path_type=Path), default=Path("fedretina_runs"), help="Folder of runs.")
@click.option("--run", type=RUN,
              help="Name of the run, by default the experiment's; an unfinished one of that name goes on.")  # fmt: skip
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
    one machine. On a terminal a bar shows how many answers of sites are in.
    """
    from fedretina.settings.experiment import Experiment
    from fedretina.storage import require_sites

    try:
        files = site_files(pairs)
        names = require_sites([*files, *(sites or (() if files else PHANTOMS))])
        # Before torch is loaded, which takes seconds: a typo is told at once.
        settings = Experiment.resolve(_chosen(experiment, rounds, changes))
        run = run or settings.run or settings.name
        from fedretina.aggregation.results import results_table
        from fedretina.data.site_data import load_site_data
        from fedretina.loop import run_loop

        places = _places(names, files, settings.phantom_images)
        with steps() as tell_of:
            data = {
                site: load_site_data(
                    site,
                    places[site],
                    settings.images,
                    settings.seed,
                    root / "cache" / site,
                    settings.supervised,
                    partial(tell_of, f"images of {site}"),
                )
                for site in names
            }
        with progress("answers") as tell:
            click.echo(results_table(run_loop(settings, data, root, run, tell=tell)))
        _say_where(root / run / "server" / "results.json")
    except FedretinaError as error:
        fail(str(error))


def _chosen(named: str, rounds: int | None, changes: Sequence[str]) -> dict[str, Any]:
    """The settings of a file or of a row's own job, with what the options change of them."""
    from fedretina.jobs import settings_of_row
    from fedretina.settings.experiment import Experiment
    from fedretina.yaml_file import parse_yaml, read_yaml

    path = Path(named)
    if path.is_file() or path.suffix or len(path.parts) != 1:
        settings = read_yaml(path, "the experiment file")
    else:
        settings = parse_yaml(settings_of_row(named), "the row's settings")
    for change in changes:
        key, sign, value = change.partition("=")
        names = key.split(".")
        if not sign or not all(names):
            raise SettingsError(f"{change!r} is no KEY=VALUE: write it as training.epochs=2.")
        at = settings
        for name in names[:-1]:
            inner = at.get(name)
            if inner is not None and not isinstance(inner, dict):
                raise SettingsError(f"--set {key}: {name} holds no settings by name; set the whole of it, as YAML.")
            at[name] = dict(inner or {})
            at = at[name]
        at |= parse_yaml(f"{names[-1]}: {value}", f"the value of --set {key}")
    if rounds is not None:
        phases = Experiment.resolve(settings).phases
        given = settings.get("phases") or [{"name": phase.name} for phase in phases]
        settings["phases"] = [
            own if phase.task == "sums" else {**own, "rounds": rounds} for own, phase in zip(given, phases, strict=True)
        ]
    return settings


def _say_where(results: Path) -> None:
    """Where a run's figures, pages and models lie."""
    click.echo(f"results: {results}")
    if (page := results.with_name("report.html")).exists():
        click.echo(f"report over all sites: {page}")
    click.echo(f"a site's model, card and report: {results.parent.parent}/<site>/final/")


def _places(names: Sequence[str], files: dict[str, str], phantom_images: int) -> dict[str, SiteDataSettings]:
    """Where the data of each site lie: its own file, else that of the environment, else a phantom hospital."""
    from fedretina.settings.site import SITE_FILE as VARIABLE
    from fedretina.settings.site import read_data_settings, read_site_settings

    found: dict[str, SiteDataSettings] = {}
    for site in names:
        own = files.get(site)
        data = read_site_settings({}, site, Path.cwd()).data if own is None else read_data_settings(Path(own), site)
        if data.manifest is None:
            if not phantom_images:
                raise SettingsError(
                    f"{site} has no data, and the experiment takes no phantom hospitals (phantom_images: 0): name its "
                    f"site file (--site {site}=FILE), or set phantom_images to 16 or more."
                )
            data = data.model_copy(update={"phantom_images": phantom_images})
        elif own is None and any(other.manifest == data.manifest for other in found.values()):
            raise SettingsError(
                f"{VARIABLE} gives several sites one manifest: write {{SITE_NAME}} into its path or its data's, name "
                "one site (--sites), or name a file for each (--site NAME=FILE)."
            )
        found[site] = data
    return found


@click.command()
@click.argument("run", type=RUN, required=False)
@click.option("--root", type=click.Path(path_type=Path), default=Path("fedretina_runs"), help="Folder of runs.")
def show(run: str | None, root: Path) -> None:
    """Print the table of a finished RUN, of the latest one by default, and where its results lie."""
    from fedretina.aggregation.results import results_table
    from fedretina.storage import read_json

    found = sorted(root.glob("*/server/results.json"), key=lambda path: path.stat().st_mtime)
    path = root / run / "server" / "results.json" if run else (found[-1] if found else None)
    if path is None or not path.exists():
        named = f"finished run {run}" if run else "finished run"
        fail(f"no {named} under {root}: give --root, or run `nvflare simulator jobs/feduaa`.")
    try:
        click.echo(results_table(read_json(path)))
    except FedretinaError as error:
        fail(str(error))
    except (KeyError, TypeError, AttributeError):  # whatever of a record is not there
        fail(f"{path} is damaged, or no results.json of fedretina: restore it from a backup.")
    _say_where(path)


@click.command()
@click.argument("run", required=False)
@click.option("--root", type=click.Path(path_type=Path), default=Path("fedretina_runs"), help="Folder of runs.")
@click.option("--site", type=SITE, help="Render this site's report, from its stored figures.")
@click.option("--server", "at_server", is_flag=True, help="Render the server's report; this is the default.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the page goes; by default beside what is stored.")
def report(run: str | None, root: Path, site: str | None, at_server: bool, out: Path | None) -> None:
    """Render the report of RUN, of the latest finished run by default.

    RUN is a run's name, its folder, or the path of a report.json.

    The page is one HTML file that needs nothing else. At the server it is made of `server/results.json`, and
    `server/report.json` is written with it; at a site (--site NAME) of `NAME/final/report.json`, which the run has
    written. A site's page names files and shows images of patients: it stays at the site.
    """
    from fedretina.report.render import write_page

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


def _stored(root: Path, run: str | None, site: str | None) -> Path:
    part = Path("server/results.json") if site is None else Path(site) / "final" / "report.json"
    named = [root / run, Path(run)] if run else list(root.glob("*"))  # a name, or the run's folder wherever it lies
    runs = [folder for folder in named if folder.is_dir()][: 1 if run else None]
    found = sorted((path for path in (folder / part for folder in runs) if path.exists()), key=_changed)
    if not found:
        who = "finished run" if site is None else f"report of {site} in a run"
        which = f" {run}" if run else ""
        fail(f"no {who}{which} under {root}: give --root, or end the run first; see `fedretina show`.")
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
