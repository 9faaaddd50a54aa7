"""A complete run that lacks a site's result: opened again, it asks that site alone, and ends as if it had answered."""

import json
from dataclasses import replace

import pytest

from fedretina import storage
from fedretina.aggregation.coordinator import Coordinator
from fedretina.aggregation.results import results_table, unfinished, unfinished_note
from fedretina.errors import RefusedError, TrainingError
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.settings.plan import merged
from fedretina.settings.site import PromiseSettings
from killed import killed_at_every_write

LATE = "it did not answer in time."
SCANS = {
    "phases": [{"name": "pretrain", "rounds": 2, "training": {"epochs": 1, "batch_size": 8, "threads": 1}}],
    "network": {"contrast": {"hidden": 16, "width": 8}},
}


def end(experiment, data, root, missing=(), there=None):
    """Run on to the end as the controller does; gives the coordinator, and the sites that were asked at last."""
    coordinator = Coordinator(experiment, "r", root / "server")
    asked = None
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(data if there is None else there)
        asked = coordinator.asked
        for site in asked:
            if (coordinator.step.name, site) in missing:
                coordinator.refuse(site, LATE)
            else:
                host = Site(experiment, data[site], root / site)
                coordinator.accept(site, host.handle(coordinator.order(site), coordinator.down(site)))
        coordinator.close()
    return coordinator, asked


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def results(root):
    return storage.read_json(root / "server" / "results.json")


def late_ends_as_undisturbed(experiment, data, tmp_path):
    whole, late = tmp_path / "whole", tmp_path / "late"
    end(experiment, data, whole)
    end(experiment, data, late, {("finalise-0000", "site-2")})
    others = files(late / "site-1")
    assert results(late)["without_result"] == {"site-2": LATE}
    assert unfinished(results(late)) == ("site-2",)
    assert not (late / "site-2" / "final").exists()
    assert end(experiment, data, late)[1] == ("site-2",)
    assert files(late / "site-1") == others == files(whole / "site-1")
    assert files(late) == files(whole)  # every file of the run, at the server and at the sites
    assert unfinished(results(late)) == ()
    coordinator, asked = end(experiment, data, late)
    assert (coordinator.done, asked) == (len(coordinator.plan), None)  # all have theirs: nothing is begun
    assert files(late) == files(whole)


@pytest.mark.slow
def test_a_late_site_ends_with_the_bits_of_an_undisturbed_run(tiny, phantoms, tmp_path):
    experiment = tiny(report={"draws": 10, "page": True})
    late_ends_as_undisturbed(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path)
    assert (tmp_path / "late" / "server" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("fedavg", {"tune": {"epochs": 1}}),
        ("mdt", {}),
        ("fedap", {}),
        ("oct_moco_scaffold", SCANS),
    ],
)
def test_so_it_does_whatever_the_end_is_made_of(row, words, tiny, phantoms, tmp_path):
    experiment = tiny(**merged({"row": row}, words))
    data = phantoms(experiment, "site-1", "site-2")
    late_ends_as_undisturbed(experiment, data, tmp_path)


def test_a_site_that_missed_the_round_before_too_gets_its_model_all_the_same(tiny, phantoms, tmp_path):
    experiment = tiny()
    data = phantoms(experiment, "site-1", "site-2")
    missed = {("validate-0000", "site-2")}
    end(experiment, data, tmp_path / "whole", missed)
    end(experiment, data, tmp_path / "late", {*missed, ("finalise-0000", "site-2")})
    end(experiment, data, tmp_path / "late")
    assert files(tmp_path / "late") == files(tmp_path / "whole")


def test_a_site_that_never_counted_is_not_asked(tiny, phantoms, tmp_path):
    experiment = tiny()
    data = phantoms(experiment)
    never = {(name, "site-3") for name in ("train-0000", "train-0001", "validate-0000", "finalise-0000")}
    end(experiment, data, tmp_path, {*never, ("finalise-0000", "site-1")})
    found = results(tmp_path)
    assert set(found["without_result"]) == {"site-1", "site-3"}
    assert unfinished(found) == ("site-1",)
    table = results_table(found)
    assert "no result from site-3: it did not answer in time." in table
    assert "site-1 trained and has no model yet: `fedretina resume r`" in table
    assert end(experiment, data, tmp_path)[1] == ("site-1",)
    assert results(tmp_path)["without_result"] == {"site-3": LATE}
    assert unfinished_note(results(tmp_path)) is None
    assert end(experiment, data, tmp_path)[1] is None


def test_who_was_not_connected_at_the_end_stands_in_the_results_and_is_asked_when_it_is_back(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1", "site-2")
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    for there in (("site-1", "site-2"), ("site-1",), ("site-1",)):
        coordinator.begin(there)
        for site in coordinator.asked:
            host = Site(experiment, data[site], tmp_path / site)
            coordinator.accept(site, host.handle(coordinator.order(site), coordinator.down()))
        coordinator.close()
    assert results(tmp_path)["without_result"] == {"site-2": "it was not connected."}
    before = files(tmp_path)
    assert end(experiment, data, tmp_path, there=["site-1"])[1] == ()  # it is still away
    assert files(tmp_path) == before
    assert end(experiment, data, tmp_path)[1] == ("site-2",)
    assert results(tmp_path)["without_result"] == {}


def test_others_may_not_answer_again_and_may_not_be_lost(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1", "site-2")
    end(experiment, data, tmp_path, {("finalise-0000", "site-2")})
    first = results(tmp_path)
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    coordinator.begin(data)
    assert coordinator.progress.asked == ("site-2",)
    assert coordinator.progress.refused == {}
    answer = Site(experiment, data["site-1"], tmp_path / "site-1").handle(
        coordinator.order("site-1"), coordinator.down()
    )
    with pytest.raises(RefusedError, match="not asked"):
        coordinator.accept("site-1", answer)
    coordinator.refuse("site-2", LATE)
    coordinator.close()
    assert results(tmp_path) == first


@pytest.mark.slow
def test_killed_at_every_write_of_the_second_asking_the_run_stays_complete(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1", "site-2")
    end(experiment, data, tmp_path / "whole")
    end(experiment, data, tmp_path / "late", {("finalise-0000", "site-2")})

    def still_complete():
        run = json.loads((tmp_path / "late" / "server" / "run.json").read_text())
        assert run["done"] == 3  # never less on disk
        assert "site-1" in results(tmp_path / "late")["sites"]

    late = tmp_path / "late"
    _, deaths = killed_at_every_write(lambda: end(experiment, data, late), late, afterwards=still_complete)
    assert deaths > 10
    assert files(tmp_path / "late") == files(tmp_path / "whole")


def test_the_loop_asks_again_too(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1", "site-2")
    expected = run_loop(experiment, data, tmp_path / "whole", "r")
    real, asked, fault = Site.handle, [], ["the disk of the scanner is away."]

    def handle(self, order, tensors, stop=lambda: False):
        asked.append((order.task, self._data.name))
        if fault and asked[-1] == ("finalise", "site-2"):
            raise TrainingError(said := fault.pop()).telling(said)
        return real(self, order, tensors, stop)

    monkeypatch.setattr(Site, "handle", handle)
    cut = run_loop(experiment, data, tmp_path / "late", "r")
    assert cut["without_result"] == {"site-2": "the disk of the scanner is away."}
    asked.clear()
    assert run_loop(experiment, data, tmp_path / "late", "r") == expected
    assert asked == [("finalise", "site-2")]
    assert run_loop(experiment, data, tmp_path / "late", "r") == expected
    assert len(asked) == 1


@pytest.mark.slow
def test_a_curve_outlives_kills_and_reaches_a_site_that_missed_it(tiny, phantoms, tmp_path):
    experiment = tiny(row="analytic", referral_curve=True, phantom_images=60)
    asked = PromiseSettings(missed=0.1, sure=0.9, drawn=True)
    data = {name: replace(one, min_count=2, promise=asked) for name, one in phantoms(experiment).items()}
    whole, cut, late, off = tmp_path / "whole", tmp_path / "cut", tmp_path / "late", "site-3"
    coordinator, _ = end(experiment, data, whole)
    before = next(at for at, step in enumerate(coordinator.plan) if step.task == "curve")

    def in_that_step(path):
        file = cut / "server" / "run.json"
        return file.exists() and storage.read_json(file)["done"] == before

    _, deaths = killed_at_every_write(lambda: end(experiment, data, cut), cut, in_that_step)
    assert deaths > 5
    assert files(cut) == files(whole)
    # Off in that step and at the end, then asked alone: it gets the sum of the other two, who have none without it.
    end(experiment, data, late, {("curve-0000", off), ("finalise-0000", off)})
    assert end(experiment, data, late)[1] == (off,)
    had, has = (
        {site: storage.read_json(root / site / "final" / "figures.json").get("curve") for site in data}
        for root in (whole, late)
    )
    assert all(sum(curve) >= 4 for curve in had.values())
    assert has == {site: had[site] if site == off else None for site in data}
