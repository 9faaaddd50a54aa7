import itertools

import pytest
import torch

from fedretina.aggregation.spool import Spool
from fedretina.errors import RefusedError

DTYPES = {"w": torch.float32, "n": torch.int64}


def updates(seed=0):
    made = torch.Generator().manual_seed(seed)
    return {
        site: {"w": torch.randn(5, 3, generator=made), "n": torch.tensor(count)}
        for site, count in {"a": 4, "b": 5, "c": 9}.items()
    }


def test_weighted_mean_is_the_float64_sum(tmp_path):
    spool, sent, weights = Spool(tmp_path / "s"), updates(), {"a": 0.5, "b": 0.3, "c": 0.2}
    for site, tensors in sent.items():
        spool.put(site, tensors)
    mixed = spool.weighted_mean(weights, DTYPES)
    slow = sum(weights[site] * sent[site]["w"].double() for site in "abc").float()
    assert torch.equal(mixed["w"], slow)
    assert mixed["n"].dtype == torch.int64
    assert mixed["n"].item() == 5  # 0.5*4 + 0.3*5 + 0.2*9 = 5.3, truncated


def test_the_order_of_arrival_changes_no_bit(tmp_path):
    sent, weights, seen = updates(), {"a": 0.1, "b": 0.7, "c": 0.2}, set()
    for number, order in enumerate(itertools.permutations(sent)):
        spool = Spool(tmp_path / str(number))
        for site in order:
            spool.put(site, sent[site])
        seen.add(spool.weighted_mean(weights, DTYPES)["w"].numpy().tobytes())
    assert len(seen) == 1


def test_one_site_with_weight_one_comes_back_as_it_was(tmp_path):
    spool, sent = Spool(tmp_path / "s"), updates()
    spool.put("a", sent["a"])
    assert torch.equal(spool.weighted_mean({"a": 1.0}, DTYPES)["w"], sent["a"]["w"])


def test_a_new_spool_forgets_what_an_interrupted_round_left(tmp_path):
    Spool(tmp_path / "s").put("a", updates()["a"])
    Spool(tmp_path / "s")
    assert not list((tmp_path / "s").iterdir())


def test_a_site_name_cannot_leave_the_spool(tmp_path):
    with pytest.raises(RefusedError, match="not a plain name"):
        Spool(tmp_path / "s").put("../x", {})
