"""`fedretina benchmark`: rows times seeds over given sites, and the papers' tables from what came out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from fedretina.cli.shared import SITE_FILE, SITES, fail, site_files, steps
from fedretina.errors import FedretinaError


@click.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the benchmark.")
@click.option("--plan", "plan_file", type=click.Path(exists=True, path_type=Path), help="Settings laid over the plan.")
@click.option("--site", "sites", type=SITE_FILE, multiple=True, help="A site and its site file; once a site.")
@click.option("--phantoms", type=SITES, help="Names of phantom sites, by comma, where no --site is given.")
@click.option("--rows", default="", help="Only these rows and variants of the plan, by comma.")
@click.option("--seeds", default="", help="Seeds, by comma, in place of the plan's.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time.")
@click.option("--render", is_flag=True, help="Train nothing; only write tables and page anew.")
@click.option("--stored", type=click.Path(path_type=Path), help="Begin with the results of this packed file.")
@click.option("--store", type=click.Path(path_type=Path), help="Pack all results into this file at the end.")
@click.option("--page", type=click.Path(path_type=Path), help="The page; OUT/page.md by default.")
@click.option("--pictures", type=click.Path(path_type=Path), help="Folder of its pictures; OUT/pictures by default.")
@click.option(
    "--encoders", type=click.Path(path_type=Path), multiple=True, help="o1, p1: folder of `p1-oct` or `p1-fundus`."
)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="paper-size, gpu: end within so many minutes.")
@click.option("--cache", type=click.Path(path_type=Path), help="paper-size, gpu: image caches; OUT-cache by default.")
@click.option("--state-mb", type=click.IntRange(0), help="paper-size: most that unfinished runs leave; 10000.")
def benchmark(
    name: str,
    out: Path,
    plan_file: Path | None,
    sites: tuple[tuple[str, str], ...],
    phantoms: tuple[str, ...] | None,
    rows: str,
    seeds: str,
    jobs: int,
    render: bool,
    stored: Path | None,
    store: Path | None,
    page: Path | None,
    pictures: Path | None,
    encoders: tuple[Path, ...],
    minutes: float | None,
    cache: Path | None,
    state_mb: int | None,
) -> None:
    """Run the benchmark NAME and write its tables: a paper's, `paper-size`, `gpu`, or your own plan (PLAN.yaml).

    The papers' are `feduaa`, `oct`, and those of FedEE, named below.

    `f1`, `f2`, `e1`, `e1-scans`, `trunk`, `o1` (scans, at 4, 8 and 16 clients), `p1` and `p1-photographs` are blocks of
    draws with their controls, on an encoder that stands still; in `f3` and `f3-scans` networks train whole beside it
    (docs/paper_tables.md). `p1-oct` and `p1-fundus` pre-train the encoders of `o1`, `f3-scans` and both `p1` without
    labels, some minutes more with each call. These blocks do it first, in OUT, unless --encoders is a folder of them;
    of an encoder that several folders hold the first that fits the sites is taken.

    FedEE's tables are those of `fedee` (fundus photographs), `fedee-oct` (OCT scans), `fedee-dermoscopy`,
    `fedee-heart` and `fedee-activity`.
    `paper-size` takes the papers' networks and images, for a machine with a GPU that is lent for minutes: it does the
    most telling runs first, ends within --minutes, and goes on in the next call, on any machine that OUT is taken to.

    `gpu` measures, on such a machine too, what a card is used for: real input against synthetic, the share of the
    card's arithmetic, what precision and kernels cost in bits, several sites on one card. It draws its images.

    Stopped at any moment, it goes on where it stopped when it is called again; rows and seeds may be added later.
    `--out` holds the results, `page.md` with the tables, and, for eyes at this machine only, models and answers to
    single images.
    """
    if find_spec("pandas") is None:
        fail('the tables of a benchmark need pandas, which is not installed: run `pip install "pandas>=3,<4"`.')
    from fedretina.errors import SettingsError
    from fedretina.settings.plan import merged
    from fedretina_papers.kinds import DEFAULT, kind_of
    from fedretina_papers.packed import pack, unpack
    from fedretina_papers.paper_size.limits import Limits
    from fedretina_papers.plan import asked_plan
    from fedretina_papers.runner import Told

    def tell(told: Told) -> None:
        left = "" if told.seconds_left is None else f"; about {told.seconds_left / 60:.0f} min left"
        click.echo(f"{told.done} of {told.total}: {told.words}{left}")

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the workers; torch's threads are a setting
    limits = Limits(minutes, cache, state_mb)
    try:
        own = _plan_of(plan_file)
        settings = merged(asked_plan(name), own) | ({"sites": own["sites"]} if "sites" in own else {})
        files = {site: str(Path(file).resolve()) for site, file in site_files(sites).items()}
        settings["sites"] = files or dict.fromkeys(phantoms or ()) or settings.get("sites", {})
        spare = settings.get("spare_sites")
        if isinstance(spare, dict):
            settings["spare_sites"] = {site: file for site, file in spare.items() if site not in settings["sites"]}
        if rows:
            settings = _chosen(settings, name, rows)
        if encoders and not render:
            settings["encoders"] = _encoders(settings, encoders)
        if seeds:
            settings["seeds"] = _numbers(seeds)
        kind = kind_of(str(settings.get("paper", DEFAULT)))
        prepared = kind.prepare(settings, limits)
        if stored:
            unpack(stored, out)
        if render and not kind.unrun and not (out / "results").is_dir():
            raise SettingsError(f"{out} holds no results of a benchmark to render: run it first, without --render.")
        with steps() as read:
            missing = {} if render else prepared.run(out, jobs, tell, read)
        prepared.compare(out)
        if prepared.cases(out, out / "cases.html"):
            click.echo(f"wrote {out / 'cases.html'}: it shows test images and stays on this machine")
        written = page or out / "page.md"
        kind.render(out, written, pictures or out / "pictures")
        if store:
            pack(out, store, leave=(*kind.unfinished, "cache"))
    except FedretinaError as error:
        fail(str(error))
    click.echo(f"wrote {written}")
    if missing:
        fail("runs are missing: " + "; ".join(f"{run}: {why}" for run, why in missing.items()))


def _plan_of(path: Path | None) -> dict[str, Any]:
    from fedretina.yaml_file import read_yaml

    return {} if path is None else read_yaml(path, "the plan")


def _encoders(settings: dict[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """The encoders of the folders that the plan's rows stand on; of those of one name the first that fits the sites."""
    from fedretina.errors import SettingsError
    from fedretina_papers.pretraining import given_encoders

    starts = {row["start"] for row in settings.get("rows", []) if isinstance(row, dict) and row.get("start")}
    starts |= {one["name"] for one in settings.get("starts", []) if isinstance(one, dict) and one.get("of") in starts}
    if not starts:
        raise SettingsError(f"--encoders: no row of {settings.get('name')} stands on a pre-trained encoder; drop it.")
    found: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        for name, one in given_encoders(folder).items():
            found.setdefault(name, []).append(one)
    told, held = " and ".join(folder.name for folder in folders), dict[str, Any]()
    for name in sorted(starts):
        if name not in found:
            raise SettingsError(f"no encoder {name} in {told}, of {', '.join(found)}: pre-train it first.")
        fitting = [one for one in found[name] if _fits(one, settings["sites"])]
        if not fitting:
            raise SettingsError(
                f"the encoders {name} in {told} are of other sites: pre-train with the sites that the block is given."
            )
        held[name] = fitting[0]
    return held


def _fits(encoder: Mapping[str, Any], sites: Iterable[str]) -> bool:
    """Whether all sites have the same encoder, or each of these has one of its own."""
    files = encoder["files"]
    return len({one["sha256"] for one in files.values()}) == 1 or set(sites) <= set(files)


def _chosen(settings: dict[str, Any], name: str, rows: str) -> dict[str, Any]:
    """The plan with the asked rows alone; a row of the table that the plan leaves out may be asked for too."""
    from fedretina.errors import SettingsError
    from fedretina.rows import ROWS
    from fedretina.settings.faults import did_you_mean

    if "rows" not in settings:
        raise SettingsError(f"the benchmark {name} has no rows to choose from: say what to leave out in a --plan.")
    wanted = [row.strip() for row in rows.split(",") if row.strip()]
    named, readings = _by_name(settings["rows"], "rows"), _by_name(settings.get("readings") or [], "readings")
    for row in wanted:
        if row not in {*named, *readings, *ROWS}:
            meant = did_you_mean(row, [*named, *readings])
            raise SettingsError(f"there is no row {row!r} in the benchmark {name}: {meant}")
    chosen = [named.get(row, row) for row in wanted if row not in readings]
    kept = _by_name(chosen, "rows")
    left = [one for one in readings.values() if not isinstance(one, dict) or one.get("of") in kept]
    if "pairs" in settings:
        settings = {**settings, "pairs": [pair for pair in settings["pairs"] if set(pair) <= set(kept)]}
    if "only" in settings:
        only = {size: [row for row in some if row in kept] for size, some in settings["only"].items()}
        settings = {**settings, "only": only}
    if any("rows" in case for case in settings.get("cases", [])):
        cases = [
            case | {"rows": [row for row in case.get("rows", ()) if row in kept]}
            for case in settings["cases"]
            if not case.get("rows") or set(case["rows"]) & set(kept)  # an empty list would mean all
        ]
        settings = {**settings, "cases": cases}
    return {**settings, "rows": chosen} | ({"readings": left} if "readings" in settings else {})


def _by_name(listed: Any, what: str) -> dict[str, Any]:
    from fedretina.errors import SettingsError

    if not isinstance(listed, list) or not all(isinstance(one, str | dict) for one in listed):
        raise SettingsError(f"{what} of the plan is a list: write `- name: NAME` lines.")
    return {str(one.get("name")) if isinstance(one, dict) else one: one for one in listed}


def _numbers(text: str) -> list[int]:
    from fedretina.errors import SettingsError

    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"--seeds {text!r} are no whole numbers by comma.") from error
