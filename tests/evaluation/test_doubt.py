"""Which doubt a model is used with, and what may be said of the order that it gives."""

import numpy as np

from fedretina.evaluation.doubt import choose_doubt, doubted, order_of
from fedretina.evaluation.figures import LabelledPredictions


def answers(images=200, seed=0, sure=True, useful=True):
    """Every fourth answer is wrong; 1 - max p tells which where `sure`, and u where `useful`."""
    rng = np.random.default_rng(seed)
    wrong = np.arange(images) % 4 == 0
    top = np.where(wrong & sure, 0.5, 0.9) + rng.uniform(-0.3, 0.09, images)
    p = np.stack([top, (1 - top) / 2, (1 - top) / 2], 1)
    u = np.where(wrong & useful, 0.7, 0.3) + rng.uniform(-0.3, 0.3, images)
    return LabelledPredictions(p, u, wrong.astype(np.int64), tuple(f"p{at // 2}" for at in range(images)))


def test_validation_chooses_the_doubt_that_finds_wrong_answers():
    blind = answers(useful=False)
    choice = choose_doubt(blind)
    assert choice.used == "unlikely"
    assert choice.unlikely > 0.8 > choice.estimator
    assert np.allclose(doubted(blind, choice.used).uncertainty, 1 - blind.probabilities.max(1))
    clear = answers(sure=False)
    assert choose_doubt(clear).used == "estimator"
    assert doubted(clear, "estimator") is clear


def test_without_enough_errors_or_with_a_gate_in_u_the_rows_own_doubt_is_kept():
    assert choose_doubt(answers(12, useful=False)).used == "estimator"
    assert choose_doubt(answers(useful=False), gated=True).used == "estimator"
    nothing = LabelledPredictions(np.zeros((0, 3)), np.zeros(0), np.zeros(0, np.int64), ())
    assert choose_doubt(nothing) == ("estimator", None, None)
    assert order_of(nothing, 0, 50) == (None, None, None, 0)


def test_an_order_has_an_interval():
    seen, blind = order_of(answers(), 1, 200), order_of(answers(useful=False), 1, 200)
    assert seen.low > 0.5
    assert blind.low < 0.5 < blind.high
