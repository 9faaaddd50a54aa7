from fedretina.local.site_state import STATE, SiteState, read_history
from fedretina.loop import run_loop
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Step


def step(number):
    return Step(number, "train", "train" if number < 2 else "another", number % 2, 2)


def noted(folder, number, **figures):
    state = SiteState(folder, "d", lambda number: f"train-{number:04d}")
    state.history.note(step(number), **figures)
    state.keep()


def test_entries_stand_in_the_order_of_the_run_and_survive_the_process(tmp_path):
    noted(tmp_path, 2, theta=0.2)
    noted(tmp_path, 1, theta=0.1)
    noted(tmp_path, 2, weight=0.5)
    assert read_history(tmp_path).steps() == [
        {"step": "train-0001", "theta": 0.1},
        {"step": "another-0000", "theta": 0.2, "weight": 0.5},
    ]


def test_noting_the_same_again_changes_nothing(tmp_path):
    noted(tmp_path, 1, theta=0.1)
    before = (tmp_path / STATE).read_bytes()
    noted(tmp_path, 1, theta=0.1)
    assert (tmp_path / STATE).read_bytes() == before


def test_a_run_leaves_each_site_its_thetas_weights_and_validations(tmp_path, tiny, phantoms):
    experiment: Experiment = tiny()
    results = run_loop(experiment, phantoms(experiment), tmp_path, "r")
    for site in results["sites"]:
        kept = read_history(tmp_path / "r" / site).steps()
        trained = [record for record in results["steps"] if record["task"] == "train"]
        assert [entry["step"] for entry in kept] == [record["step"] for record in trained]
        for entry, record in zip(kept, trained, strict=True):
            assert entry["weight"] == record["weights"][site]
            assert entry["theta"]["value"] == record["scalars"][site]["theta"]
            assert entry["validation"]["auc"] == results["validation"][entry["step"]]["auc"][site]
