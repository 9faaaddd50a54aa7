"""Going back in a run: what is done again ends with the bits of a run that never did it otherwise."""

import json
import shutil

import pytest

from fedretina.aggregation import run_store
from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import RefusedError, TrainingError
from fedretina.local.site import Site
from fedretina.local.site_state import read_history
from fedretina.loop import run_loop
from fedretina.losses.evidential import TweuObjective
from fedretina.settings.plan import RestartSettings
from fedretina.storage import read_json, read_tensors, write_tensors

ROUNDS = 5


def figures(results):
    return {key: value for key, value in results.items() if key != "run"}


def drive(experiment, data, folder, steps, run="r", absent=lambda step: ()):
    """Do some steps, sites that are absent left out; returns the last answers, by site."""
    coordinator = Coordinator(experiment, run, folder / run / "server")
    hosts = {site: Site(experiment, data[site], folder / run / site) for site in data}
    answers = {}
    for _ in range(steps):
        there = [site for site in hosts if site not in absent(coordinator.done)]
        coordinator.begin(there)
        for site in there:
            answers[site] = hosts[site].handle(coordinator.order(site), coordinator.down(site))
            coordinator.accept(site, answers[site])
        coordinator.close()
    return answers


def back_to(experiment, step, mark="ab12"):
    return experiment.model_copy(update={"restart": RestartSettings(step=step, mark=mark)})


@pytest.fixture
def spoilt(tiny, phantoms, tmp_path):
    """A run "r" of five rounds, in which a site is missing from round 2 on."""

    def make(done, **words):
        experiment = tiny(phases=[{"name": "train", "rounds": ROUNDS}], **words)
        data = phantoms(experiment, "site-1", "site-2")
        drive(experiment, data, tmp_path, done, absent=lambda step: ("site-2",) if step >= 2 else ())
        return experiment, data

    return make


@pytest.mark.attack(
    "a hostile site",
    "it spoils a round that is then mixed",
    "the run goes back before that round, and ends with the bits of one that never did it",
)
@pytest.mark.parametrize(
    ("row", "done", "step"),
    [
        ("feduaa_scaffold", 5, "train-0002"),
        ("feduaa", 7, "train-0002"),  # complete: its end is dropped too
        ("feduaa", 3, "train-0000"),
        ("mdt", 8, "train-0002"),  # complete: its calibration, which comes once, is done anew too
    ],
)
@pytest.mark.slow
def test_it_ends_with_the_bits_of_a_run_that_never_did_what_is_dropped(spoilt, undisturbed, tmp_path, row, done, step):
    experiment, data = spoilt(done, row=row)
    whole, root = undisturbed(experiment, data)
    server = tmp_path / "r" / "server"
    before = {path.name: path.read_bytes() for path in server.glob("*.json")}
    again = back_to(experiment, step)
    assert again.settings_digest() == experiment.settings_digest()
    got = run_loop(again, data, tmp_path, "r")
    assert figures(got) == figures(whole)
    for site in data:
        ends = [read_json(run / site / "final/figures.json") for run in (root / "whole", tmp_path / "r")]
        assert ends[0] == ends[1]
        history = [read_history(run / site).steps() for run in (root / "whole", tmp_path / "r")]
        assert history[0] == history[1]
    # Nothing is erased: what was dropped, and what the run said of itself then, lies in a folder beside.
    aside = server / "dropped-ab12"
    number = int(step[-1])
    for name, held in before.items():
        if name in ("results.json", "run.json") or (name.startswith("train-") and int(name[9]) >= number):
            assert (aside / name).read_bytes() == held
    assert read_json(server / "run.json")["restarts"][0]["dropped"][0] == step
    assert (tmp_path / "r" / "site-1" / "dropped-ab12" / "state.json").exists()
    # The same job started once more goes on; it does not go back again.
    assert figures(run_loop(again, data, tmp_path, "r")) == figures(whole)
    assert len(read_json(server / "run.json")["restarts"]) == 1


@pytest.mark.attack(
    "an accident",
    "an answer to a dropped round arrives when that round is done anew",
    "refused as one of an earlier attempt",
)
def test_an_answer_to_what_was_dropped_is_refused(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 2}])
    data = phantoms(experiment, "site-1")
    old = drive(experiment, data, tmp_path, 1)["site-1"]
    coordinator = Coordinator(back_to(experiment, "train-0000"), "r", tmp_path / "r" / "server")
    coordinator.begin(data)
    assert coordinator.progress.attempt == 0
    with pytest.raises(RefusedError, match="for train round 0 attempt 0, expected train round 0 attempt 1000"):
        coordinator.accept("site-1", old)


def test_where_it_cannot_go_is_said_and_nothing_is_lost(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 6}])
    data = phantoms(experiment, "site-1")
    drive(experiment, data, tmp_path, 5)
    server = tmp_path / "r" / "server"
    before = sorted(path.name for path in server.iterdir())
    for step, said in {
        "train-0001": "the run can go back to train-0000, train-0002, train-0003, train-0004, train-0005",
        "finalise-0000": "has not come to finalise-0000: its next step is train-0005",
        "train-0009": "its steps are train-0000 to train-0005, validate-0000, finalise-0000",
    }.items():
        with pytest.raises(RefusedError, match=said):
            Coordinator(back_to(experiment, step), "r", server)
    assert sorted(path.name for path in server.iterdir()) == before
    # As many models as it takes to go back by three rounds, whichever was the best then, and no more.
    assert 4 <= len(list(server.glob("*.safetensors"))) <= 6


def test_killed_while_it_goes_back_it_goes_back_all_the_same(spoilt, undisturbed, tmp_path, monkeypatch):
    experiment, data = spoilt(7)

    def killed(path, record):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_store, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            Coordinator(back_to(experiment, "train-0002"), "r", tmp_path / "r" / "server")
    assert read_json(tmp_path / "r" / "server" / "run.json")["done"] == 7
    whole, _ = undisturbed(experiment, data)
    assert figures(run_loop(back_to(experiment, "train-0002"), data, tmp_path, "r")) == figures(whole)
    assert (tmp_path / "r" / "server" / "dropped-ab12" / "results.json").exists()


def test_a_site_without_its_own_part_for_that_step_takes_its_nearest_or_begins_anew(
    spoilt, undisturbed, tmp_path, caplog
):
    experiment, data = spoilt(4, choice={"window": ROUNDS})  # it ends with a late round's model
    shutil.rmtree(tmp_path / "r" / "site-1")  # its disk was lost
    state = tmp_path / "r" / "site-2"
    record = read_json(state / "state.json")
    (state / "state.json").write_text(json.dumps({**record, "counted": [0], "staged": None}))
    results = run_loop(back_to(experiment, "train-0002"), data, tmp_path, "r")
    assert sorted(results["sites"]) == ["site-1", "site-2"]
    assert "the site begins anew" in caplog.text
    assert "train-0000 stands in for it" in caplog.text
    whole, _ = undisturbed(experiment, data)
    assert figures(results) != figures(whole)


def test_a_spoilt_model_is_not_blamed_on_the_learning_rate(spoilt, tmp_path):
    experiment, data = spoilt(2)
    path = tmp_path / "r" / "server" / "train-0001.safetensors"
    model, record = read_tensors(path)

    def sent(factor):
        write_tensors(path, {key: factor * tensor for key, tensor in model.items()}, {"step": record["step"]})
        coordinator = Coordinator(experiment, "r", tmp_path / "r" / "server")
        host = Site(experiment, data["site-1"], tmp_path / "r" / "site-1")
        coordinator.begin(data)
        return host.handle(coordinator.order("site-1"), coordinator.down("site-1"))

    with pytest.raises(TrainingError, match="sent for train-0002 holds values out of all proportion") as told:
        sent(1e28)
    assert "`fedretina resume r --from STEP`" in str(told.value)
    assert "learning_rate" not in str(told.value)
    with pytest.raises(TrainingError, match=r"the model sent for train-0002 holds values .* up to nan"):
        sent(float("nan"))
    sent(1.0)


@pytest.mark.attack(
    "a hostile server",
    "a model with a negative running variance, of which a site's network would draw the root",
    "each site refuses it before it loads it",
)
@pytest.mark.parametrize(("row", "task"), [("fedavg", "train"), ("fedap", "prepare"), ("oct_moco_fedavg", "pretrain")])
def test_a_model_with_a_negative_variance_is_not_loaded(tiny, phantoms, tmp_path, row, task):
    pretrain = {
        "phases": [{"name": "pretrain", "rounds": 1}, {"name": "train", "rounds": 1}],
        "network": {"contrast": {"hidden": 16, "width": 8}},
    }
    more = pretrain if task == "pretrain" else {"exchange": {"batchnorm": "shared_all"}}
    experiment = tiny(row=row, **more)
    host = Site(experiment, phantoms(experiment, "site-1")["site-1"], tmp_path / "site-1")
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    coordinator.begin(["site-1"])
    assert coordinator.step.task == task
    order, down = coordinator.order("site-1"), coordinator.down("site-1")
    key = next(key for key in sorted(down) if key.endswith("running_var"))
    turned = down[key].clone()
    turned[0] = -1e-3
    with pytest.raises(TrainingError, match=rf"sent for {coordinator.step.name} holds a negative variance") as told:
        host.handle(order, {**down, key: turned})
    assert "`fedretina resume r --from STEP`" in str(told.value)
    host.handle(order, down)


def test_a_loss_that_is_not_finite_names_a_model_that_grew(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    host = Site(experiment, phantoms(experiment, "site-1")["site-1"], tmp_path)
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    coordinator.begin(["site-1"])
    order, down = coordinator.order("site-1"), coordinator.down("site-1")
    score = TweuObjective.score
    monkeypatch.setattr(TweuObjective, "score", lambda *given: score(*given) * float("nan"))
    with pytest.raises(
        TrainingError, match=r"^the loss became nan in train-0000, epoch 0: lower training.learning_rate"
    ):
        host.handle(order, down)
    with pytest.raises(TrainingError, match=r"100 times as long .encoder tensors. as the one that the run began with"):
        host.handle(order, {key: 100 * tensor for key, tensor in down.items()})


def test_a_site_that_was_away_while_the_run_went_back_before_forgets_those_rounds_too(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 4}])
    data = phantoms(experiment, "site-1", "site-2")
    drive(experiment, data, tmp_path, 4)
    drive(back_to(experiment, "train-0001", "aaaa"), data, tmp_path, 2, absent=lambda step: ("site-2",))
    drive(back_to(experiment, "train-0003", "bbbb"), data, tmp_path, 1)
    steps = read_history(tmp_path / "r" / "site-2").numbered()
    assert "loss" in steps[0]
    assert not [number for number in (1, 2) if "loss" in steps.get(number, {})]
