"""The gate on drawn eyes and scans: a site's own pass, and what nobody should grade does not."""

import math

import numpy as np
import pytest
import torch

from fedretina.data.modalities import modality
from fedretina.data.site_data import load_site_data
from fedretina.errors import StateError
from fedretina.gate import gate as module
from fedretina.gate.appearance import appearance
from fedretina.gate.gate import FINE, Gate, Look, Shown
from fedretina.gate.spoils import SPOILS
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings

pytestmark = pytest.mark.slow
KINDS = {"fundus": {}, "oct": {"images": {"modality": "oct"}}}


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """A gate without a network, fitted on 160 drawn images, and 60 or more that it has not seen; by modality."""
    found = {}
    for kind, words in KINDS.items():
        images = Experiment.resolve({"row": "feduaa", **words, "images": {"image_size": 64, **words.get("images", {})}})
        scheme = {} if kind == "fundus" else {"scheme": "oct3"}
        settings = SiteDataSettings(phantom_images=160, **scheme)
        data = load_site_data("site-1", settings, images.images, 3, tmp_path_factory.mktemp("none"))
        train, val, test = (data.split(name) for name in ("train", "val", "test"))
        look = modality.of(images.images).look
        gate = Gate.fitted(Shown(train.images, None), Shown(val.images, None), val.patients, look, "m")
        found[kind] = gate, test.images
    return found


def stopped(gate, images, reason=None):
    looks = gate.look(Shown(images, None))
    return sum(one.reason is not None and reason in (None, one.reason) for one in looks) / len(looks)


@pytest.mark.parametrize("kind", KINDS)
def test_own_images_pass_and_spoiled_ones_do_not(sites, kind):
    gate, images = sites[kind]
    assert gate.measures
    assert stopped(gate, images) <= 0.02
    for name, spoil in SPOILS.items():
        spoiled = torch.from_numpy(np.stack([spoil(image) for image in images.numpy()]))
        assert stopped(gate, spoiled) >= 0.98, name
    dark = torch.from_numpy(np.stack([SPOILS["darkened to a tenth"](image) for image in images.numpy()]))
    assert stopped(gate, dark, "ungradable") >= 0.98
    assert all(not one.answered for one in gate.look(Shown(dark, None)) if one.reason == "ungradable")


@pytest.mark.attack("an accident", "a scan is given to a model of eyes, or an eye to one of scans", "no grade is given")
def test_the_other_kind_of_image_is_refused(sites):
    (eyes, photographs), (scans, slices) = sites["fundus"], sites["oct"]
    assert stopped(eyes, slices, "another kind of image") == 1
    stored = photographs[0].permute(1, 2, 0).numpy()
    assert scans.refuses(stored) == Look("another kind of image", "it is in colour, so it is no scan.", False)
    assert scans.refuses(slices[0].permute(1, 2, 0).numpy()) == FINE
    assert eyes.refuses(stored) == FINE


def test_each_reason_has_its_words(sites):
    gate, images = sites["fundus"]
    flat = torch.full((1, 3, 64, 64), 90, dtype=torch.uint8)
    flat[:, 0] = 150  # a single pixel, made large, is one colour
    noise = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    noise[:, 0] = 150 + noise[:, 0] // 4
    blue = images[:1].flip(1)
    odd = torch.cat([flat, flat * 0, blue, noise, images[:1]])
    looks = gate.look(Shown(odd, None))
    assert [one.reason for one in looks] == ["ungradable", "another kind of image", "ungradable", looks[3].reason, None]
    assert "nothing to be seen" in looks[0].words
    assert "exchanged" in looks[2].words
    assert looks[3].reason in ("ungradable", "unlike this site's photographs")
    assert looks[4] == FINE


def test_the_models_features_count_too_and_a_number_that_is_none_is_no_pass(sites):
    _, images = sites["fundus"]
    draws = torch.Generator().manual_seed(1)
    train, val = torch.randn(60, 8, generator=draws), torch.randn(40, 8, generator=draws)
    patients = [str(at) for at in range(40)]
    look = modality.of(Experiment.resolve({"row": "feduaa"}).images).look
    gate = Gate.fitted(Shown(images, train), Shown(images[:40], val), patients, look, "m")
    strange = torch.stack([val[0] + 50, torch.full((8,), math.nan), val[0]])
    looks = gate.look(Shown(images[:3], strange))
    assert [one.reason for one in looks] == ["unlike this site's photographs"] * 2 + [None]
    assert looks[0].answered
    signals = Gate.fitted(Shown(images, train), Shown(images[:40], val), patients, None, "m")
    assert [one.reason is None for one in signals.look(Shown(images[:3] * 0, strange))] == [False, False, True]


def test_what_the_middle_stage_saw_stops_what_the_features_pass(sites):
    _, images = sites["fundus"]
    draws = torch.Generator().manual_seed(3)
    train, val = torch.randn(60, 8, generator=draws), torch.randn(40, 8, generator=draws)
    patients = [str(at) for at in range(40)]
    look = modality.of(Experiment.resolve({"row": "feduaa"}).images).look
    own = Shown(images[:40], val, middle=val.flip(1))
    gate = Gate.fitted(Shown(images, train, middle=train.flip(1)), own, patients, look, "m", 0.2)
    assert set(gate.record["usual"]) == {"share", "appearance", "features", "middle"}
    told = gate.look(Shown(images[:2], val[:2], middle=torch.stack([val[0] + 50, val[1].flip(0)])))
    assert [one.reason for one in told] == ["unlike this site's photographs", None]
    # A gate from before there was one does not look at it.
    older = Gate.fitted(Shown(images, train), Shown(images[:40], val), patients, look, "m", 0.2)
    assert older.look(own) == older.look(Shown(images[:40], val))


@pytest.mark.attack(
    "an accident", "eyes of a camera that looks nearly like the site's are given to predict", "a doctor looks as well"
)
def test_the_least_usual_of_those_that_pass_are_told_apart(sites):
    _, images = sites["fundus"]
    draws = torch.Generator().manual_seed(2)
    train, val, new = (torch.randn(count, 8, generator=draws) for count in (200, 150, 60))
    shown = Shown(images[:30].repeat(5, 1, 1, 1), val)
    look = modality.of(Experiment.resolve({"row": "feduaa"}).images).look
    patients = [str(at // 2) for at in range(150)]

    def unusual(share, features):
        gate = Gate.fitted(Shown(images[:60], train[:60]), shown, patients, look, "m", share)
        own = Shown(images[:30].repeat(2, 1, 1, 1), features)
        return [one.unusual for one in gate.look(own) if one.answered and one.reason is None]

    assert 0 < np.mean(unusual(0.2, new)) < 0.25
    assert np.mean(unusual(0.2, 1.7 * new)) > 0.5  # within the limit, and yet not like its own
    assert not any(unusual(0.0, 1.7 * new))


def test_with_few_images_only_what_is_odd_anywhere_is_stopped(sites):
    _, images = sites["fundus"]
    look = modality.of(Experiment.resolve({"row": "feduaa"}).images).look
    gate = Gate.fitted(Shown(images[:6], None), Shown(images[6:9], None), "abc", look, "m")
    assert not gate.measures
    assert [one.reason for one in gate.look(Shown(torch.cat([images[:1], images[:1] * 0]), None))] == [
        None,
        "another kind of image",
    ]


def test_a_rule_that_a_sites_own_images_break_is_none_for_it(sites):
    _, images = sites["fundus"]
    grey = images.float().mean(1, keepdim=True).expand(-1, 3, -1, -1).to(torch.uint8)
    look = modality.of(Experiment.resolve({"row": "feduaa"}).images).look
    patients = [str(at) for at in range(30)]
    gate = Gate.fitted(Shown(grey[:30], None), Shown(grey[30:60], None), patients, look, "m")
    assert "image_grey" not in gate.record["rules"]
    assert stopped(gate, grey[30:60]) == 0


@pytest.mark.parametrize(
    ("patients", "beyond"), [(439, 4), (221, 1), (114, 0)], ids=["many", "some", "the-fewest-that-bear-it"]
)
def test_the_limit_is_passed_by_one_in_fifty_at_most_nine_times_in_ten(patients, beyond):
    rng = np.random.default_rng(0)
    drawn = rng.uniform(size=(2000, patients))
    limits = np.array([module._limit(row.tolist())[0] for row in drawn])
    assert module._limit(list(range(patients)))[1] == beyond
    assert np.mean(1 - limits <= module.STOPPED) >= 0.89
    assert module._limit([*drawn[0], math.inf])[0] < 2  # one that a rule stops anyway sets no limit


def test_few_patients_have_a_wider_limit_than_the_largest_of_them():
    rng = np.random.default_rng(0)
    passed = [np.mean(rng.normal(size=500) > module._limit(rng.normal(size=12).tolist())[0]) for _ in range(300)]
    assert np.mean(np.array(passed) <= module.STOPPED) >= 0.85
    assert module._limit([1.0]) == (1.0, 0)


def test_it_is_read_as_it_was_written_and_another_is_refused(sites, tmp_path):
    gate, images = sites["fundus"]
    gate.write(tmp_path)
    again = Gate.read(tmp_path, gate.record, gate.expected)
    assert again.look(Shown(images, None)) == gate.look(Shown(images, None))
    with pytest.raises(StateError, match="do not belong together"):
        Gate.read(tmp_path, {**gate.record, "limit": 99.0}, gate.expected)
    with pytest.raises(StateError, match="format 3, this version reads 1 and 2"):
        Gate.read(tmp_path, {**gate.record, "format": 3}, gate.expected)
    (tmp_path / module.FILE).unlink()
    with pytest.raises(StateError, match="missing"):
        Gate.read(tmp_path, gate.record, gate.expected)


def test_looks_do_not_depend_on_what_comes_with_an_image(sites):
    _, images = sites["fundus"]
    together = appearance(images).numbers
    assert torch.allclose(together[7], appearance(images[7:8]).numbers[0], atol=1e-6)
    assert appearance(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).numbers.isfinite().all()
