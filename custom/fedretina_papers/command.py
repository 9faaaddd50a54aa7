"""`fedretina benchmark`: rows times seeds over given sites, and the papers' tables from what came out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from fedretina.commands.lazy import fail
from fedretina.errors import FedretinaError


@click.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the benchmark.")
@click.option("--plan", "plan_file", type=click.Path(exists=True, path_type=Path), help="Settings laid over the plan.")
@click.option("--site", "sites", multiple=True, help="A site and its site file, as NAME=FILE; once a site.")
@click.option("--phantoms", default="", help="Names of phantom sites, by comma, where no --site is given.")
@click.option("--rows", default="", help="Only these rows and variants of the plan, by comma.")
@click.option("--seeds", default="", help="Seeds, by comma, in place of the plan's.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time.")
@click.option("--render", is_flag=True, help="Train nothing; only write tables and page anew.")
@click.option("--stored", type=click.Path(path_type=Path), help="Begin with the results of this packed file.")
@click.option("--store", type=click.Path(path_type=Path), help="Pack all results into this file at the end.")
@click.option("--page", type=click.Path(path_type=Path), help="The page; OUT/page.md by default.")
@click.option("--pictures", type=click.Path(path_type=Path), help="Folder of its pictures; OUT/pictures by default.")
def benchmark(
    name: str,
    out: Path,
    plan_file: Path | None,
    sites: tuple[str, ...],
    phantoms: str,
    rows: str,
    seeds: str,
    jobs: int,
    render: bool,
    stored: Path | None,
    store: Path | None,
    page: Path | None,
    pictures: Path | None,
) -> None:
    """Run the benchmark NAME and write its tables: `feduaa`, `oct`, `oct-labels`, or one of FedEE's.

    `oct-labels` asks what pre-training without labels is worth where labels are few. FedEE's tables are those of
    `fedee` (fundus photographs), `fedee-oct` (OCT scans), `fedee-dermoscopy`, `fedee-heart` and `fedee-activity`.

    Stopped at any moment, it goes on where it stopped when it is called again; rows and seeds may be added later.
    `--out` holds the results, `page.md` with the tables, and, for eyes at this machine only, models and answers to
    single images.
    """
    from fedretina.errors import SettingsError
    from fedretina.phases import merged
    from fedretina_papers.compared import statistics
    from fedretina_papers.kinds import kind_of
    from fedretina_papers.packed import pack, unpack
    from fedretina_papers.plan import preset
    from fedretina_papers.runner import Told

    def tell(told: Told) -> None:
        left = "" if told.seconds_left is None else f"; about {told.seconds_left / 60:.0f} min left"
        click.echo(f"{told.done} of {told.total}: {told.words}{left}")

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the workers; torch's threads are a setting
    try:
        words = merged(preset(name), _words(plan_file))
        words["sites"] = _sites(sites, phantoms) or words.get("sites", {})
        if words.get("spare_sites"):
            spare = {site: file for site, file in words["spare_sites"].items() if site not in words["sites"]}
            words["spare_sites"] = spare
        if rows and "rows" not in words:
            raise SettingsError(f"the benchmark {name} has no rows to choose from: say what to leave out in a --plan.")
        if rows:
            wanted = [row.strip() for row in rows.split(",")]
            named = {row if isinstance(row, str) else row["name"]: row for row in words["rows"]}
            readings = {one["name"]: one for one in words.get("readings", ())}
            words["rows"] = [named.get(row, row) for row in wanted if row not in readings]
            kept = {row if isinstance(row, str) else row["name"] for row in words["rows"]}
            words["readings"] = [one for one in readings.values() if one["of"] in kept]
        if seeds:
            words["seeds"] = _numbers(seeds)
        kind = kind_of(words)
        prepared = kind.prepare(words)
        if stored:
            unpack(stored, out)
        missing = {} if render else prepared.run(out, jobs, tell)
        if (out / "answers").exists():  # a folder of results alone brings its statistics along
            statistics(out)
            if prepared.cases(out, out / "cases.html"):
                click.echo(f"wrote {out / 'cases.html'}: it shows test images and stays on this machine")
        written = page or out / "page.md"
        kind.render(out, written, pictures or out / "pictures")
        if store:
            pack(out, store)
    except FedretinaError as error:
        fail(str(error))
    click.echo(f"wrote {written}")
    if missing:
        fail("runs are missing: " + "; ".join(f"{run}: {why}" for run, why in missing.items()))


def _words(path: Path | None) -> dict[str, Any]:
    import yaml

    from fedretina.errors import SettingsError

    if path is None:
        return {}
    try:
        words = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"the plan {path.name} cannot be read: {type(error).__name__}.") from error
    if not isinstance(words, dict):
        raise SettingsError(f"the plan {path.name} holds no settings: write `name: value` lines.")
    return words


def _sites(pairs: tuple[str, ...], phantoms: str) -> dict[str, str | None]:
    from fedretina.errors import SettingsError

    found: dict[str, str | None] = {}
    for pair in pairs:
        site, sign, file = pair.partition("=")
        if not (site and sign and file):
            raise SettingsError(f"--site {pair!r} is no NAME=FILE: name the site, then its site file.")
        found[site] = str(Path(file).resolve())
    return found or {site.strip(): None for site in phantoms.split(",") if site.strip()}


def _numbers(words: str) -> list[int]:
    from fedretina.errors import SettingsError

    try:
        return [int(word) for word in words.split(",")]
    except ValueError as error:
        raise SettingsError(f"--seeds {words!r} are no whole numbers by comma.") from error
