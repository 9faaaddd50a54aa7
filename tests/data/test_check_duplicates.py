import cv2
import numpy as np
import pytest

from fedretina.data.check import pixels as module
from fedretina.data.check.pixels import check_duplicates, measure, similar_pairs
from fedretina.data.check.rows import Image
from fedretina.data.check.rules import Findings
from fedretina.data.modalities import modality_named
from fedretina.settings.scheme import preset
from little_eyes import eye


def codes(*images, modality="fundus"):
    """Each image is (pixels, label, patient, split)."""
    findings = Findings()
    facts = [measure(np.ascontiguousarray(one[0])) for one in images]
    names = [Image("", f"{at}.png", *one[1:]) for at, one in enumerate(images)]
    digests, details = [fact.digest for fact in facts], [fact.detail for fact in facts]
    check_duplicates(names, digests, details, preset("icdr5"), findings, modality)
    return {one.code: one for one in findings}


def test_different_eyes_are_no_duplicates():
    assert codes(*((eye(seed), 0, f"p{seed}", "train") for seed in range(12))) == {}


def test_equal_pixels_in_a_split():
    found = codes((eye(1), 0, "a", "train"), (eye(2), 0, "b", "train"), (eye(1), 0, "c", "train"))
    assert set(found) == {"duplicate_in_split"}
    assert found["duplicate_in_split"].severity == "warning"
    assert found["duplicate_in_split"].where == ("0.png (no_dr, train) = 2.png (no_dr, train)",)
    assert found["duplicate_in_split"].files == (("0.png", "2.png"),)


def test_equal_pixels_across_splits():
    found = codes((eye(1), 0, "a", "train"), (eye(1), 0, "b", "test"))
    assert {(code, one.severity) for code, one in found.items()} == {("duplicate_across_splits", "error")}


def test_equal_pixels_with_other_labels_across_splits():
    found = codes((eye(1), 0, "a", "train"), (eye(1), 3, "a", "val"), (eye(1), 3, "a", "val"))
    assert set(found) == {"duplicate_across_splits", "duplicate_with_other_label"}
    assert found["duplicate_with_other_label"].count == 1


def test_a_refused_label_is_no_other_label():
    assert set(codes((eye(1), None, "a", "train"), (eye(1), 3, "b", "train"))) == {"duplicate_in_split"}


def jpeg(image, quality):
    return cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)


COPIES = {
    "saved again": lambda image: jpeg(image, 70),
    "smaller": lambda image: cv2.resize(image, (96, 96), interpolation=cv2.INTER_AREA),
    "larger": lambda image: cv2.resize(image, (320, 320), interpolation=cv2.INTER_CUBIC),
    "squeezed": lambda image: cv2.resize(image, (160, 120), interpolation=cv2.INTER_AREA),
    "brighter": lambda image: np.clip(image * 1.2, 0, 255).astype(np.uint8),
    "cut": lambda image: image[3:-3, 3:-3],
    "on a page": lambda image: cv2.copyMakeBorder(image, 20, 20, 60, 60, cv2.BORDER_CONSTANT),
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_changed_copy_is_near(copy):
    found = codes(
        (eye(1), 0, "a", "train"),
        (eye(2), 0, "b", "train"),
        (COPIES[copy](eye(1)), 2, "c", "test"),
        (eye(4), 0, "d", "train"),
    )
    assert set(found) == {"near_duplicate"}
    assert found["near_duplicate"].files == (("0.png", "2.png"),)
    assert found["near_duplicate"].where[0].startswith("0.png (no_dr, train) = 2.png (moderate, test), alike by ")
    assert found["near_duplicate"].severity == "warning"


def test_two_shots_of_one_eye_in_one_split_are_as_they_should_be():
    assert codes((eye(1), 0, "a", "train"), (jpeg(eye(1), 80), 0, "a", "train")) == {}


def test_a_mirrored_eye_is_another():
    assert codes((eye(1), 0, "a", "train"), (eye(1)[:, ::-1], 0, "b", "train")) == {}


def test_images_that_show_nothing_are_like_no_other():
    flat = np.full((90, 90, 3), 80, np.uint8)
    assert codes((flat, 0, "a", "train"), (flat + 1, 0, "b", "test"), (flat * 0, 0, "c", "val")) == {}


def test_oct_scans_must_be_more_alike():
    # A strongly compressed copy stands between the two bounds.
    pair = (eye(1), 0, "a", "train"), (jpeg(cv2.GaussianBlur(eye(1), (0, 0), 1), 30), 0, "b", "train")
    first, second = (measure(one[0]).detail.astype(float) for one in pair)
    assert modality_named("fundus").look.alike <= first @ second < modality_named("oct").look.alike
    assert set(codes(*pair)) == {"near_duplicate"}
    assert codes(*pair, modality="oct") == {}


def test_no_images():
    assert codes() == {}


@pytest.mark.parametrize(("rows", "columns"), [(1024, 8192), (7, 5), (4, 16), (1, 1)])
def test_pairs_are_those_of_the_slow_form(monkeypatch, rows, columns):
    monkeypatch.setattr(module, "_ROWS", rows)
    monkeypatch.setattr(module, "_COLUMNS", columns)
    rng = np.random.default_rng(5)
    details = rng.normal(size=(33, 40))
    details[[3, 20, 21, 32]] = details[0] + 0.2 * rng.normal(size=(4, 40))
    details[16] = details[15]
    details = (details / np.linalg.norm(details, axis=1, keepdims=True)).astype(np.float16)
    slow = {
        (i, j)
        for i in range(33)
        for j in range(i + 1, 33)
        if sum(float(a) * float(b) for a, b in zip(details[i], details[j], strict=True)) >= 0.92
    }
    found = list(similar_pairs(details, 0.92))
    assert {(i, j) for i, j, _ in found} == slow
    assert len(found) == len(slow) > 5
