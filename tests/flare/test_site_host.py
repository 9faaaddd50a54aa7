"""What a site writes for those who watch it, with a hospital whose names are easy to find again; no FLARE process."""

import hashlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from simulation import SMALL

sys.path.insert(0, str(Path(__file__).parents[1] / "provisioned"))
from hospital import SECRETS, write_hospital

from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import QuorumError
from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import Order, Payload, Stamp
from fedretina.flare import executor
from fedretina.flare.wire import pack_order, unpack_payload, why
from fedretina.local.supervised import require_a_batch
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import SiteSettings, TrackingSettings, read_site_settings
from fedretina.settings.training import TrainingSettings
from fedretina.tracking.tracker import Tracker

WORDS = {**SMALL, "phases": [{"name": "train", "rounds": 1}], "phantom_images": 0}


class Context:
    """All that a host asks of FLARE."""

    def __init__(self, site="site-1"):
        self.site = site

    def get_identity_name(self):
        return self.site


@pytest.fixture
def hospital(tmp_path, monkeypatch):
    """A hospital's folder, and a host over its site file."""
    folder = tmp_path / "hospital"
    write_hospital(folder, 5, 0, state_root="runs", tracking={"log": True})
    experiment = Experiment.resolve(WORDS)
    properties = {"fedretina": {"site_file": str(folder / "site.yaml")}}
    monkeypatch.setattr(executor, "load_experiment", lambda *_: experiment)
    monkeypatch.setattr(executor, "load_site_settings", lambda _: read_site_settings(properties, "site-1", folder))
    monkeypatch.setattr(executor, "state_root", lambda _, settings: settings.state_root)
    return folder


@pytest.mark.attack(
    "a lead", "an experiment file that cannot be read", "the server is told the line and none of the file's words"
)
def test_an_experiment_that_cannot_be_read_gives_away_none_of_its_words(tmp_path, caplog):
    config = tmp_path / "job" / "config"
    config.mkdir(parents=True)
    (config / "experiment.yaml").write_text("row: feduaa\nMargarete-1921: 1\nMargarete-1921: 2\n")
    workspace = SimpleNamespace(get_app_dir=lambda _: str(tmp_path / "job"), get_site_config_dir=lambda: str(tmp_path))
    context = SimpleNamespace(
        get_identity_name=lambda: "site-1",
        get_engine=lambda: SimpleNamespace(get_workspace=lambda: workspace),
        get_job_id=lambda: "job",
        get_prop=lambda _: {"fedretina": {"state_root": "runs"}},
    )
    order = Order("train", Stamp("spring", "train", 0, 0, "0"), None, None)
    reply = executor.SiteHost("experiment.yaml").handle(pack_order(order, {}), context, lambda: False)
    assert why(reply) == (
        "the experiment file cannot be read: a setting is set twice, in lines 2 and 3: keep one of them."
    )
    at_home = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("'Margarete-1921' is set twice, in lines 2 and 3" in message for message in at_home)
    assert not any("Margarete" in record.getMessage() for record in caplog.records if record.levelname == "ERROR")


def lines_after(hospital, tmp_path, spoil=None):
    """The log's lines after a run of one site, the first order of which is spoiled."""
    coordinator = Coordinator(Experiment.resolve(WORDS), "spring", tmp_path / "server")
    while coordinator.done < len(coordinator.plan):
        host = executor.SiteHost("experiment.yaml")
        coordinator.begin(["site-1"])
        order = pack_order(coordinator.order("site-1"), coordinator.down("site-1"))
        if spoil is not None:
            unspoil, spoil = spoil(), None
            host.handle(order, Context(), lambda: False)
            unspoil()
        coordinator.accept("site-1", unpack_payload(host.handle(order, Context(), lambda: False)))
        coordinator.close()
        host.close()
    return [json.loads(line) for line in (hospital / "runs/spring/site-1/log.jsonl").read_text().splitlines()]


def test_log_lines_say_where_and_what_and_name_no_file_path_or_patient(hospital, tmp_path, caplog):
    site_file, image = hospital / "site.yaml", min((hospital / "images").iterdir())
    whole, text = image.read_bytes(), site_file.read_text()

    def spoil():
        image.write_bytes(whole[:-200])
        site_file.write_text(text.replace("data:\n", "data:\n  bad_files: refuse\n"))

        def unspoil():
            image.write_bytes(whole)
            site_file.write_text(text)

        return unspoil

    failed, *lines = lines_after(hospital, tmp_path, spoil)
    assert image.name in caplog.text  # the hospital's own log does say which file
    assert (failed["event"], failed["phase"], failed["round"], failed["attempt"]) == ("failed", "train", 0, 0)
    assert failed["why"] == "DataError: the site's own log says what and where."
    assert [(line["event"], line["phase"], line["round"]) for line in lines] == [
        ("answered", "train", 0),
        ("answered", "validate", 0),
        ("answered", "finalise", 0),
    ]
    assert {(line["run"], line["end"]) for line in (failed, *lines)} == {("spring", "site-1")}
    written = (hospital / "runs/spring/site-1/log.jsonl").read_text()
    for word in (*SECRETS, str(tmp_path), "/"):
        assert word not in written


def refused(hospital, setting, experiment):
    """Why a site with one setting more refuses a run's first order."""
    site_file = hospital / "site.yaml"
    site_file.write_text(f"{site_file.read_text()}{setting}\n")
    parts = partition_of(experiment, build_on_meta(experiment.network, experiment.head_width or 2))
    order = Order("train", Stamp("spring", "train", 0, 0, experiment.digest(parts)), None, None)
    host = executor.SiteHost("experiment.yaml")
    reply = host.handle(pack_order(order, {}), Context(), lambda: False)
    host.close()
    return why(reply)


def refused_at_once(hospital, setting, experiment):
    """The same, of a site that has read no image for it."""
    found = refused(hospital, setting, experiment)
    assert not (hospital / "runs" / "cache").exists()
    return found


def test_a_run_that_sends_what_the_policy_stops_is_refused_before_an_image_is_read(hospital):
    found = refused_at_once(hospital, "policy: {kinds: [sums]}", Experiment.resolve(WORDS))
    assert found.startswith("this site's own policy lets no encoder pass, which this run sends: ")
    assert "name all that is sent (encoder)" in found


def test_a_head_that_leaves_encrypted_and_a_policy_that_rounds_are_refused_before_an_image_is_read(
    hospital, monkeypatch
):
    sealed = Experiment.resolve({**WORDS, "grades": 5, "exchange": {"personal": "nothing", "encrypt": "head"}})
    monkeypatch.setattr(executor, "load_experiment", lambda *_: sealed)
    found = refused_at_once(hospital, "policy: {kinds: [encoder, norm, head], mantissa_bits: 10}", sealed)
    assert "this run's head leaves encrypted (exchange.encrypt)" in found


def test_a_site_whose_weights_file_is_another_than_the_jobs_or_that_names_none_has_no_part(
    hospital, monkeypatch, caplog
):
    """The server: test_controller_stops.py. Ends that have the right one: test_weights_file.py."""
    words = merged(WORDS, {"network": {"weights": {"source": "file", "sha256": 64 * "a"}}})
    experiment = Experiment.resolve(words)
    monkeypatch.setattr(executor, "load_experiment", lambda *_: experiment)
    said = refused_at_once(hospital, "", experiment)
    assert said.endswith(f" with sha256 {64 * 'a'}: set weights_file in this end's own settings to a copy of it.")
    (hospital / "tell-tale.safetensors").write_bytes(b"another file")
    said = refused_at_once(hospital, "weights_file: tell-tale.safetensors", experiment)
    assert said == (
        f"the file of pre-trained weights is not the expected one, whose sha256 is {64 * 'a'}: fetch that one, or "
        "correct the digest."
    )
    found = hashlib.sha256(b"another file").hexdigest()
    assert f"has sha256 {found}, but {64 * 'a'} was expected" in caplog.text  # the site's own log has it whole
    assert not list((hospital / "runs" / "spring").rglob("*.safetensors"))


@pytest.mark.parametrize("unfit", ["grades", "classes", "sums"])
def test_the_loop_refuses_a_site_that_cannot_be_built_in_the_words_of_a_host(unfit, phantoms, tmp_path, monkeypatch):
    """Five grades and four, as site-1 and site-2 have them: the others go on, as they do under FLARE."""
    words = {**SMALL, "row": "fedavg", "phases": [{"name": "train", "rounds": 1}]}
    if unfit == "grades":
        words |= {"grades": 5, "exchange": {"personal": "nothing"}}
    else:
        words = {key: value for key, value in words.items() if key not in ("training", "network")}
        words |= {"row": "analytic", "phases": [{"name": "sums"}], "network": {"encoder": "few_blocks"}}
        words |= {"classes": ["no_dr", "mild", "moderate", "severe"]} if unfit == "classes" else {"classes": ["a", "b"]}
    experiment = Experiment.resolve(words)
    sites = phantoms(experiment, "site-1", "site-2")
    alone = ["site-1", "site-2"] if unfit == "sums" else ["site-2"]
    settings = SiteSettings()
    monkeypatch.setattr(executor, "load_experiment", lambda *_: experiment)
    monkeypatch.setattr(executor, "load_site_settings", lambda _: settings)
    monkeypatch.setattr(executor, "state_root", lambda *_: tmp_path / "flare")
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    coordinator.begin(sites)
    host = executor.SiteHost("experiment.yaml")
    order = pack_order(coordinator.order("site-2"), coordinator.down("site-2"))
    said = why(host.handle(order, Context("site-2"), lambda: False))
    host.close()
    with pytest.raises(QuorumError, match=re.escape(f"site-2: {said}")):
        run_loop(experiment, {site: sites[site] for site in alone}, tmp_path, "r")
    if unfit != "sums":
        found = run_loop(experiment, sites, tmp_path, "r")
        assert [step["refused"] for step in found["steps"]] == [{"site-2": said}] * len(found["steps"])
        assert list(found["sites"]) == ["site-1"]


def test_a_site_has_its_own_curves(hospital, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    site_file = hospital / "site.yaml"
    site_file.write_text(site_file.read_text().replace("log: true", "log: true\n  tensorboard: true"))
    lines_after(hospital, tmp_path)
    found = EventAccumulator(str(hospital / "runs/spring/site-1/tensorboard"))
    found.Reload()
    assert {"loss", "accuracy", "theta/value", "weight"} <= set(found.Tags()["scalars"])


@pytest.mark.attack(
    "an accident",
    "a damaged file in a site's state",
    "a sentence leaves that names no path; the site's own log has it",
)
def test_a_damaged_history_costs_curves_and_no_word_of_a_path_leaves(tmp_path, monkeypatch, caplog):
    """What escaped, FLARE would log as an error, and stream."""
    folder = tmp_path / "patient_data" / "site-1"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("")
    (folder / "round-0000.safetensors").write_bytes(b"")  # without a round there would be no history to lose
    followed = []

    class Curves:
        def follow(self, steps):
            followed.append(steps)

    host = executor.SiteHost("experiment.yaml")
    monkeypatch.setattr(host, "_folder", folder)
    monkeypatch.setattr(host, "_tracker", Tracker(TrackingSettings(log=True), folder, "spring", "site-1", "x"))
    monkeypatch.setattr(host._tracker, "_curves", [Curves()])
    payload = Payload({}, {"val_auc": 0.5}, Stamp("spring", "train", 0, 0, "d"))
    monkeypatch.setattr(host, "_asks", False)
    monkeypatch.setattr(host, "_open", lambda *_: SimpleNamespace(handle=lambda *_: payload))
    order = Order("train", payload.stamp, None, None, 1.0, None)
    assert unpack_payload(host.handle(pack_order(order, {}), Context(), lambda: False)).scalars == {"val_auc": 0.5}
    assert followed == []
    assert "state.json" in caplog.text  # a warning, which stays in the site's own log
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.attack(
    "a lead",
    "an error that would tell the number of images that a site holds back",
    "the sentence that leaves holds no number",
)
def test_a_site_that_holds_its_number_back_does_not_tell_it_in_an_error(tmp_path, monkeypatch, caplog):
    def handle(*_):
        require_a_batch(713, TrainingSettings(batch_size=1024))

    host = executor.SiteHost("experiment.yaml")
    monkeypatch.setattr(host, "_asks", False)
    monkeypatch.setattr(host, "_open", lambda *_: SimpleNamespace(handle=handle))
    stamp = Stamp("spring", "train", 0, 0, "d")
    reply = host.handle(pack_order(Order("train", stamp, None, None, 1.0, None), {}), Context(), lambda: False)
    assert "fewer than one batch of 1024" in why(reply)
    assert "713" not in f"{dict(reply)}"
    assert ["713" in record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [False]
    assert "There are 713 training images." in caplog.text
