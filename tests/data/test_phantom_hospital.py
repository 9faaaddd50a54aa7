import numpy as np
import pytest

from fedretina.data.phantoms.fundus import FUNDUS
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.phantoms.oct import OCT
from fedretina.errors import DataError
from fedretina.settings.scheme import GradingScheme, preset


def labels(cases):
    return np.array([case.label for case in cases])


def test_presets_follow_the_paper():
    hospitals = [phantom_hospital(f"site-{k}", 160) for k in range(1, 6)]
    assert [h.scheme.num_classes for h in hospitals] == [5, 4, 6, 5, 5]
    assert hospitals[2].scheme.ungradable is not None
    assert np.mean([h.sizes[0] for h in hospitals]) == 160
    assert hospitals[4].sizes[0] == min(h.sizes[0] for h in hospitals)
    assert all(abs(sum(h.mix) - 1) < 1e-9 for h in hospitals)
    assert len({h.style for h in hospitals}) == 5


def test_the_true_mixes_add_up_to_the_published_totals():
    # Table 3 of FedUAA, save Messidor, whose list is the second release's.
    assert [sum(entry.counts) for entry in FUNDUS] == [3662, 1744, 13673, 35126, 516]
    assert phantom_hospital("site-4").mix[0] == pytest.approx(25810 / 35126)


def test_the_oct_clients_divide_the_papers_classes():
    hospitals = [phantom_hospital(f"site-{k}", 160, modality="oct") for k in range(1, 5)]
    assert all(h.scheme == preset("oct4") and h.diseases() == ("normal", "drusen", "dme", "cnv") for h in hospitals)
    kermany = np.array([entry.counts for entry in OCT[:3]])
    assert kermany.sum(0).tolist() == [26315, 8617, 11349, 37206]
    assert sum(OCT[3].counts) == 5000
    # Three clients share a scanner and differ in their classes; the fourth is another scanner.
    assert hospitals[0].style == hospitals[1].style == hospitals[2].style != hospitals[3].style
    share = kermany / kermany.sum(1, keepdims=True)
    assert np.abs(share[:, None] - share[None]).max(2)[np.triu_indices(3, 1)].min() > 0.2
    assert np.mean([h.sizes[0] for h in hospitals]) == 160


@pytest.mark.parametrize("modality", ["fundus", "oct"])
def test_any_name_has_a_stable_hospital(modality):
    names = [f"clinic-{k}" for k in range(40)]
    hospitals = [phantom_hospital(name, modality=modality) for name in names]
    assert hospitals == [phantom_hospital(name, modality=modality) for name in names]
    assert len({h.style for h in hospitals}) == 40
    assert {h.scheme.num_classes for h in hospitals} == ({4, 5, 6} if modality == "fundus" else {4})
    assert len({h.mix for h in hospitals}) == len(FUNDUS if modality == "fundus" else OCT)


def test_own_grades():
    own = phantom_hospital("site-2", 100, preset("icdr5_ungradable"))
    assert own.mix == (1 / 6,) * 6
    assert phantom_hospital("site-1", 100, preset("icdr5")).mix == phantom_hospital("site-1").mix
    three = GradingScheme(grades=("normal", "AMD", "diabetic"), labels={"0": "normal", "1": "AMD", "DME": "diabetic"})
    assert phantom_hospital("site-1", 100, three, "oct").diseases() == ("normal", "amd", "dme")


def test_a_scan_cannot_show_a_grade_of_retinopathy():
    with pytest.raises(DataError, match=r"'mild'.*name the grade one of"):
        phantom_hospital("x", 100, GradingScheme(grades=("normal", "mild")), "oct")


@pytest.mark.parametrize("images", [1, 16, 160, 333])
@pytest.mark.parametrize(("site", "modality"), [("site-1", "fundus"), ("site-3", "fundus"), ("site-3", "oct")])
def test_labels_follow_the_mix_and_miss_no_grade(site, modality, images):
    hospital = phantom_hospital(site, images, None, modality)
    for split in range(3):
        found = labels(hospital.cases(split, ("s", split)))
        counts = np.bincount(found, minlength=hospital.scheme.num_classes)
        assert len(found) == hospital.sizes[split]
        assert counts.min() >= 1
        assert np.abs(counts - np.array(hospital.mix) * len(found)).max() <= hospital.scheme.num_classes
    assert hospital.cases(0, ("a",)) == hospital.cases(0, ("a",)) != hospital.cases(0, ("b",))


@pytest.mark.parametrize("modality", ["fundus", "oct"])
def test_patients_have_one_or_two_eyes_of_close_grades(modality):
    hospital = phantom_hospital("site-1", 1000, None, modality)._replace(mix=(0.25,) * 4, scheme=preset("oct4"))
    if modality == "fundus":
        hospital = hospital._replace(scheme=preset("normal_3stages"))
    cases = hospital.cases(0, ("s",))
    eyes = {}
    for case in cases:
        eyes.setdefault(case.patient, []).append(case)
    assert sorted(eyes) == list(range(len(eyes)))
    pairs = [pair for pair in eyes.values() if len(pair) == 2]
    assert {len(pair) for pair in eyes.values()} == {1, 2}
    assert 0.4 < len(pairs) / len(eyes) < 0.6
    assert all(first.left != second.left for first, second in pairs)
    assert 0.4 < np.mean([case.left for case in cases]) < 0.6
    place = {label: at for at, label in enumerate(hospital._order())}
    ranks = np.array([[place[case.label] for case in pair] for pair in pairs])
    assert np.corrcoef(ranks.T)[0, 1] > 0.6
    assert np.mean(ranks[:, 0] != ranks[:, 1]) > 0.02


def test_names_say_phantom_and_no_two_eyes_share_one():
    hospital = phantom_hospital("site-1", 200)
    names = [
        hospital.file_name(case, split)
        for at, split in enumerate(("train", "test"))
        for case in hospital.cases(at, (1,))
    ]
    assert len(set(names)) == len(names)
    assert all(name.startswith("phantom-") for name in names)
    first = hospital.cases(0, (1,))[0]
    assert hospital.file_name(first, "val").startswith(first.patient_name("val"))


@pytest.mark.parametrize(("site", "modality"), [("site-4", "fundus"), ("site-2", "oct")])
def test_graders_mistake_neighbours_at_their_rate(site, modality):
    hospital = phantom_hospital(site, 4000, None, modality)
    order = hospital._order()
    for split in range(3):
        cases = hospital.cases(split, ("s",))
        wrong = [case for case in cases if case.truth != case.label]
        assert len(wrong) / len(cases) == pytest.approx(hospital.label_noise, abs=4 * (0.08 / len(cases)) ** 0.5)
        assert {abs(order.index(case.truth) - order.index(case.label)) for case in wrong} == {1}
    calm = hospital._replace(label_noise=0.0).cases(0, ("s",))
    assert all(case.truth == case.label for case in calm)


def test_nobody_mistakes_what_cannot_be_graded():
    hospital = phantom_hospital("site-3", 2000)._replace(label_noise=1.0)
    for case in hospital.cases(0, ("s",)):
        assert (case.truth == case.label) == (case.label == 5)
        assert (case.truth == 5) == (case.label == 5)
