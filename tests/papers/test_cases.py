"""Which single cases are shown, and that the choice is a rule."""

import numpy as np

from fedretina_papers.cases import chosen
from fedretina_papers.stored import Answers


def answers(odds, uncertainty, labels):
    patients = tuple(f"p{at}" for at in range(len(labels)))
    return Answers(np.array(odds), np.array(uncertainty), np.array(labels), patients, np.array(odds), None)


LABELS = [0, 0, 1, 1, 0]
BESIDE = answers([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.99, 0.01], [0.4, 0.6]], [0.1] * 5, LABELS)
REFERENCE = answers([[0.9, 0.1], [0.3, 0.7], [0.3, 0.7], [0.8, 0.2], [0.45, 0.55]], [0.3, 0.9, 0.2, 0.8, 0.95], LABELS)


def test_the_right_are_the_surest_of_the_reference():
    assert chosen(BESIDE, REFERENCE, "right").tolist() == [2, 0]


def test_the_wrong_are_wrong_in_both_and_surest_in_the_row_beside():
    assert chosen(BESIDE, REFERENCE, "wrong").tolist() == [3, 1]
    assert chosen(BESIDE, REFERENCE, "wrong", each=9).tolist() == [3, 1, 4]


def test_none_is_none():
    perfect = answers([[1.0, 0.0], [0.0, 1.0]], [0.1, 0.2], [0, 1])
    assert chosen(perfect, perfect, "wrong").tolist() == []
