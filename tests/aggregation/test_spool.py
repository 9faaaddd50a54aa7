import itertools
import os

import pytest
import torch

from fedretina.aggregation import spool as spool_file
from fedretina.aggregation.spool import Spool
from fedretina.errors import RefusedError, StateError
from fedretina.storage import Place, StoredTensors, TensorFile

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


@pytest.mark.parametrize("stretch", [1, 7, 2**18])
def test_numbers_are_mixed_in_stretches_of_any_length_and_type_with_the_same_bits(tmp_path, monkeypatch, stretch):
    monkeypatch.setattr(spool_file, "_STRETCH", stretch)
    made = torch.Generator().manual_seed(1)
    types = {"a": torch.float32, "b": torch.float16, "c": torch.bfloat16, "d": torch.int32, "e": torch.float64}
    sent = {
        site: {key: (9 * torch.randn(3, 5, generator=made)).to(dtype) for key, dtype in types.items()}
        | {"none": torch.empty(0)}
        for site in ("x", "y", "z")
    }
    spool, weights = Spool(tmp_path / "s"), {"x": 0.3, "y": 0.1, "z": 0.6}
    for site, tensors in sent.items():
        spool.put(site, tensors)

    def slow(key, change=lambda value: value):
        total = change(sent["x"][key].double()) * 0.3
        for site in "yz":
            total = total + change(sent[site][key].double()) * weights[site]
        return total

    mixed = spool.weighted_mean(weights, {**types, "none": torch.float32})
    assert all(torch.equal(mixed[key], slow(key).to(dtype)) for key, dtype in types.items())
    assert mixed["none"].shape == (0,)
    base = torch.arange(15.0, dtype=torch.float64)
    moved = spool.weighted_mean(weights, {"a": torch.float64}, lambda site, key, which, values: values + base[which])
    assert torch.equal(moved["a"], slow("a", lambda value: value + base.reshape(3, 5)))


def test_a_file_that_was_cut_after_its_header_is_told(tmp_path):
    spool = Spool(tmp_path / "s")
    spool.put("a", updates()["a"])
    (path,) = (tmp_path / "s").iterdir()
    with TensorFile(path) as file:
        os.truncate(path, path.stat().st_size - 8)  # the last number of w
        with pytest.raises(StateError, match="ends too early"):
            file.read_into("w", 0, torch.empty(15))
    with pytest.raises(StateError, match="cannot be read"):
        spool.weighted_mean({"a": 1.0}, DTYPES)


def test_one_site_with_weight_one_comes_back_as_it_was(tmp_path):
    spool, sent = Spool(tmp_path / "s"), updates()
    spool.put("a", sent["a"])
    assert torch.equal(spool.weighted_mean({"a": 1.0}, DTYPES)["w"], sent["a"]["w"])


def arrived(folder, tensors):
    """Tensors in a file as they come over a line: bytes behind one another, without a header."""
    path, places, whole = folder / "arrived", {}, b""
    for key in sorted(tensors, key=lambda key: -tensors[key].element_size()):
        places[key] = Place(tensors[key].dtype, tuple(tensors[key].shape), len(whole))
        whole += tensors[key].numpy().tobytes()
    path.write_bytes(whole)
    return StoredTensors(path, places)


def test_a_file_that_came_is_shared_and_mixed_with_the_same_bits(tmp_path):
    copied, shared, sent, weights = (
        Spool(tmp_path / "c"),
        Spool(tmp_path / "s"),
        updates(),
        {"a": 0.5, "b": 0.3, "c": 0.2},
    )
    for site, tensors in sent.items():
        stored = arrived(tmp_path, tensors)
        copied.put(site, tensors)
        shared.put(site, tensors, stored)
        assert (tmp_path / "s" / f"{site}.update").samefile(stored.path)
        stored.path.unlink()  # as its last array does
        assert all(torch.equal(shared.read(site)[key], tensor) for key, tensor in tensors.items())
    mixed = [spool.weighted_mean(weights, DTYPES) for spool in (copied, shared)]
    assert all(torch.equal(mixed[0][key], mixed[1][key]) for key in DTYPES)
    shared.discard("a")
    shared.put("a", sent["b"])
    assert torch.equal(shared.tensor("a", "w"), sent["b"]["w"])
    shared.erase()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("why", ["other tensors", "gone", "there already"])
def test_what_cannot_be_shared_is_copied(tmp_path, why):
    spool, tensors = Spool(tmp_path / "s"), updates()["a"]
    stored = arrived(tmp_path, tensors)
    if why == "other tensors":  # a site's answer that was decoded is not what came
        stored.places.pop("n")
    elif why == "gone":
        stored.path.unlink()
    else:
        spool.put("a", updates()["b"], arrived(tmp_path, updates()["b"]))
    spool.put("a", tensors, stored)
    assert all(torch.equal(spool.read("a")[key], tensor) for key, tensor in tensors.items())
    assert not stored.path.exists() or not (tmp_path / "s" / "a.update").samefile(stored.path)


def test_a_new_spool_forgets_what_an_interrupted_round_left(tmp_path):
    Spool(tmp_path / "s").put("a", updates()["a"])
    Spool(tmp_path / "s")
    assert not list((tmp_path / "s").iterdir())


def test_a_site_name_cannot_leave_the_spool(tmp_path):
    with pytest.raises(RefusedError, match="not a plain name"):
        Spool(tmp_path / "s").put("../x", {})


def test_tensors_that_lie_one_behind_another_are_read_as_one(tmp_path, monkeypatch):
    """Each site's file is read once a stretch, not once a tensor; files in another order give the same bits."""
    made = torch.Generator().manual_seed(2)
    like = {f"layer-{number}": torch.float32 for number in range(40)} | {"n": torch.int64}
    sent = {site: {key: torch.randn(number % 4, 3, generator=made) for number, key in enumerate(like)} for site in "ab"}
    for tensors in sent.values():
        tensors["n"] = torch.tensor([7, 8])
    reads = []
    read_bytes = TensorFile.read_bytes
    monkeypatch.setattr(
        TensorFile, "read_bytes", lambda file, begin, room: (reads.append(begin), read_bytes(file, begin, room))[1]
    )
    together = Spool(tmp_path / "together")
    for site, tensors in sent.items():
        together.put(site, tensors)
    mixed = together.weighted_mean({"a": 0.3, "b": 0.7}, like)
    assert len(reads) == 2 * 2  # of two sites the numbers of either type

    apart = Spool(tmp_path / "apart")
    apart.put("a", sent["a"])
    turned = tmp_path / "turned"
    turned.mkdir()
    apart.put("b", sent["b"], arrived(turned, dict(reversed(sent["b"].items()))))
    other = apart.weighted_mean({"a": 0.3, "b": 0.7}, like)
    assert len(reads) > 2 * 2 + 2 * 2
    for key, dtype in like.items():
        slow = sent["a"][key].double() * 0.3 + sent["b"][key].double() * 0.7
        assert torch.equal(mixed[key], slow.to(dtype))
        assert torch.equal(other[key], mixed[key])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's own, of infinity less infinity
def test_the_compiled_sum_has_the_bits_of_the_other_signs_of_zero_and_what_is_no_number_among_them(
    tmp_path, monkeypatch
):
    pytest.importorskip("numba")
    made = torch.Generator().manual_seed(2)
    types = {"a": torch.float32, "b": torch.float16, "c": torch.float32}
    odd = torch.tensor([0.0, -0.0, 1e-42, -3e38, 3e38, float("inf"), float("nan")])
    sent = {
        site: {key: torch.cat([torch.randn(5000, generator=made).exp(), odd]).to(dtype) for key, dtype in types.items()}
        for site in "rstuvwxyz"
    }
    sent["y"]["a"][-7:] = -sent["y"]["a"][-7:]
    spool, weights = Spool(tmp_path / "s"), {site: (1 + place) / 45 for place, site in enumerate(sorted(sent))}
    for site, tensors in sent.items():
        spool.put(site, tensors)
    monkeypatch.setattr(spool_file, "_STRETCH", 999)
    plain = spool.weighted_mean(weights, types)
    called: list[int] = []
    add = spool_file._add_compiled()

    def counted(total, several):
        called.extend((len(several), values.itemsize) for values, _ in several)
        add(total, several)

    monkeypatch.setattr(spool_file, "_COMPILED_FROM", 9 * 3 * 5007)
    monkeypatch.setattr(spool_file, "_add_compiled", lambda: counted)
    compiled = spool.weighted_mean(weights, types)
    assert {key: tensor.numpy().tobytes() for key, tensor in compiled.items()} == {
        key: tensor.numpy().tobytes() for key, tensor in plain.items()
    }
    assert set(called) == {(4, 4), (1, 8)}  # float32 as it is stored, four sites at once; the other cast before
    called.clear()
    for few in (5, 4, 2):  # the first site begins the total: four, three and one are left
        sites = sorted(sent)[:few]
        monkeypatch.setattr(spool_file, "_COMPILED_FROM", 0)
        some = spool.weighted_mean({site: weights[site] for site in sites}, types)
        monkeypatch.setattr(spool_file, "_COMPILED_FROM", 2**60)
        other = spool.weighted_mean({site: weights[site] for site in sites}, types)
        assert {key: tensor.numpy().tobytes() for key, tensor in some.items()} == {
            key: tensor.numpy().tobytes() for key, tensor in other.items()
        }
    assert {size for size, _ in called} == {1, 3, 4}
    called.clear()
    monkeypatch.setattr(spool_file, "_COMPILED_FROM", 9 * 3 * 5007 + 1)
    spool.weighted_mean(weights, types)
    assert not called
