"""Subgroups: figures with enough patients behind them at the site, and sums from which no few patients follow."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.evaluation.figures import LabelledPredictions
from fedretina.evaluation.metrics import auroc
from fedretina.evaluation.referable import referral_task
from fedretina.evaluation.subgroups import pooled_subgroups, subgroup_sums, subgroups
from fedretina.settings.columns import GROUP_SUMS
from fedretina.settings.scheme import GradingScheme, preset

SCHEME = preset("icdr5")


def answers(labels: list[int], said: list[int], patients: list[str] | None = None) -> LabelledPredictions:
    probabilities = 0.8 * np.eye(5)[said] + 0.04
    who = patients or [f"p{at}" for at in range(len(labels))]
    return LabelledPredictions(probabilities, np.zeros(len(labels)), np.array(labels), who)


def test_a_subgroup_has_the_figures_of_its_own_images_and_too_few_patients_have_none():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 5, 300)
    made = answers(labels.tolist(), rng.integers(0, 5, 300).tolist(), [f"p{at // 2}" for at in range(300)])
    made = made._replace(probabilities=rng.dirichlet(np.ones(5), 300) * 0.5 + made.probabilities * 0.5)
    camera = np.array(["Alpha", "Beta", ""])[np.minimum(np.arange(300) // 140, 2)]
    found = subgroups(made, made.probabilities, {"camera": camera.tolist()}, SCHEME, seed=1, draws=100)["camera"]
    assert [(one.value, one.images, one.patients) for one in found] == [
        ("Alpha", 140, 70),
        ("Beta", 140, 70),
        ("", 20, 10),
    ]
    here = camera == "Beta"
    task = referral_task(made.probabilities[here], labels[here], SCHEME)
    figure = found[1].figures["referable_auc"]
    assert figure.value == auroc(task.score, task.diseased)
    assert figure.low < figure.value < figure.high
    # Ten patients are enough for the share of right answers, but not nine with the disease or without it.
    last = found[2].figures
    assert last["accuracy"] is not None
    assert last["referable_auc"] is None
    assert found[0].figures["referable_sensitivity"].value == pytest.approx(
        np.mean(np.isin(made.predicted[:140][labels[:140] >= 2], [2, 3, 4]))
    )


def test_sums_count_patients_and_those_of_few_patients_do_not_follow_from_the_others():
    # 12 ill women, 3 of them missed; 3 ill men; 8 well women, one alarmed; 7 well men; twice an image each.
    labels = [3] * 12 + [2] * 3 + [0] * 15
    said = [3] * 9 + [0] * 3 + [2] * 3 + [4] + [0] * 14
    sex = ["female"] * 12 + ["male"] * 3 + ["female"] * 8 + ["male"] * 7
    patients = [f"p{at}" for at in range(30)]
    made = answers(labels * 2, said * 2, patients * 2)
    sums = subgroup_sums(made, {"sex": sex * 2, "camera": ["x"] * 60}, SCHEME, 5)
    # Who knows the 15 ill of the split would get the 3 men from the 12 women, so neither leaves.
    assert sums == {
        "group_sex_female_well": 8,
        "group_sex_female_cleared": 7,
        "group_sex_male_well": 7,
        "group_sex_male_cleared": 7,
    }
    assert set(sums) <= set(GROUP_SUMS)
    assert subgroup_sums(made, {"sex": sex * 2}, SCHEME, 3)["group_sex_female_found"] == 9
    # Two men whose sex nobody wrote down follow in the same way.
    some = [*sex[:-2], "", ""]
    assert not [
        name for name in subgroup_sums(made, {"sex": some * 2}, SCHEME, 5) if name.startswith("group_sex_male_well")
    ]
    assert subgroup_sums(made, {"sex": sex * 2}, GradingScheme(grades=tuple("abcde")), 5) == {}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_withheld_of_a_column_is_of_few_patients_in_no_case(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        labels = rng.integers(0, 3, 40)
        bands = rng.choice(
            ["under_40", "from_40", "from_50", "from_60", "from_70", ""], 40, p=[0.05, 0.1, 0.1, 0.3, 0.4, 0.05]
        )
        made = answers(labels.tolist(), labels.tolist())
        sums = subgroup_sums(made, {"age_band": bands.tolist()}, SCHEME, 5)
        for part, kind in (("ill", labels == 2), ("well", labels < 2)):
            told = {
                name.removeprefix("group_age_band_").removesuffix(f"_{part}") for name in sums if name.endswith(part)
            }
            assert all(np.sum(kind & (bands == band)) >= 5 for band in told)
            withheld = int(np.sum(kind & ~np.isin(bands, list(told))))
            assert withheld == 0 or withheld >= 5 or not told


def test_sums_of_all_sites_are_added_and_nonsense_is_left_out():
    one = {"group_sex_female_ill": 20.0, "group_sex_female_found": 18.0}
    two = {
        "group_sex_female_ill": 10.0,
        "group_sex_female_found": 6.0,
        "group_sex_male_well": 9.0,
        "group_sex_male_cleared": 9.0,
    }
    mad = {"group_sex_female_ill": 5.0, "group_sex_female_found": 50.0}
    (women,) = pooled_subgroups({"a": one, "b": two, "c": mad, "d": {}})  # the men are of one site
    assert (women.column, women.value, women.sites) == ("sex", "female", 2)
    assert women.sensitivity[:2] == (24, 30)
    assert women.specificity is None
