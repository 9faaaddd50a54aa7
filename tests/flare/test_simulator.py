"""The real simulator against the plain loop, bit for bit."""

import json
import re
import signal
import subprocess
import sys

import psutil
import pytest
from simulation import REPOSITORY, SMALL, Simulation, results, run_oracle, write_job

from fedretina.errors import RefusedError
from fedretina.exchange.ledger import Ledger
from fedretina.flare.simulation import Simulation as Trial
from fedretina.report.verdict_words import verdict_sentence
from fedretina.settings.site import SiteSettings
from fedretina.storage import read_json
from printed import blocks, form

pytestmark = pytest.mark.flare
SITES = ("site-1", "site-2", "site-3")


def test_simulate_ends_with_the_loops_bits_and_tells_each_answer(tmp_path):
    """`fedretina simulate`: all sites at once, in a process each; one has a file of its own, the others have none."""
    words = {**SMALL, "verdict": "own"}
    (tmp_path / "small.yaml").write_text(json.dumps({**words, "phases": [{"name": "train", "rounds": 9}]}))
    (tmp_path / "own.yaml").write_text("data: {}\nstate_root: elsewhere\n")
    command = [sys.executable, "-m", "fedretina", "simulate", str(tmp_path / "small.yaml"), "--rounds", "2"]
    command += ["--site", f"site-1={tmp_path / 'own.yaml'}", "--sites", "site-2,site-3", "--threads", "3"]
    simulation = Simulation([*command, "--run", "again", "--root", str(tmp_path)], tmp_path / "sim")
    assert simulation.wait() == 0, simulation.text()[-3000:]
    oracle = run_oracle(tmp_path, words, SITES)
    said = simulation.text()
    for step in ("train, round 1 of 2", "train, round 2 of 2", "validate", "finalise"):
        assert f"{step}: site-1, site-2, site-3 asked" in said
        assert all(f"{step}: {site} has answered, after " in said for site in SITES)
        assert f"{step}: done in " in said
    assert f"run again, model of {oracle['chosen']}, digest {oracle['model_digest'][:12]}" in said
    for site in SITES:
        assert (
            f"\n{site}: {verdict_sentence(read_json(tmp_path / 'again' / site / 'final/report.json')['verdict'])}"
            in said
        )
    assert f"results: {tmp_path / 'again/server/results.json'}" in said
    assert not (tmp_path / "elsewhere").exists()  # a trial's state is its own
    assert results(tmp_path, "again") == oracle
    for site in SITES:
        ours, loops = (
            json.loads((tmp_path / run / site / "final" / "figures.json").read_text()) for run in ("again", "oracle")
        )
        assert ours == loops
        lines = Ledger(tmp_path / "again" / site / "ledger.jsonl").lines()
        assert [line["phase"] for line in lines] == ["train", "train", "validate", "finalise"]
        assert set(lines[0]["tensors"]) == {"encoder"}
        assert lines[0]["bytes"] == oracle["steps"][0]["bytes_up"][site]
        assert lines[2]["tensors"] == {}
        assert set(lines[0]["scalars"]) == {"theta", "images", "patients"}
        assert {name: kind(value) for name, value in lines[1].items()} == {
            name: kind(value) for name, value in shown_line().items()
        }
    log = (tmp_path / "simulator/again/log.txt").read_text()
    assert "travels" in log
    (begun,) = (text for text in blocks("docs/one_round.md") if "steps done" in text)
    assert all(form(line).replace("demo", "again") in form(log) for line in begun.splitlines())
    (told,) = (text for text in blocks("docs/for_hospitals.md") if "has answered, after" in text)
    ours = {form(re.sub("ours, partner|ours|partner", "site-1", line)) for line in told.splitlines()}
    assert ours <= set(map(form, said.splitlines()))


def kind(value):
    """What can be compared of a ledger's entry: names where it holds entries, else the type."""
    return sorted(value) if isinstance(value, dict) else type(value)


def shown_line():
    """The line of a ledger that a page shows."""
    (line,) = re.findall("^```json\n(.*)\n```$", (REPOSITORY / "docs/one_round.md").read_text(), re.MULTILINE)
    return json.loads(line)


def test_a_trial_that_a_sites_policy_would_refuse_does_not_begin(tmp_path):
    words = {"row": "feduaa", "network": {"encoder": "resnet18"}}
    shut, open_ = ({"policy": {"kinds": kinds}} for kinds in (["sums"], ["encoder"]))
    settings = {"b": shut, "c": open_, "d": shut, "e": {}}
    sites = {name: SiteSettings.model_validate(own) for name, own in settings.items()}
    with pytest.raises(RefusedError, match=r"^b, d: this site's own policy lets no encoder pass.*\{kinds: \[encoder\]"):
        Trial(words, "never", sites, tmp_path)
    Trial(words, "never", {name: sites[name] for name in "ce"}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_is_told_to_end_takes_its_simulator_along(tmp_path):
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
    command = [sys.executable, "-m", "fedretina", "simulate", str(tmp_path / "small.yaml"), "--root", str(tmp_path)]
    simulation = Simulation([*command, "--sites", "site-1,site-2"], tmp_path / "sim")
    simulation.until(lambda: "train, round 1 of 2: site-1, site-2 asked" in simulation.text())
    running = [psutil.Process(pid) for pid in simulation.descendants()]
    assert running
    simulation.process.terminate()
    assert simulation.wait() == 2
    assert "stopped. The same command with --run small goes on with it." in simulation.text()
    assert psutil.wait_procs(running, 30)[1] == []


# As `fedretina simulate` and a recipe start it; a process that outlives a minute stands for the simulator.
_STARTS = """
import signal, sys, time
from fedretina.flare.simulation import simulator
with simulator([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
    print(process.pid, signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, flush=True)
    for _ in range(600):  # a signal that comes just before a sleep begins is seen when it ends
        time.sleep(0.1)
"""


@pytest.mark.parametrize(("which", "before"), [("SIGTERM", ()), ("SIGHUP", ()), ("SIGTERM", ("nohup",))])
def test_what_ends_a_trial_ends_its_simulator(which, before):
    words = [*before, sys.executable, "-c", _STARTS]
    # Who runs the tests may ignore SIGHUP, and what it starts would, too.
    own = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **own) as trial:
        pid, outlives_its_terminal = trial.stdout.readline().split()
        started = psutil.Process(int(pid))
        assert outlives_its_terminal == str(bool(before))
        trial.send_signal(signal.Signals[which])
        assert psutil.wait_procs([started], 30)[1] == []


def test_the_model_learner_job_ends_with_the_loops_bits(tmp_path):
    """The sites one after another in one process: each is built anew for each of its steps."""
    # A server and sites that remember more than what travels: FedAdam, and a model of each site's own (Ditto).
    memories = {"aggregation": {"optimiser": "fedadam"}, "tune": {"epochs": 1, "when": "rounds"}}
    sites, words = SITES[:2], {**SMALL, **memories}
    job = write_job(tmp_path / "job", words, sites, base="feduaa_learner")
    simulation = Simulation(job, tmp_path / "sim", 1, FEDRETINA_RUN="again", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == run_oracle(tmp_path, words, sites)


def test_sixteen_sites_that_share_four_places_end_with_the_loops_bits(tmp_path):
    sites = tuple(f"site-{number}" for number in range(1, 17))
    words = {**SMALL, "phases": [{"name": "train", "rounds": 1}]}
    (tmp_path / "small.yaml").write_text(json.dumps(words))
    command = [sys.executable, "-m", "fedretina", "simulate", str(tmp_path / "small.yaml"), "--run", "again"]
    command += ["--sites", ",".join(sites), "--threads", "4", "--root", str(tmp_path)]
    simulation = Simulation(command, tmp_path / "sim")
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == run_oracle(tmp_path, words, sites)
