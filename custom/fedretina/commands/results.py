"""`fedretina results`: fetch what a job left, and print its table."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.commands.admin import FETCH_S, JOB_FAILED, TimeLimit, admin_command, connected, end, job_record, tell


@click.command()
@click.argument("job", required=False)
@click.option("--run", help="Instead of a job: the newest job of this run.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("fedretina_results"),
    show_default=True,
    help="Folder to download into; the job gets a folder of its own in it.",
)
@admin_command(FETCH_S)
def results(
    job: str | None, run: str | None, out: Path, kit: Path, timeout: TimeLimit, connect_timeout: float, as_json: bool
) -> None:
    """Download a JOB that has ended and print the run's table.

    What comes is what FLARE keeps of a job at the server (its configuration and the server's logs), and with it, in
    workspace/fedretina, the run's results.json and table: sites' scalars, no model and nothing of an image.

    Exit codes: 0 the results are there, 1 the job left none, with the reason, 2 no server answers, 3 there is no such
    job or run, 4 the job has not ended, or the time of --timeout is over.
    """
    from fedretina.aggregation.results_table import results_table
    from fedretina.flare.admin_jobs import find_job
    from fedretina.flare.admin_runs import fetch, outcome_of, results_file
    from fedretina.storage import read_json

    with connected(kit, connect_timeout, as_json, timeout) as session:
        found = find_job(session, job, run)
        folder = fetch(session, found, out)
        path, became = results_file(folder), outcome_of(folder, found)
        if path is None:
            end(f"{became.why} What it left lies in {folder}.", JOB_FAILED, as_json)
        words = [results_table(read_json(path)), f"results: {path}"]
        if path.with_name("report.html").exists():
            words.append(f"report over all sites: {path.with_name('report.html')}")
        words += [line for line in (became.why or "").splitlines() if line not in words[0]]
        record = {**job_record(found), "folder": str(folder), "results_file": str(path), "results": read_json(path)}
        tell(record, "\n".join(words), as_json)
