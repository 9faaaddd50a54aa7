import math

import pytest
import torch

from fedretina.contrastive.moco_v2 import info_nce
from fedretina.contrastive.objective import unit


def rows(count, width=5, seed=1):
    return unit(torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def none(batch, length):
    return torch.zeros(batch, length, dtype=torch.bool)


def slowly(query, keys, queue, temperature, same):
    """OCT paper Eq. 6, query by query."""
    values = []
    for number, q in enumerate(query):
        own = math.exp(sum(a * b for a, b in zip(q.tolist(), keys[number].tolist(), strict=True)) / temperature)
        others = sum(
            math.exp(sum(a * b for a, b in zip(q.tolist(), k.tolist(), strict=True)) / temperature)
            for place, k in enumerate(queue)
            if not same[number][place]
        )
        values.append(-math.log(own / (own + others)))
    return sum(values) / len(values)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
@pytest.mark.parametrize("masked", [0.0, 0.5])
def test_it_is_the_papers_equation(temperature, masked):
    query, keys, queue = rows(6), rows(6, seed=2), rows(9, seed=3)
    same = torch.rand(6, 9, generator=torch.Generator().manual_seed(4)) < masked
    found = info_nce(query, keys, queue, temperature, same)
    assert found.ndim == 0
    assert found.item() == pytest.approx(slowly(query, keys, queue, temperature, same), rel=1e-12)


def test_where_nothing_is_told_apart_it_is_log_of_all():
    one = unit(torch.ones(4, 8))
    assert info_nce(one, one, one[:1].expand(30, 8), 0.2, none(4, 30)).item() == pytest.approx(math.log(31), rel=1e-6)


def test_perfect_alignment_against_opposite_and_orthogonal_keys():
    axes = torch.eye(4)
    opposite = info_nce(axes, axes, -axes[:1].expand(7, 4), 0.2, none(4, 7)).item()
    # Only the first query is opposite to the queue, the others are orthogonal to it.
    assert opposite == pytest.approx((math.log1p(7 * math.exp(-10)) + 3 * math.log1p(7 * math.exp(-5))) / 4, rel=1e-4)


def test_a_high_temperature_forgets_and_a_low_one_decides():
    query, queue = rows(6), rows(9, seed=3)
    assert info_nce(query, query, queue, 1e6, none(6, 9)).item() == pytest.approx(math.log(10), abs=1e-5)
    assert info_nce(query, query, queue, 1e-3, none(6, 9)).item() == pytest.approx(0, abs=1e-12)
    assert info_nce(query, -query, queue, 1e-3, none(6, 9)).item() > 1000


def test_a_masked_row_counts_nothing_whatever_it_holds():
    query, keys, queue = rows(3), rows(3, seed=2), rows(4, seed=3)
    same = none(3, 4)
    same[:, 1] = True
    short = info_nce(query, keys, queue[[0, 2, 3]], 0.2, none(3, 3))
    queue[1] = torch.nan
    torch.testing.assert_close(info_nce(query, keys, queue, 0.2, same), short)


def test_without_negatives_loss_and_gradient_are_zero():
    query = rows(2).requires_grad_()
    loss = info_nce(query, rows(2, seed=2), rows(3, seed=3), 0.2, ~none(2, 3))
    (gradient,) = torch.autograd.grad(loss, query)
    assert loss.item() == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_the_gradient_draws_to_the_key_and_from_the_queue():
    query = rows(1).requires_grad_()
    keys, queue = rows(1, seed=2), rows(1, seed=3)
    (gradient,) = torch.autograd.grad(info_nce(query, keys, queue, 0.5, none(1, 1)), query)
    weight = torch.sigmoid(((query * queue).sum() - (query * keys).sum()) / 0.5).item()  # share of the negative
    torch.testing.assert_close(gradient, weight / 0.5 * (queue - keys))


def test_nan_is_not_hidden():
    query = rows(3)
    query[1, 0] = torch.nan
    assert info_nce(query, rows(3), rows(4), 0.2, none(3, 4)).isnan()
    queue = rows(4)
    queue[0, 0] = torch.nan
    assert info_nce(rows(3), rows(3), queue, 0.2, none(3, 4)).isnan()


def test_autocast_does_not_shorten_similarities():
    query, keys, queue = (rows(8, 64, seed).float() for seed in (1, 2, 3))
    plain = info_nce(query, keys, queue, 0.07, none(8, 8))
    with torch.autocast("cpu", torch.bfloat16):
        cast = info_nce(query, keys, queue, 0.07, none(8, 8))
    assert cast.dtype == torch.float32
    assert torch.equal(cast, plain)


def test_rows_of_length_one_even_from_half_precision_and_from_zero():
    found = unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.bfloat16))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
