"""A verdict in words: each of its ends, and what a hospital reads there."""

import html

import pytest
from site_inputs import site_inputs

from fedretina.evaluation.verdict import FEDERATED, MAJORITY, OWN, TWIN
from fedretina.exchange.min_count import told_outcomes
from fedretina.report.render import render_site
from fedretina.report.site_report import site_report
from fedretina.report.text import outcomes_sentence
from fedretina.report.verdict_words import kept_sentence, verdict_sentence, verdict_table


def gap(value, low, high):
    return {"value": value, "low": low, "high": high}


def record(outcome="gained", rival=OWN, span=(0.02, 0.07), **words):
    low, high = span
    models = {FEDERATED: (0.81, 0.7), rival: (0.77, 0.65), MAJORITY: (0.5, 0.6)}
    return {
        "asked": "own",
        "shared": True,
        "start": "package",
        "measure": "referable_auc",
        "kept": FEDERATED,
        "reason": "not_better",
        "validation": {"patients": 40, "values": {FEDERATED: 0.8, rival: 0.78}},
        "rival": rival,
        "outcome": outcome,
        "test": {
            "images": 102,
            "patients": 60,
            "majority": "no_dr",
            "models": {
                name: {"referable_auc": auc, "auc": None, "accuracy": right} for name, (auc, right) in models.items()
            },
            "differences": {
                rival: {"referable_auc": gap(0.04, low, high), "accuracy": gap(0.05, -0.01, 0.1)},
                MAJORITY: {"referable_auc": gap(0.31, 0.2, 0.4), "accuracy": gap(0.1, None, None)},
            },
        },
        **words,
    }


BEHIND = "(95\u00a0% interval, 102 images of 60 patients)"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            record(),
            "With the others your model finds referable disease better than your own head on the frozen encoder: AUC "
            f"0.81 against 0.77, difference 0.02 to 0.07 {BEHIND}.",
        ),
        (
            record("lost", span=(-0.07, -0.02), start="none"),
            "Alone you do better: your own head on an encoder of random weights finds referable disease with AUC 0.77 "
            f"against 0.81 with the others, difference 0.02 to 0.07 {BEHIND}.",
        ),
        (
            record("untold", TWIN, (-0.02, 0.07)),
            "No difference can be seen with your 102 images: with the others your model finds referable disease with "
            "AUC 0.81, the same method trained at home alone with 0.77, difference \u22120.02 to 0.07 (95\u00a0% "
            "interval, 60 patients).",
        ),
        (
            record("untold", span=(None, None)),
            "Whether sharing helped cannot be told with your 102 images of 60 patients: they give no interval for how "
            "well a model finds referable disease.",
        ),
        (record(None, rival=None), "What sharing was worth cannot be told here: there was no model to compare with."),
    ],
)
def test_the_verdict_is_one_plain_sentence_with_its_interval(found, says):
    assert verdict_sentence(found) == says


def test_a_bound_near_zero_is_not_rounded_to_it():
    assert "better than" in verdict_sentence(record(span=(0.003, 0.07)))
    assert "difference 0.003 to 0.070 (" in verdict_sentence(record(span=(0.003, 0.07)))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            {},
            "The model trained with the others is kept: nothing is better on your validation images (AUC 0.80 against "
            "0.78, 40 patients).",
        ),
        (
            {"kept": OWN, "reason": "better"},
            "Your own model is better on your validation images (AUC 0.78 against 0.80, 40 patients) and is kept.",
        ),
        (
            {"reason": "too_few_patients"},
            "The model trained with the others is kept: a choice takes 10 validation patients with referable disease "
            "and 10 without, and not so many are among your 40 patients.",
        ),
        (
            {"reason": "too_few_patients", "measure": "auc"},
            "The model trained with the others is kept: a choice takes 10 validation patients of each of two grades, "
            "and not so many are among your 40 patients.",
        ),
        (
            {"reason": "undefined"},
            "The model trained with the others is kept: your validation images do not tell which model is better.",
        ),
        ({"reason": "only_one"}, "The model trained with the others is kept: there is no other."),
    ],
)
def test_which_model_is_kept_and_why_is_another(words, says):
    assert kept_sentence(record(**words)) == says


def test_where_nothing_is_exchanged_nobody_is_said_to_have_shared():
    found = [
        verdict_sentence(record(outcome, span=span, shared=False))
        for outcome, span in (("gained", (0.02, 0.07)), ("lost", (-0.07, -0.02)), ("untold", (-0.02, 0.07)))
    ]
    assert [one.partition(" finds")[0] for one in found] == [
        "The run's model",
        "The run made it worse: your own head on the frozen encoder",
        "No difference can be seen with your 102 images: the run's model",
    ]
    found += [verdict_sentence(record("untold", span=(None, None), shared=False)), kept_sentence(record(shared=False))]
    assert verdict_table(record(shared=False))["rows"][0]["name"] == "the run's model"
    assert not any("other" in one or "sharing" in one for one in found)


def test_the_table_has_a_figure_and_a_difference_a_cell():
    found = verdict_table(record())
    assert found["titles"] == ["AUC for referable disease", "right grade"]
    assert [(row["name"], row["kept"], [tuple(cell.values()) for cell in row["cells"]]) for row in found["rows"]] == [
        ("trained with the others", True, [("0.81", "–"), ("70\u00a0%", "–")]),
        (
            "your own head on the frozen encoder",
            False,
            [("0.77", "0.04 (0.02 to 0.07)"), ("65\u00a0%", "5 (\u22121 to 10 points)")],
        ),
        (
            "always “no DR”, your commonest grade in training",
            False,
            [("0.50", "0.31 (0.20 to 0.40)"), ("60\u00a0%", "10")],
        ),
    ]


@pytest.mark.parametrize(
    ("span", "says"),
    [
        ((0.004, 0.05), "5.0 (0.4 to 5.0 points)"),
        ((-0.05, -0.004), "5.0 (\u22125.0 to \u22120.4 points)"),
        ((0.0, 0.05), "5 (0 to 5 points)"),
    ],
)
def test_a_bound_in_points_is_not_rounded_to_the_0_that_it_does_not_reach(span, says):
    changed = record()
    changed["test"]["differences"][OWN]["accuracy"] = gap(0.05, *span)
    assert verdict_table(changed)["rows"][1]["cells"][1]["gap"] == says


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({}, ""),
        ({"gained": 3, "lost": 1}, "is not counted: fewer than 5 of them sent a verdict."),
        ({"gained": 5}, "at least 4 of 5 sites gained by sharing."),
        ({"untold": 6, "lost": 1}, "at least 6 of 7 sites could not tell a difference."),
        ({"gained": 3, "untold": 2}, "3 of 5 sites gained by sharing, 0 lost, and 2 could not tell a difference."),
    ],
)
def test_the_servers_page_counts_sites_and_names_none(counts, says):
    assert outcomes_sentence(told_outcomes(counts)).endswith(says)


@pytest.mark.parametrize(("shared", "model"), [(True, "the model trained with the others"), (False, "the run's model")])
def test_rounds_are_said_to_be_of_the_model_that_is_not_kept_where_another_is(shared, model):
    report, said = site_report(site_inputs()), f"These rounds are of {model}, which is not kept here."
    federated, own = (
        render_site(report | {"model": kept, "verdict": record(kept=kept, reason="better", shared=shared)})
        for kept in (FEDERATED, OWN)
    )
    assert "which is not kept here" not in federated
    assert html.unescape(own).partition("Round by round")[2].partition("The rounds in numbers")[0].count(said) == 1
