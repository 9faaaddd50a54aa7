"""The losses whose negatives are the batch: MoCo v3's and SimCLR's."""

import math

import pytest
import torch

from fedretina.contrastive.moco_v3 import moco_v3_loss
from fedretina.contrastive.objective import alike, unit
from fedretina.contrastive.simclr import nt_xent

PATIENTS = torch.tensor([0, 1, 1, 2, 0, 3])
IMAGES = torch.arange(6)
SAME = alike(IMAGES, PATIENTS, IMAGES, PATIENTS)
ALONE = torch.zeros(6, 6, dtype=torch.bool)


def rows(seed, count=6, width=5):
    return unit(torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def dot(a, b):
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def moco_v3_slowly(queries, keys, temperature, same):
    total = 0.0
    for query, key in ((queries[0], keys[1]), (queries[1], keys[0])):
        values = []
        for i, q in enumerate(query):
            odds = [math.exp(dot(q, k) / temperature) for j, k in enumerate(key) if i == j or not same[i][j]]
            values.append(-math.log(math.exp(dot(q, key[i]) / temperature) / sum(odds)))
        total += 2 * temperature * sum(values) / len(values)
    return total


def nt_xent_slowly(first, second, temperature, same):
    views = [(i, view, z) for view, part in enumerate((first, second)) for i, z in enumerate(part)]
    values = []
    for i, view, z in views:
        positive = next(math.exp(dot(z, other) / temperature) for j, w, other in views if j == i and w != view)
        negative = sum(math.exp(dot(z, other) / temperature) for j, _, other in views if j != i and not same[i][j])
        values.append(-math.log(positive / (positive + negative)))
    return sum(values) / len(values)


@pytest.mark.parametrize("same", [ALONE, SAME, ~ALONE])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_both_are_their_papers_formulas(same, temperature):
    a, b, c, d = (rows(seed) for seed in range(4))
    slow = moco_v3_slowly((a, b), (c, d), temperature, same)
    assert moco_v3_loss((a, b), (c, d), temperature, same).item() == pytest.approx(slow, rel=1e-12)
    assert nt_xent(a, b, temperature, same).item() == pytest.approx(nt_xent_slowly(a, b, temperature, same), rel=1e-12)


def test_swapping_the_views_changes_no_bit():
    a, b, c, d = (rows(seed).float() for seed in range(4))
    assert torch.equal(moco_v3_loss((a, b), (c, d), 0.2, SAME), moco_v3_loss((b, a), (d, c), 0.2, SAME))
    torch.testing.assert_close(nt_xent(a, b, 0.2, SAME), nt_xent(b, a, 0.2, SAME))


def test_moco_v3_pairs_each_view_with_the_other_ones_keys():
    axes, turned = torch.eye(6), torch.eye(6).roll(1, 0)
    crossed = moco_v3_loss((axes, turned), (turned, axes), 0.1, ALONE)
    straight = moco_v3_loss((axes, turned), (axes, turned), 0.1, ALONE)
    assert crossed.item() == pytest.approx(4 * 0.1 * math.log1p(5 * math.exp(-10)), rel=1e-3)
    assert straight > crossed + 1


def test_where_nothing_is_told_apart():
    one = unit(torch.ones(6, 4))
    assert moco_v3_loss((one, one), (one, one), 0.3, ALONE).item() == pytest.approx(4 * 0.3 * math.log(6), rel=1e-6)
    assert nt_xent(one, one, 0.3, ALONE).item() == pytest.approx(math.log(11), rel=1e-6)


def test_the_diagonal_of_the_mask_is_not_read():
    a, b, c, d = (rows(seed) for seed in range(4))
    own = torch.eye(6, dtype=torch.bool)
    assert torch.equal(moco_v3_loss((a, b), (c, d), 0.2, own), moco_v3_loss((a, b), (c, d), 0.2, ALONE))
    assert torch.equal(nt_xent(a, b, 0.2, own), nt_xent(a, b, 0.2, ALONE))


def test_a_batch_of_one_patient_gives_no_gradient():
    a, b = (rows(seed, 2).requires_grad_() for seed in (1, 2))
    one = torch.ones(2, 2, dtype=torch.bool)
    for loss in (moco_v3_loss((a, b), (b.detach(), a.detach()), 0.2, one), nt_xent(a, b, 0.2, one)):
        assert loss.item() == 0
        assert all(torch.equal(g, torch.zeros_like(g)) for g in torch.autograd.grad(loss, (a, b)))


def test_one_image_has_no_negatives():
    a, b = rows(1, 1), rows(2, 1)
    none = torch.zeros(1, 1, dtype=torch.bool)
    assert moco_v3_loss((a, b), (b, a), 0.2, none).item() == 0
    assert nt_xent(a, b, 0.2, none).item() == 0


def test_a_batch_of_two_is_the_closed_form():
    a, b = torch.eye(2), torch.eye(2)
    none = torch.zeros(2, 2, dtype=torch.bool)
    assert nt_xent(a, b, 0.5, none).item() == pytest.approx(math.log1p(2 * math.exp(-2)), rel=1e-6)
    assert moco_v3_loss((a, b), (a, b), 0.5, none).item() == pytest.approx(2 * math.log1p(math.exp(-2)), rel=1e-6)


def test_nan_is_not_hidden():
    a, b = rows(1), rows(2)
    a[0, 0] = torch.nan
    assert moco_v3_loss((a, b), (b, b), 0.2, ALONE).isnan()
    assert nt_xent(a, b, 0.2, ALONE).isnan()


def test_who_is_alike():
    images, patients = torch.tensor([4, 5, 6]), torch.tensor([0, 0, 1])
    others, theirs = torch.tensor([5, 7]), torch.tensor([0, 1])
    by_patient = alike(images, patients, others, theirs)
    assert by_patient.tolist() == [[True, False], [True, False], [False, True]]
    assert alike(images, patients, others, theirs, mask_patients=False).tolist() == [
        [False, False],
        [True, False],
        [False, False],
    ]
