import cv2
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from fedretina.data.phantoms.canvas import stamp
from fedretina.data.phantoms.draw import cases_of, phantom_images
from fedretina.data.phantoms.fundus import icdr_grades
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.phantoms.kind import Case
from fedretina.settings.scheme import GradingScheme, preset


def draw(labels, size=64, site="site-1", modality="fundus", seed=("s",), scheme=None):
    return phantom_images(phantom_hospital(site, 100, scheme, modality), cases_of(labels), size, seed)


@pytest.mark.parametrize("modality", ["fundus", "oct"])
@pytest.mark.parametrize("size", [32, 65, 128, 200])
def test_shapes_and_types(size, modality):
    images = draw([0, 1, 2, 3], size, "site-2", modality)
    assert images.shape == (4, 3, size, size)
    assert images.dtype == torch.uint8
    assert len({image.numpy().tobytes() for image in images}) == 4
    assert draw([], size, modality=modality).shape == (0, 3, size, size)


@pytest.mark.parametrize("modality", ["fundus", "oct"])
def test_a_picture_depends_on_seed_and_case_alone(modality):
    labels = np.arange(9) % 4
    many, few = draw(labels, 48, modality=modality), draw(labels[:4], 48, modality=modality)
    assert torch.equal(many[:4], few)
    assert torch.equal(many, draw(labels, 48, modality=modality))
    assert not torch.equal(few, draw(labels[:4], 48, modality=modality, seed=("t",)))
    hospital = phantom_hospital("site-1", 100, None, modality)
    backwards = phantom_images(hospital, cases_of(labels)[::-1], 48, ("s",))
    assert torch.equal(backwards.flip(0), many)


def test_the_label_does_not_reach_the_picture_but_through_the_truth():
    hospital = phantom_hospital("site-1")
    one, other = Case(0, 3, 7, True), Case(2, 3, 7, True)
    assert torch.equal(*(phantom_images(hospital, [case], 48, ("s",)) for case in (one, other)))


def test_the_nose_is_on_the_right_of_a_right_eye():
    hospital = phantom_hospital("site-5")
    for left in (False, True):
        images = phantom_images(hospital, [Case(0, 0, number, left) for number in range(8)], 64, ("s",))
        disc = images[:, 2].float().mean(0)[16:48]  # blue is bright on the disc alone
        nasal, temporal = (disc[:, :28], disc[:, 36:]) if left else (disc[:, 36:], disc[:, :28])
        assert nasal.max() > 1.3 * temporal.max()


def test_both_eyes_of_a_patient_are_alike():
    hospital = phantom_hospital("site-3")._replace(label_noise=0)
    pairs = [[Case(0, 0, number, left) for left in (False, True)] for number in range(30)]
    images = phantom_images(hospital, [case for pair in pairs for case in pair], 32, ("s",)).float()
    tone = (images[:, 0] / (images[:, 1] + 1))[:, 8:24, 8:24].mean((1, 2)).reshape(30, 2).numpy()
    assert np.corrcoef(tone.T)[0, 1] > 0.6


def test_a_photograph_is_a_bright_disc_on_black():
    images = draw(np.arange(20) % 5)
    brightest = images.amax(1).float()
    assert brightest[:, :4, :4].mean() < 6
    assert brightest[:, 24:40, 24:40].mean() > 80
    red, green, blue = images[:, :, 16:48, 16:48].float().mean(dim=(0, 2, 3))
    assert red > green > blue


def test_a_scan_is_dark_above_and_bright_in_the_retina():
    images = draw([0] * 20, modality="oct", site="site-4").float()
    assert torch.equal(images[:, 0], images[:, 1])
    depth = images[:, 0].mean((0, 2))
    assert depth[:8].mean() < 40
    assert depth.max() > 2 * depth[:8].mean()


def redness(images):
    """Share of pixels that are darker than their surroundings in green: blood."""
    green = images[:, 1].numpy()
    around = np.stack([cv2.medianBlur(image, 9) for image in green]).astype(float)
    return ((around - green > 12) & (around > 20)).mean((1, 2))


def test_lesions_grow_with_the_grade():
    hospital = phantom_hospital("site-5")
    shares = [redness(phantom_images(hospital, cases_of([grade] * 20), 64, ("s",))).mean() for grade in range(5)]
    assert shares[0] < shares[1] < shares[2] < shares[3]
    assert shares[4] > 1.5 * shares[1]


def test_ungradable_photographs_are_blurred_dark_or_veiled():
    images = draw([0] * 30 + [5] * 30, site="site-3").float()
    inside = images[:, :, 16:48, 16:48]
    detail = (inside[..., 1:] - inside[..., :-1]).abs().mean((1, 2, 3)).numpy()
    light = inside.mean((1, 2, 3)).numpy()
    good, odd = light[:30], np.abs(light[30:] - np.median(light[:30])) > 2 * light[:30].std()
    assert (odd | (detail[30:] < np.quantile(detail[:30], 0.1))).mean() > 0.5
    assert good.std() < light[30:].std()


def test_diseases_change_the_layers():
    hospital = phantom_hospital("site-1", 100, None, "oct")
    normal, drusen, dme, cnv = (
        phantom_images(hospital, cases_of([label] * 24), 96, ("s",))[:, 0].float() for label in range(4)
    )

    def bends(scans):
        """How much the line of the brightest pixels winds, white margins aside."""
        line = torch.where(scans > 250, 0, scans)[:, 8:-8].argmax(1).float()
        return (line[:, 2:] - 2 * line[:, 1:-1] + line[:, :-2]).abs().clamp(max=6).mean()

    def holes(scans):
        """Share of dark spots, found by a morphological closing."""
        wide = torch.nn.functional.max_pool2d(scans[:, None], 9, 1, 4)
        closed = -torch.nn.functional.max_pool2d(-wide, 9, 1, 4)
        return (closed - scans[:, None] > 50).float().mean()

    assert bends(drusen) > 1.1 * bends(normal)
    assert holes(dme) > 1.15 * holes(normal)
    assert holes(cnv) > 1.1 * holes(normal)


@pytest.mark.parametrize("disease", ["amd", "rvo", "erm"])
def test_other_diseases_can_be_drawn(disease):
    scheme = GradingScheme(grades=("normal", disease))
    normal, ill = (draw([label] * 6, modality="oct", scheme=scheme) for label in (0, 1))
    assert not torch.equal(normal, ill)


def test_cameras_differ():
    means = [draw([0] * 12, site=f"site-{k}").float().mean((0, 2, 3)) for k in range(1, 6)]
    for first in range(5):
        for second in range(first):
            assert (means[first] - means[second]).abs().max() > 3


def test_what_a_class_stands_for():
    assert icdr_grades(preset("icdr5")) == [(0,), (1,), (2,), (3,), (4,)]
    assert icdr_grades(preset("normal_3stages")) == [(0,), (1,), (2,), (3, 4)]
    assert icdr_grades(preset("icdr5_ungradable"))[:5] == [(0,), (1,), (2,), (3,), (4,)]
    referable = GradingScheme(grades=("no", "yes"), labels={"0": "no", "1": "no", "2": "yes", "3": "yes", "4": "yes"})
    assert icdr_grades(referable) == [(0, 1), (2, 3, 4)]
    assert icdr_grades(GradingScheme(grades=("none", "some", "much"))) == [(0,), (2,), (4,)]
    assert len(icdr_grades(GradingScheme(grades=tuple(f"g{k}" for k in range(9))))) == 9


@pytest.mark.parametrize("modality", ["fundus", "oct"])
def test_the_mark_is_drawn_from_128_pixels_on_and_is_the_same_in_all(modality):
    small, large = draw([0, 1, 2], 64, modality=modality), draw([0, 1, 2], 128, modality=modality)
    words = large[:, :, -7:, :38]
    assert (words == words[:1, :1]).all()
    assert set(words.unique().tolist()) == {0, 110}
    assert not (small[:, :, -7:, :38] == 110).all(1).any()
    twice = large[0].permute(1, 2, 0).numpy().copy()
    stamp(twice)
    assert np.array_equal(twice, large[0].permute(1, 2, 0).numpy())


@pytest.mark.parametrize("size", [128, 224, 256, 512])
def test_the_mark_lies_outside_the_field_of_view(size):
    blank = np.zeros((size, size, 3), np.uint8)
    stamp(blank)
    y, x = np.nonzero(blank[..., 0])
    assert len(y)
    assert (np.hypot(x + 0.5 - size / 2, y + 0.5 - size / 2) > 0.99 * size / 2).all()


def test_grades_can_be_learnt_and_neighbours_overlap():
    labels = np.random.default_rng(0).integers(0, 5, 240)
    x = draw(labels, seed=("learn",)).numpy().astype(float)
    local = np.abs(x[:, :, 1:] - x[:, :, :-1])
    ratio = x[:, 0] / (x[:, 1] + 10)
    features = np.column_stack(
        [np.percentile(local, q, axis=(1, 2, 3)) for q in (50, 80, 90, 95, 99)]
        + [np.percentile(ratio, q, axis=(1, 2)) for q in (5, 50, 90, 97, 99)]
        + [x[:, c].std(axis=(1, 2)) for c in range(3)]
    )
    features = (features - features.mean(0)) / features.std(0)
    answer = cross_val_predict(LogisticRegression(max_iter=2000), features, labels, cv=4, method="predict_proba")
    assert roc_auc_score(labels >= 2, answer[:, 2:].sum(1)) > 0.8
    assert (answer.argmax(1) == labels).mean() < 0.85
