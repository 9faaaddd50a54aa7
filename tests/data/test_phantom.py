import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from fedretina.data.phantom import phantom_hospital, phantom_images
from fedretina.data.phantom_drawing import camera_style
from fedretina.data.scheme import preset


@pytest.mark.parametrize(("classes", "size"), [(2, 32), (4, 48), (5, 64), (6, 65)])
def test_shapes_and_types(classes, size):
    images, labels = phantom_images(7, classes, size, ("s", 1))
    assert images.shape == (7, 3, size, size)
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert 0 <= labels.min() <= labels.max() < classes
    assert phantom_images(0, classes, size, ("s",))[0].shape == (0, 3, size, size)


def test_image_i_depends_on_seed_and_i_alone():
    labels = np.arange(10, dtype=np.int64) % 5
    many, _ = phantom_images(10, 5, 48, ("s", 1), labels)
    few, _ = phantom_images(4, 5, 48, ("s", 1), labels[:4])
    assert torch.equal(many[:4], few)
    assert not torch.equal(many[:4], phantom_images(4, 5, 48, ("s", 2), labels[:4])[0])
    assert len({image.numpy().tobytes() for image in many}) == 10


def test_labels_given_are_kept_and_not_aliased():
    labels = np.array([4, 0, 2], dtype=np.int64)
    _, kept = phantom_images(3, 5, 32, ("s",), labels)
    kept[0] = 1
    assert labels.tolist() == [4, 0, 2]


def test_a_bright_disc_on_black():
    images, _ = phantom_images(20, 5, 64, ("s", 3))
    brightest = images.amax(1).float()
    assert brightest[:, :4, :4].mean() < 6
    assert brightest[:, 24:40, 24:40].mean() > 80
    red, green, blue = images[:, :, 16:48, 16:48].float().mean(dim=(0, 2, 3))
    assert red > green > blue


def test_ungradable_images_are_dark():
    labels = np.repeat([0, 5], 30).astype(np.int64)
    images, _ = phantom_images(60, 6, 64, ("s",), labels)
    light = images.float().mean(dim=(1, 2, 3))
    assert light[30:].mean() < 0.65 * light[:30].mean()
    graded, _ = phantom_images(60, 6, 64, ("s",), labels, ungradable=False)
    assert graded[30:].float().mean() > 0.8 * light[:30].mean()


def test_grades_can_be_learnt_and_neighbours_overlap():
    labels = np.random.default_rng(0).integers(0, 5, 400)
    images, _ = phantom_images(400, 5, 64, ("learn",), labels)
    x = images.numpy().astype(float)
    local = np.abs(x[:, :, 1:] - x[:, :, :-1])
    ratio = x[:, 0] / (x[:, 1] + 10)
    features = np.column_stack(
        [np.percentile(local, q, axis=(1, 2, 3)) for q in (50, 80, 90, 95, 99)]
        + [np.percentile(ratio, q, axis=(1, 2)) for q in (5, 50, 90, 97, 99)]
        + [x[:, c].std(axis=(1, 2)) for c in range(3)]
    )
    features = (features - features.mean(0)) / features.std(0)
    answer = cross_val_predict(LogisticRegression(max_iter=2000), features, labels, cv=4, method="predict_proba")
    assert roc_auc_score(labels >= 2, answer[:, 2:].sum(1)) > 0.85
    assert (answer.argmax(1) == labels).mean() < 0.9


def test_cameras_differ():
    styles = {camera_style((phantom_hospital(f"site-{k}").style_seed,)) for k in range(1, 6)}
    assert len(styles) == 5
    assert camera_style((1,)) == camera_style((1,))


def test_presets_follow_the_paper():
    hospitals = [phantom_hospital(f"site-{k}", 160) for k in range(1, 6)]
    assert [h.scheme.num_classes for h in hospitals] == [5, 4, 6, 5, 5]
    assert hospitals[2].scheme.ungradable is not None
    assert np.mean([h.sizes[0] for h in hospitals]) == 160
    assert hospitals[4].sizes[0] == min(h.sizes[0] for h in hospitals)
    assert all(abs(sum(h.mix) - 1) < 1e-9 for h in hospitals)


def test_any_name_has_a_stable_hospital():
    assert phantom_hospital("st-elsewhere") == phantom_hospital("st-elsewhere")
    names = [f"clinic-{k}" for k in range(40)]
    assert {phantom_hospital(name).scheme.num_classes for name in names} == {4, 5, 6}
    assert len({phantom_hospital(name).style_seed for name in names}) == 40


def test_own_grades():
    own = phantom_hospital("site-2", 100, preset("icdr5_ungradable"))
    assert own.mix == (1 / 6,) * 6
    assert phantom_hospital("site-1", 100, preset("icdr5")).mix == phantom_hospital("site-1").mix


@pytest.mark.parametrize("images", [1, 16, 160, 333])
@pytest.mark.parametrize("site", ["site-1", "site-3", "site-4", "site-5"])
def test_labels_follow_the_mix_and_miss_no_grade(site, images):
    hospital = phantom_hospital(site, images)
    for split in range(3):
        labels = hospital.labels(split, ("s", split))
        counts = np.bincount(labels, minlength=hospital.scheme.num_classes)
        assert len(labels) == hospital.sizes[split]
        assert counts.min() >= 1
        slack = hospital.scheme.num_classes
        assert np.abs(counts - np.array(hospital.mix) * len(labels)).max() <= slack
    assert not np.array_equal(hospital.labels(0, ("a",)), hospital.labels(0, ("b",)))
