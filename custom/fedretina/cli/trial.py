"""What `loop` and `simulate` share: the words of a run on this machine, its settings, its sites, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedretina.cli.shared import RUN, SITE_FILE, SITES, say
from fedretina.errors import SettingsError

if TYPE_CHECKING:
    from fedretina.settings.experiment import Experiment
    from fedretina.settings.site import SiteSettings

ROOT = Path("fedretina_runs")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def run_words(command: _Command) -> _Command:
    """Give a command the argument and options that say which run, over which sites, and where."""
    for add in reversed(
        (
            click.argument("experiment", metavar="ROW|FILE"),
            click.option("--site", "pairs", type=SITE_FILE, multiple=True,
                         help="A site and its site file; once a site."),
            click.option("--sites", type=SITES,
                         help="Names of further sites, by comma: of phantom hospitals, or of the sites that "
                         "FEDRETINA_SITE_FILE serves where it is set.  [default: site-1 to site-5, where there is no "
                         "--site]"),
            click.option("--rounds", type=click.IntRange(1),
                         help="Rounds of each phase that trains [those of the experiment]."),
            click.option("--set", "changes", metavar="KEY=VALUE", multiple=True,
                         help="A setting of the experiment, such as training.epochs=2; may be repeated."),
            click.option("--root", type=click.Path(path_type=Path), default=ROOT, help="Folder of runs."),
            click.option("--run", type=RUN,
                         help="Name of the run, by default the experiment's; an unfinished one of that name goes on."),
        )
    ):  # fmt: skip
        command = add(command)
    return command


def chosen(named: str, rounds: int | None, changes: Sequence[str]) -> dict[str, Any]:
    """The settings of a file or of a row's own job, with what the options change of them.

    Args:
        named: A row, or the path of an experiment file.
        rounds: Rounds of each phase that trains; None for those of the settings.
        changes: Settings as KEY=VALUE.

    Raises:
        SettingsError: There is no such row or file, or an option cannot be used.
    """
    from fedretina.jobs import settings_of_row
    from fedretina.settings.experiment import Experiment
    from fedretina.yaml_file import parse_yaml, read_yaml

    path = Path(named)
    if path.is_file() or path.suffix or len(path.parts) != 1:
        settings = read_yaml(path, "the experiment file")
    else:
        recipes = [change for change in changes if change.partition("=")[0] == "recipe"]
        recipe = _value(recipes[-1])["recipe"] if recipes else None
        settings = parse_yaml(settings_of_row(named, recipe), "the row's settings")
    for change in changes:
        key, sign, _ = change.partition("=")
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
        at |= _value(change)
    if rounds is not None:
        phases = Experiment.resolve(settings).phases
        given = settings.get("phases") or [{"name": phase.name} for phase in phases]
        settings["phases"] = [
            own if phase.task == "sums" else {**own, "rounds": rounds} for own, phase in zip(given, phases, strict=True)
        ]
    return settings


def _value(change: str) -> dict[str, Any]:
    """The last name of a setting KEY=VALUE, with its value."""
    from fedretina.yaml_file import parse_yaml

    key, _, value = change.partition("=")
    return parse_yaml(f"{key.rpartition('.')[2]}: {value}", f"the value of --set {key}")


def settings_of_sites(names: Sequence[str], files: dict[str, str], phantom_images: int) -> dict[str, SiteSettings]:
    """The settings of each site: of its own file, else of the environment's, else a phantom hospital's.

    Args:
        names: Names of the sites.
        files: Site files by site.
        phantom_images: As in the experiment; 0 takes no phantom hospitals.

    Raises:
        DataError: A site file cannot be used.
        SettingsError: A site has no data and phantoms are not taken, or several sites have one manifest.
    """
    from fedretina.settings.site import SITE_FILE as VARIABLE
    from fedretina.settings.site import read_site_file, read_site_settings

    found: dict[str, SiteSettings] = {}
    for site in names:
        own = files.get(site)
        # Absolute, since another process may read what stands there.
        file = None if own is None else Path(own).absolute()
        settings = read_site_settings({}, site, Path.cwd()) if file is None else read_site_file(file, site)
        data = settings.data
        if data.manifest is None:
            if not phantom_images:
                raise SettingsError(
                    f"{site} has no data, and the experiment takes no phantom hospitals (phantom_images: 0): name its "
                    f"site file (--site {site}=FILE), or set phantom_images to 16 or more."
                )
        elif same := [name for name, other in found.items() if _one_file(other.data.manifest, data.manifest)]:
            if own is None and same[0] not in files:
                raise SettingsError(
                    f"{VARIABLE} gives several sites one manifest: write {{SITE_NAME}} into its path or its data's, "
                    "name one site (--sites), or name a file for each (--site NAME=FILE)."
                )
            raise SettingsError(
                f"{same[0]} and {site} have one manifest, and would be one hospital under two names: name another "
                "site file for one of them (--site NAME=FILE), or leave it out."
            )
        found[site] = settings
    return found


def _one_file(one: Path | None, other: Path) -> bool:
    return one is not None and one.resolve() == other.resolve()


def without_keys(experiment: Experiment, sites: Mapping[str, SiteSettings]) -> dict[str, SiteSettings]:
    """The settings of each site without its keys, which the server of a trial has no half of; a line says so.

    Args:
        experiment: The run's settings.
        sites: Settings of each site.

    Raises:
        SettingsError: The run does not begin without keys.
    """
    sums = experiment.sums
    for name, demanded, plain in (
        ("exchange.encrypt", experiment.exchange.encrypt != "nothing", "nothing"),
        ("phases[].sums.encrypt", sums is not None and sums.encrypt == "always", "with_keys"),
    ):
        if demanded:
            raise SettingsError(
                f"the run encrypts ({name}), and a trial runs without keys: set it to {plain} for the trial, or "
                "rehearse in FLARE's POC, whose server names its half of the keys too (docs/encrypted_heads.md)."
            )
    keyed = [site for site, own in sites.items() if own.he_keys is not None]
    if keyed and sums is not None:
        said = f"a trial runs without keys: he_keys of {', '.join(keyed)} is not read, and sums are not encrypted."
        say(said, {"warning": said})
    return {site: own.model_copy(update={"he_keys": None}) if site in keyed else own for site, own in sites.items()}


def say_end(results: Path) -> None:
    """Print a finished run's table, the verdict of each site, and where everything lies.

    A verdict is the site's own and does not leave it: none is printed where the sites are on machines of their own.

    Args:
        results: The run's `results.json`.

    Raises:
        StateError: What is stored cannot be read.
    """
    from fedretina.aggregation.results import results_table
    from fedretina.storage import read_json

    record = read_json(results)
    click.echo(results_table(record))
    finals = {site: results.parent.parent / site / "final" for site in sorted(record["sites"])}
    for site, final in finals.items():
        stored = final / "report.json"
        verdict = read_json(stored).get("verdict") if stored.exists() else None
        if verdict:
            # Here, since a server's run has none, and it imports numpy.
            from fedretina.report.verdict_words import verdict_sentence

            click.echo(f"{site}: {verdict_sentence(verdict)}")
    click.echo(f"results: {results}")
    if (page := results.with_name("report.html")).exists():
        click.echo(f"report over all sites: {page}")
    click.echo(f"a site's model, card and report: {results.parent.parent}/<site>/final/")
    for site, final in finals.items():
        if (page := final / "report.html").exists():
            click.echo(f"report of {site}: {page}")
