"""Sites whose images lie in one place."""

import torch

from fedretina.data.site_data import pools
from fedretina.exchange.moved import run_moved
from fedretina.loop import run_loop


def test_only_sites_with_the_same_grades_are_joined(tiny, phantoms):
    data = phantoms(tiny(row="centralised"), "site-1", "site-2", "site-3", "site-4", "site-5")
    found = pools(data)
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


def test_a_pooled_run_trains_a_pool_as_one_site(tiny, phantoms, tmp_path):
    experiment = tiny(row="centralised")
    data = phantoms(experiment, "site-1", "site-2", "site-3")
    results = run_loop(experiment, data, tmp_path, "pooled")
    assert set(results["sites"]) == {pool.data.name for pool in pools(data)}
    assert run_moved(results) == (0, 0)
