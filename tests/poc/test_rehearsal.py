"""`python -m poc` as its user runs it: the loop's bits, and nothing left behind, three rehearsals at the same time."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from poc.processes import belonging, end_all
from simulation import REPOSITORY, SMALL, results, run_oracle, write_job
from standing import CEILING_S, standing

from fedretina.exchange.ledger import Ledger
from ports import free_port
from printed import blocks, form

pytestmark = pytest.mark.flare
SITES = ("site-1", "site-2")
GATE = "GATED_TWEU_GATE"  # as tests/flare/parts/gated_tweu.py
# One model for each site, statistics before the first round, training after the last, pages at both ends: what
# tests/flare/test_covering_rows.py does for the other kinds of tensors and steps.
PERSONAL = {
    **SMALL,
    "row": "fedap",
    "correction": {"name": "fedprox"},
    "exchange": {"codec": "bf16"},
    "tune": {"epochs": 1},
    "report": {"draws": 10, "page": True},
}


class Rehearsal:
    """One `python -m poc` in a folder of its own."""

    def __init__(self, job, folder, *words):
        folder.mkdir()
        self.folder, self.log = folder, folder / "output.txt"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDRETINA_")}
        command = [sys.executable, "-m", "poc", "--port", str(free_port()), "--job", job, "--folder", folder / "poc"]
        with open(self.log, "wb") as handle:
            self.process = subprocess.Popen(
                [*command, *words],
                cwd=REPOSITORY,
                env={**environment, "HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_for(self, words, seconds=CEILING_S):
        deadline = time.monotonic() + seconds
        while not re.search(words, self.text()):
            assert self.process.poll() is None, self.text()
            if time.monotonic() > deadline:
                logs = sorted(self.folder.rglob("console.txt"))
                raise AssertionError(f"{words!r}: never said\n{standing(belonging(self.folder), logs, self.folder)}")
            time.sleep(0.1)

    def left(self):
        return [" ".join(process.cmdline()) for process in belonging(self.folder)]

    def port_is_closed(self):
        port = int(re.search(r"localhost:(\d+)", self.text()).group(1))
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        end_all(self.folder)


def one_site_too_few(folder):
    """A job that asks once, and whose quorum is more than its sites."""
    job = write_job(folder, {**SMALL, "quorum": 2}, ("site-1",))
    path = job / "app/config/config_fed_server.json"
    words = json.loads(path.read_text())
    for workflow in words["workflows"]:
        workflow["args"]["repeats"] = 0
    path.write_text(json.dumps(words))
    return job


@pytest.fixture
def rehearse():
    """Rehearsals that end with the test, whatever happens."""
    begun = []

    def make(*words):
        begun.append(Rehearsal(*words))
        return begun[-1]

    yield make
    for rehearsal in begun:
        rehearsal.end()


def test_a_rehearsal_ends_with_the_loops_bits_while_another_is_interrupted_and_a_third_fails(
    tmp_path, rehearse, monkeypatch
):
    job = write_job(tmp_path / "job", PERSONAL, SITES)
    held = write_job(tmp_path / "held", {**SMALL, "objective": {"name": "gated_tweu"}}, SITES)
    gate = tmp_path / "gate"
    gate.write_text("0")
    monkeypatch.setenv(GATE, str(gate))  # its first round waits, for ever
    before = {path: path.stat().st_mtime_ns for path in job.rglob("*")}
    whole = rehearse(job, tmp_path / "whole", "--run", "again")
    interrupted = rehearse(held, tmp_path / "interrupted", "--sites", "1", "--run", "cut")
    fails = rehearse(one_site_too_few(tmp_path / "one"), tmp_path / "fails")
    interrupted.wait_for("train round 1 of 2")
    command = [sys.executable, "-m", "poc", "--job", job, "--folder", interrupted.folder / "poc"]
    refused = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "in use by another process" in refused.stderr

    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.process.wait(CEILING_S) == 130, interrupted.text()
    assert "interrupted" in interrupted.text()
    assert fails.process.wait(CEILING_S) == 1, fails.text()
    assert "1 update was accepted, the quorum is 2" in fails.text()
    assert whole.process.wait(CEILING_S) == 0, whole.text()
    for rehearsal in (interrupted, fails, whole):
        assert rehearsal.left() == []
        assert rehearsal.port_is_closed()

    oracle = run_oracle(tmp_path / "loop", PERSONAL, SITES)
    state = whole.folder / "poc" / "state"
    assert results(state, "again") == oracle
    kinds = {}
    for site in SITES:
        ours, loops = (
            json.loads((root / site / "final" / "figures.json").read_text())
            for root in (state / "again", tmp_path / "loop" / "oracle")
        )
        assert ours == loops
        for line in Ledger(state / "again" / site / "ledger.jsonl").lines():
            kinds.setdefault(line["phase"], set()).update(line["tensors"])
    assert (kinds["prepare"], kinds["train"]) == ({"statistic"}, {"encoder"})
    assert kinds["tune"] == kinds["finalise"] == set()
    for page in ("server", "site-1/final"):
        assert "Research software" in (state / "again" / page / "report.html").read_text()
    fetched = json.loads(next(whole.folder.glob("poc/results/*/workspace/fedretina/results.json")).read_text())
    assert fetched.pop("run") == "again"
    assert fetched == oracle
    assert f"run again, model of {oracle['chosen']}, digest {oracle['model_digest'][:12]}" in whole.text()
    as_the_page_shows(whole.text().replace(str(whole.folder / "poc"), ".../poc_workspace"))
    # The kits' registry of FLARE's command line, and the signatures of a submitted job, lie in the folder too.
    assert not (whole.folder / "home").exists()
    assert {path: path.stat().st_mtime_ns for path in job.rglob("*")} == before


def as_the_page_shows(printed):
    """Each line of the page is in what was printed, in this order, but for the moments: which come depends."""

    (block,) = (text for text in blocks("poc/README.md") if "stopped; no process" in text)
    passing = re.compile("sites answered|RUNNING; its|submitted; waits|^  [.]{3}$")
    block = re.sub(r"feduaa-\d{8}-\d{6}-\w{4}", "again", block)  # the name that a run has where it is given none
    said = iter([form(line) for line in printed.splitlines()])
    for line in block.splitlines():
        assert passing.search(line) or form(line) in said, line  # `in` goes on from the line before


def test_what_cannot_be_rehearsed_is_a_sentence(tmp_path, rehearse):
    (tmp_path / "job").mkdir()
    none = rehearse(tmp_path / "job", tmp_path / "none")
    assert none.process.wait(CEILING_S) == 2
    assert "no job folder" in none.text()
    job = write_job(tmp_path / "real", SMALL, ("site-1",))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = rehearse(job, tmp_path / "busy", "--port", str(port))
        assert busy.process.wait(CEILING_S) == 2
    assert f"port {port} is taken" in busy.text()
