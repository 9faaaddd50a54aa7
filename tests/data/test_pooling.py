"""Sites whose images lie in one place."""

import pytest
import torch

from fedretina.data.site_data import pools
from fedretina.errors import DataError
from fedretina.exchange.moved import run_moved
from fedretina.loop import run_loop


def test_only_sites_with_the_same_grades_are_joined(tiny, phantoms):
    data = phantoms(tiny(row="centralised"), "site-1", "site-2", "site-3", "site-4", "site-5")
    found = pools(data, by_grades=True)
    assert sorted(name for pool in found for name in pool.members) == sorted(data)
    for pool in found:
        assert {data[name].scheme.grades for name in pool.members} == {pool.data.scheme.grades}
    joined = max(found, key=lambda pool: len(pool.members))
    assert len(joined.members) > 1
    assert len({pool.data.scheme.grades for pool in found}) == len(found)
    for split in ("train", "val", "test"):
        parts = [data[name].split(split) for name in joined.members]
        whole = joined.data.split(split)
        assert joined.data.counts[split] == len(whole.labels) == sum(len(part.labels) for part in parts)
        assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
        assert len(set(whole.patients)) == sum(len(set(part.patients)) for part in parts)
    assert joined.data.synthetic
    alone = [pool for pool in found if len(pool.members) == 1]
    assert all(pool.data is data[pool.members[0]] for pool in alone)


def test_sites_of_any_grades_are_joined_where_no_label_is_read(tiny, phantoms):
    data = phantoms(tiny(row="centralised"), "site-1", "site-2", "site-3", "site-4", "site-5")
    (pool,) = pools(data, by_grades=False)
    assert pool.members == tuple(sorted(data))
    seen = [data[name].split("pretrain") for name in pool.members]
    whole = pool.data.split("pretrain")
    assert torch.equal(whole.images, torch.cat([part.images for part in seen]))
    assert set(whole.labels.tolist()) == {-1}
    with pytest.raises(DataError, match="grading scheme"):
        _ = pool.data.scheme
    alike = max((set(one.members) for one in pools(data, by_grades=True)), key=len)
    (same,) = pools({name: data[name] for name in alike}, by_grades=False)
    assert same.data.scheme.grades == data[min(alike)].scheme.grades


def test_a_pooled_run_trains_a_pool_as_one_site(tiny, phantoms, tmp_path):
    experiment = tiny(row="centralised")
    data = phantoms(experiment, "site-1", "site-2", "site-3")
    results = run_loop(experiment, data, tmp_path, "pooled")
    assert set(results["sites"]) == {pool.data.name for pool in pools(data, by_grades=True)}
    assert run_moved(results) == (0, 0)
