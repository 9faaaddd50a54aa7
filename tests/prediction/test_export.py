"""Models that leave: they answer as the product does, with the gate before every answer, and tell of no patient."""

from __future__ import annotations

import csv
import json
import os
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedretina
from fedretina.cli import main
from fedretina.data.modalities import modality
from fedretina.errors import FedretinaError, SettingsError, StateError
from fedretina.evaluation.bootstrap import exact_interval
from fedretina.evaluation.figures import LabelledPredictions
from fedretina.exchange.payload import tensors_digest
from fedretina.export.bundle import answer_folder
from fedretina.export.card import hub_page, leaving_card
from fedretina.export.model import ExportedModel
from fedretina.export.program import MARGIN, AnsweringProgram, Answers, reaches
from fedretina.export.write import export_model
from fedretina.gate.gate import Gate, Shown
from fedretina.local.model import site_network
from fedretina.networks.dropout import answered_with_features
from fedretina.prediction.predictor import Predictor
from fedretina.report.card import build_card
from fedretina.settings.plan import Plan
from fedretina.storage import read_json, write_json, write_tensors
from fedretina.uncertainty.estimators import build_estimator

SECRET = "Mueller-1931"
CHANNELS = "_meta_#network_data_format#outputs#pred#num_channels"


def write_model(folder, experiment, data):
    """A site's folder `final` of a network at its start, with card and gate; returns its test images."""
    net = site_network(experiment, data.scheme).eval()
    state = {key: tensor for key, tensor in net.state_dict().items() if not key.startswith("contrast.")}
    seen, said = {}, {}
    for name in ("train", "val", "test"):
        split = data.split(name)
        with torch.no_grad():
            logits, features, middle = answered_with_features(net, split.images.float() / 255, 1)
        seen[name] = Shown(split.images, features, middle=middle)
        given = build_estimator(experiment.evaluation).predict(logits)
        said[name] = LabelledPredictions(
            given.probabilities, given.uncertainty, split.labels.numpy(), tuple(split.patients)
        )
    digest, patients = tensors_digest(state), data.split("val").patients
    gate = Gate.fitted(seen["train"], seen["val"], patients, modality.of(experiment.images).look, digest)
    card = build_card(
        experiment=experiment, scheme=data.scheme, run=SECRET, site=SECRET, synthetic=True,
        chosen=Plan.of(experiment)[0], theta=None, fingerprint=SECRET, counts=data.graded, model_digest=digest,
        normalisation=net.normalisation, validation=said["val"], test=said["test"],
    )  # fmt: skip
    card["look"] = {"gate": dict(gate.record), "own": {}, "spoiled": {}}
    card["temperature"]["value"] = 0.6
    card["scheme"]["labels"] |= {SECRET: data.scheme.grades[0]}
    write_tensors(folder / "model.safetensors", state, {"card": card})
    write_json(folder / "card.json", card)
    gate.write(folder)
    return data.split("test").images


def shown(images):
    """Own images, and what the gate must stop: black, white, noise, dark, and one without colours."""
    own = images[:8]
    grey = own[:2].float().mean(1, keepdim=True).expand(-1, 3, -1, -1).byte()
    noise = torch.randint(0, 256, own[:2].shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    if bool((own[:, 0] == own[:, 2]).all()):  # scans, which the site's pipeline gives without colours
        noise = noise[:, :1].expand(-1, 3, -1, -1)
    return torch.cat([own, own[:1] * 0, own[:1] * 0 + 255, noise, own[:2] // 12, grey])


def compare(predictor, answering, images):
    """Every row of one as of the other, numbers to 1e-5; returns what the gate said."""
    names = [str(at) for at in range(len(images))]
    theirs = answering.answer(names, images)
    for ours, one in zip(predictor.answer(names, images), theirs, strict=True):
        assert (ours.grade, ours.fault, ours.grades) == (one.grade, one.fault, one.grades)
        if ours.grade is not None:
            assert one.probabilities == pytest.approx(ours.probabilities, abs=1e-5)
            assert one.uncertainty == pytest.approx(ours.uncertainty, abs=1e-5)
        near = ours.uncertainty is not None and abs(ours.uncertainty - predictor.threshold) <= 2 * MARGIN
        assert ours.referral == one.referral or (near and one.referral.refer)
    return [one.fault for one in theirs]


class Untraced(ExportedModel):
    """The program as Python runs it, which costs no export."""

    def __init__(self, program, card):
        record = {"format": 1, "card": leaving_card(card), "looks": [one._asdict() for one in program.looks]}
        super().__init__(json.dumps(record), "nowhere")
        self.program = program

    def run(self, images):
        with self.program.at_work():
            return Answers(*self.program(images))


ROWS = {
    "softmax": {"row": "fedavg"},
    "evidence": {"row": "feduaa"},
    "frozen": {"row": "feduaa", "network": {"frozen": 2, "frozen_cache": "lenient"}},
    "exits of scans": {"row": "fedee", "images": {"modality": "oct"}},
}


@pytest.mark.parametrize("words", ROWS.values(), ids=ROWS)
def test_a_program_answers_as_the_product_does(words, tiny, phantoms, tmp_path):
    experiment = tiny(**words)
    images = shown(write_model(tmp_path, experiment, phantoms(experiment, "site-1")["site-1"]))
    predictor = Predictor.load(tmp_path, "cpu")
    faults = compare(predictor, Untraced(AnsweringProgram(predictor), predictor.card), images)
    assert "" in faults[:8]
    assert all(faults[8:10])


def test_a_threshold_below_the_margin_does_not_refer_everybody():
    values = torch.tensor([0.0, 1.1e-8, 1.1999e-8, 0.5, torch.nan], dtype=torch.float64)
    assert reaches(values, 1.2e-8).tolist() == [False, False, True, True, True]
    assert reaches(values, 0.0).all()
    assert reaches(values, 0.5 + MARGIN / 2).tolist() == [False, False, False, True, True]


@pytest.fixture
def left(tiny, phantoms, tmp_path):
    """A model with evidential exits, one of them within its frozen stages, with its own images."""
    experiment = tiny(
        row="feduaa",
        network={"exits": {"after": [0, 2]}, "frozen": 2, "frozen_cache": "lenient"},
        evaluation={"estimator": "evidence_mean", "auc_input": "answer"},
    )
    return tmp_path / "final", write_model(tmp_path / "final", experiment, phantoms(experiment, "site-1")["site-1"])


def told_in(folder):
    """Every byte of an export, those of archives too."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from (archive.read(name) for name in archive.namelist())


def verified_by_monai(out, photographs):
    """What `python -m monai.bundle` does, in this process: run, verify_net_in_out and verify_metadata."""
    pytest.importorskip("jsonschema")
    from monai.bundle import run, verify_metadata, verify_net_in_out

    configs = {name: str(out / "configs" / f"{name}.json") for name in ("inference", "metadata")}
    there = {"config_file": configs["inference"], "meta_file": configs["metadata"], "bundle_root": str(out)}
    run(**there, dataset_dir=str(photographs), output_dir=str(photographs / "eval"))
    lines = (photographs / "eval" / "answers.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["file", "0.png", "1.png", "2.png"]
    verify_net_in_out("network_def", **there, device="cpu")
    with pytest.raises(ValueError, match="output channel number"):
        verify_net_in_out("network_def", **there, device="cpu", **{CHANNELS: 99})
    # What MONAI's schema of 2024-07-25 asks for; a file that is there is not fetched.
    tensor = {"type": "object", "required": ["type", "format", "num_channels", "spatial_shape", "dtype", "value_range"]}
    ends = {"type": "object", "additionalProperties": tensor}
    schema = {
        "type": "object",
        "required": [
            *("schema", "version", "task", "description", "authors", "copyright", "network_data_format"),
            *("monai_version", "pytorch_version", "numpy_version", "required_packages_version"),
        ],
        "properties": {
            "network_data_format": {"required": ["inputs", "outputs"], "properties": {"inputs": ends, "outputs": ends}},
            "intended_use": {"type": "string"},
            "changelog": {"type": "object"},
        },
    }
    write_json(photographs / "schema.json", schema)
    verify_metadata(configs["metadata"], str(photographs / "schema.json"))
    wrong = read_json(out / "configs" / "metadata.json")
    del wrong["network_data_format"]["outputs"]["pred"]["dtype"]
    write_json(photographs / "wrong.json", wrong)
    with pytest.raises(ValueError, match="Failed validating"):
        verify_metadata(str(photographs / "wrong.json"), str(photographs / "schema.json"))


@pytest.mark.attack("an outsider", "reads what an exported model tells of patients, paths and the run", "nothing")
@pytest.mark.attack("an accident", "a picture of another kind is given to an exported model", "no grade, and a reason")
@pytest.mark.parametrize(
    "to",
    [
        pytest.param("onnx", marks=pytest.mark.slow),  # torch takes some 15 s to write it, whatever the network
        pytest.param("torch", marks=pytest.mark.slow),  # the bundle's program is the same
        "folder",
        "bundle",
    ],
)
def test_what_was_exported_answers_behind_its_gate_and_tells_of_no_patient(to, left, tmp_path):
    final, images = left
    if to == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    out = tmp_path / "out"
    called = CliRunner().invoke(main, ["--json-lines", "export", str(final), "--to", to, "--out", str(out)])
    assert called.exit_code == 0, called.output
    told = [json.loads(line) for line in called.stderr.splitlines() if line.startswith('{"what"')]
    assert told == [{"what": "steps", "done": done, "of": 3} for done in range(4)]
    model = fedretina.load(out)
    faults = compare(Predictor.load(final, "cpu"), model._answering, shown(images))
    assert faults[8:10] == compare(Predictor.load(final, "cpu"), model._answering, shown(images)[8:10])  # another batch
    assert model.predict([np.zeros((50, 60, 3), np.uint8)])[0].grade is None
    if to == "bundle":
        for at, one in enumerate(images[:3]):
            cv2.imwrite(str(tmp_path / f"{at}.png"), one.permute(1, 2, 0).numpy())
        verified_by_monai(out, tmp_path)
    for content in told_in(out):
        assert SECRET.encode() not in content
        assert str(tmp_path).encode() not in content
        assert b"site-packages" not in content
        assert b"custom/fedretina" not in content
    again = CliRunner().invoke(main, ["export", str(final), "--to", to, "--out", str(out)])
    assert again.exit_code == 2
    assert "holds files already" in again.output


def test_a_work_list_is_refused_before_any_answer_by_a_model_that_left(left, tmp_path):
    final, images = left
    export_model(final, "folder", tmp_path / "left")
    eyes, out = tmp_path / "eyes", tmp_path / "list"
    eyes.mkdir()
    cv2.imwrite(str(eyes / "1_left.png"), images[0].permute(1, 2, 0).numpy())
    words = ["predict", str(eyes), "--model", str(tmp_path / "left"), "--out", str(out), "--device", "cpu"]
    said = CliRunner().invoke(main, words)
    assert said.exit_code == 2
    assert "is an export, which tells nothing of the patients that a work list is held against" in said.output
    assert not out.exists()
    assert len(fedretina.load(tmp_path / "left").predict(eyes)) == 1


def test_a_bundles_table_holds_any_name_and_nothing_that_a_spreadsheet_runs(left, tmp_path):
    final, images = left
    export_model(final, "folder", tmp_path / "left")
    eyes = tmp_path / "eyes"
    eyes.mkdir()
    for name in (b"=1+1.png", b"\xff.png"):
        coded = cv2.imencode(".png", images[0].permute(1, 2, 0).numpy())[1]
        Path(os.fsdecode(os.path.join(os.fsencode(eyes), name))).write_bytes(coded.tobytes())
    answer_folder(str(tmp_path / "left"), str(eyes), str(tmp_path / "out"))
    with open(tmp_path / "out" / "answers.csv", newline="", encoding="utf-8") as handle:
        assert {line["file"] for line in csv.DictReader(handle)} == {"'=1+1.png", "\\udcff.png"}


@pytest.mark.parametrize(("threshold", "reason"), [(None, "kept"), (0.0, "kept"), (0.2, "kept"), (None, "few_others")])
def test_the_page_of_what_left_says_that_nothing_is_promised_only_where_nothing_is(left, threshold, reason):
    card = read_json(left[0] / "card.json")
    numbers = {"patients": 120, "needed": 45, "allowed": 2, "passed": 1, "share": 0.9, "others": 0}
    card["promise"] = {"threshold": threshold, "reason": reason, "missed": 0.05, "sure": 0.9, **numbers}
    leaving = leaving_card(card)
    assert not {"patients", "passed", "share"} & leaving["promise"].keys()
    assert ("It promises nothing" in hub_page(leaving, "A folder.")) == (reason != "kept")


def test_shares_of_few_patients_stay_and_the_others_do_not_give_their_counts_back(left):
    card = read_json(left[0] / "card.json")
    share, one = exact_interval(29, 30)._asdict(), exact_interval(1, 1)._asdict()
    card["test"] = {**(card["test"] or {}), "patients": 30}
    for ill, leaves in ((one, None), (None, {"value": 0.97, "low": 0.83, "high": 1.0})):
        card["referral"]["test"] = {"load": share, "missed": ill, "specificity": share}
        told = leaving_card(card)["referral"]["test"]
        assert told == (leaves and {"load": leaves, "missed": None, "specificity": leaves})


def test_without_its_gate_nothing_leaves_and_nothing_that_is_no_export_is_loaded(left, tmp_path):
    final, _ = left
    card = read_json(final / "card.json")
    with pytest.raises(StateError, match="holds no record"):
        Untraced.__bases__[0].__init__(object.__new__(Untraced), None, "model.onnx")
    (tmp_path / "model.pt2").write_bytes(b"nothing")
    with pytest.raises(StateError, match="cannot be read as a program"):
        fedretina.load(tmp_path)
    predictor = Predictor.load(final, "cpu")
    predictor.gate = None
    with pytest.raises(SettingsError, match="has no gate"):
        AnsweringProgram(predictor)
    with pytest.raises(FedretinaError, match="there is no format"):
        export_model(final, "pickle", tmp_path / "out")
    assert leaving_card(card | {"of later": SECRET}).keys() == leaving_card(card).keys()
