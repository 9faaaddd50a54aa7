from fedretina.local.site_state import History
from fedretina.loop import run_loop
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Step


def step(number):
    return Step(number, "train", "train" if number < 2 else "another", number % 2, 2)


def test_entries_stand_in_the_order_of_the_run_and_survive_the_process(tmp_path):
    path = tmp_path / "history.json"
    History(path).note(step(2), theta=0.2)
    History(path).note(step(1), theta=0.1)
    History(path).note(step(2), weight=0.5)
    assert History(path).steps() == [
        {"step": "train-0001", "theta": 0.1},
        {"step": "another-0000", "theta": 0.2, "weight": 0.5},
    ]


def test_noting_the_same_again_writes_nothing(tmp_path):
    path = tmp_path / "history.json"
    history = History(path)
    history.note(step(1), theta=0.1)
    before = path.stat().st_mtime_ns
    history.note(step(1), theta=0.1)
    assert path.stat().st_mtime_ns == before


def test_a_run_leaves_each_site_its_thetas_weights_and_validations(tmp_path, tiny, phantoms):
    experiment: Experiment = tiny()
    results = run_loop(experiment, phantoms(experiment), tmp_path, "r")
    for site in results["sites"]:
        kept = History(tmp_path / "r" / site / "history.json").steps()
        trained = [record for record in results["steps"] if record["task"] == "train"]
        assert [entry["step"] for entry in kept] == [record["step"] for record in trained]
        for entry, record in zip(kept, trained, strict=True):
            assert entry["weight"] == record["weights"][site]
            assert entry["theta"]["value"] == record["scalars"][site]["theta"]
            assert entry["validation"]["auc"] == results["validation"][entry["step"]]["auc"][site]
