"""The predictor gives the trainer's answers to the last bit, refuses what does not belong together, drops nothing."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fedretina.errors import StateError
from fedretina.evaluation.figures import LabelledPredictions, triage
from fedretina.exchange.payload import tensors_digest
from fedretina.local.gate import site_gate
from fedretina.local.verdict import Contestant
from fedretina.prediction.drift import drift
from fedretina.prediction.eyes import Owner
from fedretina.prediction.predictor import Predictor
from fedretina.prediction.worklist import work_list
from fedretina.storage import read_json, read_tensors, write_json, write_tensors
from fedretina.uncertainty.estimators import build_estimator
from fedretina.uncertainty.referral import refer
from fedretina.uncertainty.temperature import tempered


@pytest.fixture
def model(hospital, tmp_path):
    """A copy of the hospital's model that a test may break."""
    return shutil.copytree(hospital.final, tmp_path / "final")


def expected(hospital):
    logits = hospital.trainer.answers(hospital.shared, hospital.personal, hospital.data.split("test")).logits
    return build_estimator("evidence").predict(logits)


def test_it_answers_bit_for_bit_as_the_trainer_did(hospital):
    predictor = Predictor.load(hospital.final, "cpu")
    answer = expected(hospital)
    rows = list(predictor.predict(hospital.images, hospital.files))
    assert [row.file for row in rows] == list(hospital.files)
    assert [row.uncertainty for row in rows] == answer.uncertainty.tolist()
    assert [row.grade for row in rows] == answer.probabilities.argmax(1).tolist()
    shown = np.stack([row.probabilities for row in rows])
    assert (shown == tempered(answer.probabilities, predictor.card["temperature"]["value"])).all()
    for row in rows:
        assert row.referral == refer(row.grade, row.uncertainty, predictor.threshold, predictor.scheme)
        assert row.fault == ""


def test_over_several_batches_too_with_damaged_files_between(hospital, tmp_path):
    # 300 readable photographs, every tenth place taken by a damaged one: the readable ones still fill batches of 128.
    predictor = Predictor.load(hospital.final, "cpu")
    names = []
    for at in range(300):
        if at % 10 == 0:
            (tmp_path / f"broken{at}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
            names.append(f"broken{at}.png")
        file = hospital.files[at % len(hospital.files)]
        (tmp_path / f"{at}.png").symlink_to(hospital.images / file)
        names.append(f"{at}.png")
    rows = list(predictor.predict(tmp_path, names))
    assert [row.file for row in rows] == names
    images = hospital.data.split("test").images
    many = images[[at % len(hospital.files) for at in range(300)]]
    logits = torch.cat([predictor.logits(part) for part in torch.split(many, 128)])
    assert [row.uncertainty for row in rows if not row.fault] == build_estimator("evidence").predict(
        logits
    ).uncertainty.tolist()
    assert sum(bool(row.fault) for row in rows) == 30


def test_alone_or_among_others_the_answer_differs_by_rounding_at_most(hospital):
    predictor = Predictor.load(hospital.final, "cpu")
    together = [row.uncertainty for row in predictor.predict(hospital.images, hospital.files)]
    alone = [next(predictor.predict(hospital.images, [file])).uncertainty for file in hospital.files[:5]]
    assert alone == pytest.approx(together[:5], rel=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_answers_as_the_processor_does_up_to_rounding(hospital):
    here = [row.uncertainty for row in Predictor.load(hospital.final, "cpu").predict(hospital.images, hospital.files)]
    there = [row.uncertainty for row in Predictor.load(hospital.final, "cuda").predict(hospital.images, hospital.files)]
    assert there == pytest.approx(here, rel=1e-3)


def test_what_cannot_be_read_is_referred_and_named_without_its_folder(hospital, tmp_path):
    whole = (hospital.images / hospital.files[0]).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "good.png").write_bytes(whole)
    pages = [Image.new("RGB", (64, 64), colour) for colour in ("red", "green")]
    pages[0].save(tmp_path / "two.tif", save_all=True, append_images=pages[1:])
    names = ["cut.png", "empty.jpg", "gone.png", "text.png", "two.tif", "good.png"]
    rows = list(Predictor.load(hospital.final, "cpu").predict(tmp_path, names))
    assert [row.file for row in rows] == names
    for row in rows[:5]:
        assert (row.grade, row.probabilities, row.uncertainty) == (None, None, None)
        assert row.referral == (True, ("unreadable image",))
        assert row.fault.startswith("the file ")
        assert str(tmp_path) not in row.fault
    assert "more than one picture" in rows[4].fault
    assert rows[5].grade is not None


def test_no_files_no_rows(hospital):
    assert list(Predictor.load(hospital.final, "cpu").predict(hospital.images, [])) == []


def test_an_answer_that_is_not_finite_is_referred(hospital, monkeypatch):
    predictor = Predictor.load(hospital.final, "cpu")
    true = predictor.answered

    def broken(images):
        logits, features = true(images)
        logits = logits.clone()
        logits[1, 0] = torch.nan
        return logits, features

    monkeypatch.setattr(predictor, "answered", broken)
    rows = list(predictor.predict(hospital.images, hospital.files[:3]))
    assert rows[1].referral == (True, ("no answer",))
    assert (rows[1].grade, rows[1].uncertainty) == (None, None)
    assert "no finite answer" in rows[1].fault
    assert rows[0].grade is not None
    assert rows[2].grade is not None


def test_the_folder_above_final_will_do(hospital):
    assert Predictor.load(hospital.final.parent, "cpu").card == Predictor.load(hospital.final, "cpu").card


def test_torch_is_left_as_it_was(hospital):
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic, torch.random.get_rng_state()
    list(Predictor.load(hospital.final, "cpu").predict(hospital.images, hospital.files[:2]))
    after = torch.get_num_threads(), torch.backends.cudnn.deterministic, torch.random.get_rng_state()
    assert after[:2] == before[:2]
    assert (after[2] == before[2]).all()


def test_a_model_that_started_from_a_weights_file_needs_that_file_no_more(hospital, model):
    card, (tensors, _) = read_json(model / "card.json"), read_tensors(model / "model.safetensors")
    card["settings"]["network"]["weights"] = {"source": "file", "sha256": "a" * 64}
    card["normalisation"] = "none"  # as an exported encoder's file may ask, which is not at hand
    write_tensors(model / "model.safetensors", tensors, {"card": card})
    write_json(model / "card.json", card)
    assert Predictor.load(model, "cpu").net.normalisation == "none"


def test_the_settings_tell_the_normalisation_of_a_card_that_does_not(hospital, model):
    def older(card):
        del card["normalisation"]
        card["settings"]["network"]["weights"] = {"source": "file", "sha256": "a" * 64}

    change_card(model, older)
    net = Predictor.load(model, "cpu").net
    assert net.normalisation == "imagenet"  # as ResNets from a file are; from the seed it would be "half"


def change_card(model, edit, *, header=True):
    card, (tensors, _) = read_json(model / "card.json"), read_tensors(model / "model.safetensors")
    edit(card)
    if header:
        write_tensors(model / "model.safetensors", tensors, {"card": card})
    write_json(model / "card.json", card)


def test_a_threshold_changed_by_hand_is_refused(model):
    change_card(model, lambda card: card["referral"].update(threshold=0.99), header=False)
    with pytest.raises(StateError, match="do not belong together"):
        Predictor.load(model)


def test_tensors_of_another_model_are_refused(model):
    card, (tensors, _) = read_json(model / "card.json"), read_tensors(model / "model.safetensors")
    key = next(iter(tensors))
    write_tensors(model / "model.safetensors", tensors | {key: tensors[key] + 1}, {"card": card})
    with pytest.raises(StateError, match="do not belong together"):
        Predictor.load(model)


def test_another_format_is_refused_and_says_which_version_made_it(model):
    change_card(model, lambda card: card.update(format=2, fedretina="9.1"))
    with pytest.raises(StateError, match=r"format 2, this version reads 1: .* fedretina 9\.1"):
        Predictor.load(model)


def test_images_prepared_in_another_way_are_refused(model):
    change_card(model, lambda card: card.update(transforms_digest="0" * 64))
    with pytest.raises(StateError, match="prepared in another way"):
        Predictor.load(model)


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda card: card.pop("referral"), "referral"),
        (lambda card: card["referral"].update(threshold=1.5), "referral.threshold"),
        (lambda card: card["temperature"].update(value=0), "temperature.value"),
        (lambda card: card["settings"].update(unheard_of=1), "settings.unheard_of"),
        (lambda card: card["scheme"].update(grades=["one"]), "scheme"),
    ],
)
def test_a_card_that_cannot_be_used_says_where(model, edit, where):
    change_card(model, edit)
    with pytest.raises(StateError, match=f"cannot be used .*{where}"):
        Predictor.load(model)


def test_a_card_of_another_network_is_refused(model):
    change_card(model, lambda card: card["settings"]["network"]["head"].update(width=17))
    with pytest.raises(StateError, match="do not fit the network"):
        Predictor.load(model)


@pytest.mark.parametrize("name", ["card.json", "model.safetensors"])
def test_missing_and_damaged_files_are_refused(model, name):
    (model / name).write_bytes((model / name).read_bytes()[:100])
    with pytest.raises(StateError, match="cannot be read"):
        Predictor.load(model)
    (model / name).unlink()
    with pytest.raises(StateError, match="missing"):
        Predictor.load(model)


def test_the_card_is_plain_json(hospital):
    assert json.loads((hospital.final / "card.json").read_text())["site"] == "site-3"


@pytest.fixture
def odd(hospital, tmp_path):
    """A whole eye, and pictures that no model of eyes should grade."""
    whole = Image.open(hospital.images / hospital.files[0])
    pixels = np.asarray(whole.convert("RGB"))
    made = {
        "whole.png": pixels,
        "dark.png": (pixels * 0.1).astype(np.uint8),
        "black.png": pixels * 0,
        "scan.png": np.repeat(pixels[..., 1:2], 3, 2),
        "pixel.png": np.full((1, 1, 3), (150, 90, 60), np.uint8),
        "covered.png": np.where(np.arange(len(pixels))[:, None, None] > len(pixels) // 2, 0, pixels).astype(np.uint8),
    }
    for name, image in made.items():
        Image.fromarray(image).save(tmp_path / name)
    return tmp_path, list(made)


@pytest.mark.attack("an accident", "a black picture, a scan or a covered eye is given to predict", "no silent grade")
def test_the_gate_stands_before_the_answer(hospital, gated, odd):
    predictor = Predictor.load(gated, "cpu")
    root, names = odd
    rows = {row.file: row for row in predictor.predict(root, names)}
    whole = rows.pop("whole.png")
    before = next(Predictor.load(hospital.final, "cpu").predict(root, ["whole.png"]))
    assert (whole.grade, whole.referral, whole.fault) == (before.grade, before.referral, "")
    reasons = {"another kind of image", "ungradable", "unlike this site's photographs"}
    for file, row in rows.items():
        assert row.referral.refer
        assert row.referral.reasons[-1] in reasons, file
        assert row.fault.endswith(".")
        assert (row.grade is None) == (row.referral.reasons[-1] != "unlike this site's photographs")
    assert rows["scan.png"].referral.reasons == ("another kind of image",)
    assert rows["dark.png"].referral.reasons == ("ungradable",)
    own = list(predictor.predict(hospital.images, hospital.files))
    assert sum(bool(row.fault) for row in own) <= 0.1 * len(own)  # a dozen patients bear no closer limit
    least = [row for row in own if "unusual for this site" in row.referral.reasons]
    assert 0 < len(least) < len(own) / 2
    assert all(row.referral.refer and row.grade is not None and not row.fault for row in least)
    assert predictor.notes == []
    images = hospital.data.split("test").images
    asked = predictor.answer(hospital.files, images)  # as the network gets them, without files
    assert [row.referral for row in asked] == [row.referral for row in own]


def test_the_load_with_the_gate_is_how_many_patients_are_referred(hospital, gated):
    splits = {name: hospital.data.split(name) for name in ("val", "test")}
    given = (hospital.experiment, hospital.trainer, hospital.shared, hospital.personal)
    model = Contestant.of("federated", *given, splits)
    gate = site_gate(model, tensors_digest(model.model), hospital.data, splits)
    odd = gate.odd
    answer, of = expected(hospital), splits["test"]
    test = LabelledPredictions(answer.probabilities, answer.uncertainty, of.labels.numpy(), of.patients)
    found = triage(test, 0.9, hospital.data.scheme, odd=odd)
    assert found.gated_load.k > found.load.k  # the gate does add some here
    card = read_json(gated / "card.json")
    told = triage(test, card["referral"]["threshold"], hospital.data.scheme, odd=odd, silent=gate.silent)
    rows = list(Predictor.load(gated, "cpu").predict(hospital.images, hospital.files))
    referred = {patient for patient, row in zip(of.patients, rows, strict=True) if row.referral.refer}
    assert told.gated_load[:2] == (len(referred), len(set(of.patients)))
    # The list of these patients has as many referred by the rule as the card foretells, of as many.
    assert told.answered_load.n < told.load.n
    card["referral"]["test"] = {name: share and share._asdict() for name, share in told._asdict().items()}
    found = drift(card, work_list(rows, [Owner(patient, "") for patient in of.patients], hospital.data.scheme))
    assert (found.referred.k, found.referred.n) == told.answered_load[:2]


def test_a_model_from_before_the_gate_answers_as_it_did_and_says_so(hospital, odd):
    predictor = Predictor.load(hospital.final, "cpu")
    root, names = odd
    assert all(row.grade is not None for row in predictor.predict(root, names))
    assert "Nothing looked at these photographs" in predictor.notes[0]


@pytest.mark.attack("an accident", "the gate's file is lost, or is another model's", "predict refuses to answer")
def test_a_gate_that_the_card_names_cannot_be_got_round(gated, tmp_path):
    model = shutil.copytree(gated, tmp_path / "final")
    tensors, header = read_tensors(model / "gate.safetensors")
    write_tensors(model / "gate.safetensors", tensors, {"gate": header["gate"] | {"limit": 1e9}})
    with pytest.raises(StateError, match=r"gate and the card .* do not belong together"):
        Predictor.load(model)
    (model / "gate.safetensors").unlink()
    with pytest.raises(StateError, match="missing"):
        Predictor.load(model)
    write_tensors(model / "gate.safetensors", tensors, {"gate": header["gate"]})
    change_card(model, lambda card: card["look"]["gate"].update(model="0" * 64))
    with pytest.raises(StateError, match="do not belong together"):
        Predictor.load(model)
    write_tensors(model / "gate.safetensors", tensors, {"gate": header["gate"] | {"model": "0" * 64}})
    with pytest.raises(StateError, match="another model's"):
        Predictor.load(model)


def test_the_doubt_that_validation_chose_is_used(hospital, model):
    change_card(model, lambda card: card.update(doubt={"used": "unlikely"}))
    predictor = Predictor.load(model, "cpu")
    p = expected(hospital).probabilities
    rows = list(predictor.predict(hospital.images, hospital.files))
    assert [row.uncertainty for row in rows] == (1 - p.max(1)).tolist()


def test_a_chance_of_disease_beyond_the_promise_refers_and_the_set_of_grades_is_named(hospital, model):
    card = read_json(model / "card.json")
    tensors, _ = read_tensors(model / "model.safetensors")
    card["referral"]["threshold"], card["promise"] = 1.0, {"threshold": 0.0}
    card["sets"] = {"limit": 0.99, "wrong": 0.1, "patients": 40, "ordered": True}
    write_json(model / "card.json", card)
    write_tensors(model / "model.safetensors", tensors, {"card": card})
    rows = [
        row for row in Predictor.load(model, "cpu").predict(hospital.images, hospital.files) if row.grade is not None
    ]
    assert rows
    assert all("chance of disease" in row.referral.reasons for row in rows)
    assert any(" to " in row.grades for row in rows)
