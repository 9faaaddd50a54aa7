import functools
import hashlib
import itertools
import json
import math
import re
from dataclasses import FrozenInstanceError

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fedretina.errors import SettingsError
from fedretina.exchange.partition import partition, size_of
from fedretina.networks.build import build_network, build_on_meta
from fedretina.settings.exchange import ExchangeSettings, Kind
from fedretina.settings.network import HeadSettings, NetworkSettings

BATCHNORMS = {
    "resnet18": 20,
    "resnet50": 53,
    "efficientnet_lite0": 49,
    "mobilenet_v2": 52,
    "efficientnet_b0": 49,
    "efficientnet_b4": 96,
    "vit_small": 0,
}
ENCODERS = tuple(BATCHNORMS)


@functools.cache
def meta(encoder="resnet18", num_classes=2, layout="linear_bn_relu_linear"):
    return build_on_meta(NetworkSettings(encoder=encoder, head=HeadSettings(layout=layout)), num_classes)


def split(net, **settings):
    return partition(net, ExchangeSettings(**settings))


def batchnorm_keys(state):
    """The slow form: BatchNorm is what has running statistics, told from the keys alone."""
    owners = {key.removesuffix(".running_mean") for key in state if key.endswith(".running_mean")}
    return {key for key in state if key.rpartition(".")[0] in owners}


class Parts(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


class Trap(nn.Module):
    """`bn1` is a BatchNorm; `bn10` is not, and neither is the child of a wrapper called `bn`."""

    def __init__(self):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(3)
        self.bn10 = nn.Linear(4, 4)
        self.bn = nn.Sequential(nn.Conv2d(3, 3, 1))
        self.plain = nn.SyncBatchNorm(3)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_batchnorm_stays_and_every_other_encoder_key_travels(encoder):
    net = meta(encoder)
    parts = split(net)
    keys = {k for k in net.state_dict() if k.startswith("encoder.")}
    assert set(parts.shared) == keys - batchnorm_keys(keys)
    assert len(batchnorm_keys(keys)) == 5 * BATCHNORMS[encoder]
    assert set(parts.personal) == set(net.state_dict()) - set(parts.shared)
    assert parts.shared_kinds() == {Kind.ENCODER}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(
    ("personal", "batchnorm"),
    [
        *itertools.product(["nothing", "head"], ["local_all", "local_stats", "shared_all"]),
        ("everything", "local_all"),
    ],
)
def test_shared_and_personal_are_sorted_and_cover_all(encoder, personal, batchnorm):
    net = meta(encoder)
    parts = split(net, personal=personal, batchnorm=batchnorm)
    assert sorted(parts.shared + parts.personal) == sorted(net.state_dict())
    assert parts.shared == tuple(sorted(parts.shared))
    assert parts.personal == tuple(sorted(parts.personal))
    assert set(parts.kinds) == set(parts.sizes) == set(net.state_dict())
    assert set(parts.shapes) == set(parts.dtypes) == set(parts.shared)
    assert not any(key.endswith("num_batches_tracked") for key in parts.shared)


def test_resnet50_by_module_keeps_53_batchnorms():
    parts = split(meta("resnet50"))
    local = [k for k in parts.personal if k.startswith("encoder.")]
    assert len(local) == 265
    assert len({k.rpartition(".")[0] for k in local}) == 53


def test_resnet50_by_name_leaks_the_stem_and_the_shortcuts():
    net = meta("resnet50")
    parts = split(net, bn_match="name")
    local = [k for k in parts.personal if k.startswith("encoder.")]
    assert len(local) == 240
    assert len({k.rpartition(".")[0] for k in local}) == 48
    leaked = {k.rpartition(".")[0] for k in parts.shared if parts.kinds[k] is not Kind.ENCODER}
    shortcuts = {f"encoder.stages.{i}.0.downsample.1" for i in range(1, 5)}
    assert leaked == {"encoder.stages.0.1"} | shortcuts
    assert parts.shared_kinds() == {Kind.ENCODER, Kind.NORM, Kind.STATISTIC, Kind.COUNTER}
    assert len(parts.shared) == 53 + 25


def test_lite0_by_name_leaks_stem_and_top():
    by_name, by_module = (split(meta("efficientnet_lite0"), bn_match=match).personal for match in ("name", "module"))
    leaked = {key.rpartition(".")[0] for key in set(by_module) - set(by_name)}
    assert leaked == {"encoder.stages.0.1", "encoder.stages.4.6"}


def test_kinds_of_one_batchnorm():
    kinds = split(meta()).kinds
    stem = {leaf: kinds[f"encoder.stages.0.1.{leaf}"] for leaf in ("weight", "bias", "running_mean", "running_var")}
    assert stem == {
        "weight": Kind.NORM,
        "bias": Kind.NORM,
        "running_mean": Kind.STATISTIC,
        "running_var": Kind.STATISTIC,
    }
    assert kinds["encoder.stages.0.1.num_batches_tracked"] is Kind.COUNTER
    assert kinds["encoder.stages.0.0.weight"] is Kind.ENCODER
    assert {kind for key, kind in kinds.items() if key.startswith("head.")} == {Kind.HEAD}


@pytest.mark.parametrize(
    ("batchnorm", "kinds"),
    [
        ("local_all", {Kind.ENCODER}),
        ("local_stats", {Kind.ENCODER, Kind.NORM}),
        ("shared_all", {Kind.ENCODER, Kind.NORM, Kind.STATISTIC}),
    ],
)
def test_policies_by_kind(batchnorm, kinds):
    parts = split(meta(), batchnorm=batchnorm)
    assert parts.shared_kinds() == kinds
    assert all(parts.kinds[key] not in kinds for key in parts.personal)


def test_everything_personal_lets_nothing_travel():
    parts = split(meta(), personal="everything")
    assert parts.shared == ()
    assert parts.shared_kinds() == frozenset()


def test_a_head_that_travels_obeys_the_batchnorm_policy():
    net = meta()
    weights = {"head.0.weight", "head.0.bias", "head.3.weight", "head.3.bias"}
    affine = {"head.1.weight", "head.1.bias"}
    statistics = {"head.1.running_mean", "head.1.running_var"}
    for policy, expected in (
        ("local_all", weights),
        ("local_stats", weights | affine),
        ("shared_all", weights | affine | statistics),
    ):
        parts = split(net, personal="nothing", batchnorm=policy)
        assert {k for k in parts.shared if k.startswith("head.")} == expected
        assert Kind.HEAD in parts.shared_kinds()


def test_a_name_is_matched_whole():
    parts = split(Parts(encoder=Trap(), head=nn.Linear(4, 2)))
    assert parts.shared == (
        "encoder.bn.0.bias",
        "encoder.bn.0.weight",
        "encoder.bn10.bias",
        "encoder.bn10.weight",
    )
    assert {k.rpartition(".")[0] for k in parts.personal} == {"encoder.bn1", "encoder.plain", "head"}


def test_the_name_match_falls_into_the_trap():
    parts = split(Parts(encoder=Trap(), head=nn.Linear(4, 2)), bn_match="name")
    assert {k.rpartition(".")[0] for k in parts.shared} == {"encoder.plain"}


def test_instance_norm_counts_only_with_running_statistics():
    encoder = nn.Sequential(
        nn.InstanceNorm2d(3, affine=True), nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    )
    parts = split(Parts(encoder=encoder))
    assert parts.shared == ("encoder.0.bias", "encoder.0.weight")
    assert parts.kinds["encoder.1.running_var"] is Kind.STATISTIC


def test_batchnorm_without_running_statistics_is_still_one():
    parts = split(Parts(encoder=nn.BatchNorm2d(3, track_running_stats=False)))
    assert parts.shared == ()
    assert set(parts.kinds.values()) == {Kind.NORM}


def test_a_module_under_two_names_is_found_under_both():
    norm = nn.BatchNorm2d(3)
    parts = split(Parts(encoder=nn.Sequential(norm, nn.Conv2d(3, 3, 1), norm)))
    assert parts.shared == ("encoder.1.bias", "encoder.1.weight")


def test_exits_stay_with_the_head_and_a_projector_travels():
    net = Parts(
        encoder=nn.Conv2d(3, 3, 1, bias=False),
        exits=nn.ModuleList([nn.Linear(2, 2, bias=False)]),
        projector=nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2)),
    )
    assert split(net).shared == ("encoder.weight", "projector.0.weight")
    assert split(net, batchnorm="local_stats").shared_kinds() == {Kind.ENCODER, Kind.PROJECTOR}
    assert "exits.0.weight" in split(net, personal="nothing").shared
    assert split(net).kinds["projector.1.running_mean"] is Kind.PROJECTOR


@pytest.mark.parametrize("encoder", ["efficientnet_b0", "efficientnet_b4", "mobilenet_v2"])
def test_by_name_all_of_torchvisions_efficientnet_leaks(encoder):
    """No key of these contains "bn": by name nothing of the encoder stays, not even the counters."""
    net = meta(encoder)
    keys = {key for key in net.state_dict() if key.startswith("encoder.")}
    assert set(split(net, bn_match="name").shared) == keys
    assert keys - set(split(net).shared) == batchnorm_keys(keys)


@pytest.mark.parametrize("batchnorm", ["local_all", "local_stats", "shared_all", "none"])
def test_layer_norm_is_no_batchnorm_and_travels(batchnorm):
    net = meta("vit_small", layout="linear")
    parts = split(net, batchnorm=batchnorm, personal="nothing")
    assert parts.personal == ()
    assert parts.shared_kinds() == {Kind.ENCODER, Kind.HEAD}
    norms = [f"encoder.{n}.weight" for n, m in net.encoder.named_modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 25
    assert all(parts.kinds[key] is Kind.ENCODER for key in norms)


def test_policy_none_accepts_a_transformer_whose_head_stays():
    assert len(split(meta("vit_small"), batchnorm="none").shared) == 148


def test_policy_none_refuses_batchnorm_in_what_travels():
    with pytest.raises(SettingsError, match=r'"none".*encoder\.stages\.0\.1 is one'):
        split(meta(), batchnorm="none")
    group = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4))
    net = Parts(encoder=group, head=nn.BatchNorm1d(4))
    assert len(split(net, batchnorm="none").shared) == 4
    with pytest.raises(SettingsError, match="head is one"):
        split(net, batchnorm="none", personal="nothing")


def test_a_key_outside_the_known_parts_is_refused():
    with pytest.raises(SettingsError, match=r"backbone\.weight"):
        split(Parts(backbone=nn.Linear(2, 2)))


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"steps": 1}


def test_extra_state_is_refused():
    with pytest.raises(SettingsError, match="_extra_state"):
        split(Parts(encoder=Extra(2, 2)))


def test_shapes_dtypes_and_sizes():
    parts = split(meta("resnet50"))
    key = "encoder.stages.0.0.weight"
    assert parts.shapes[key] == (64, 3, 7, 7)
    assert parts.dtypes[key] is torch.float32
    assert parts.sizes[key] == (9408, 37632)
    assert parts.sizes["encoder.stages.0.1.num_batches_tracked"] == (1, 8)


def test_digest_ignores_the_number_of_grades_unless_the_head_travels():
    assert split(meta(num_classes=4)).digest() == split(meta(num_classes=6)).digest()
    shared = [split(meta(num_classes=k), personal="nothing").digest() for k in (4, 6)]
    assert shared[0] != shared[1]


def test_digest_is_the_hash_of_the_sorted_rows():
    parts = split(Parts(encoder=nn.Linear(2, 3)))
    rows = [
        ["encoder.bias", "encoder", [3], "torch.float32"],
        ["encoder.weight", "encoder", [3, 2], "torch.float32"],
    ]
    assert parts.digest() == hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def test_digest_feels_key_shape_and_dtype():
    nets = [nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(2, 3).double(), nn.Linear(2, 3, bias=False)]
    assert len({split(Parts(encoder=net)).digest() for net in nets}) == 4


def test_digest_feels_the_kind():
    batchnorm = Parts(encoder=nn.BatchNorm1d(3, track_running_stats=False))
    layernorm = Parts(encoder=nn.LayerNorm(3))
    digests = [split(net, batchnorm="shared_all").digest() for net in (batchnorm, layernorm)]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("encoder", ["resnet18", "efficientnet_lite0"])
@pytest.mark.parametrize("settings", [{}, {"personal": "nothing", "batchnorm": "shared_all"}, {"bn_match": "name"}])
def test_meta_and_real_network_divide_alike(encoder, settings):
    real = build_network(NetworkSettings(encoder=encoder), 2, seed=0)
    assert split(real, **settings) == split(meta(encoder), **settings)


def test_table_adds_up():
    net = Parts(encoder=nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)), head=nn.Linear(8, 2))
    rows = [re.split(r"\s+", line.replace(",", "")) for line in split(net).table().splitlines()[1:]]
    assert rows == [
        ["encoder", "travels", "2", "32", "128"],
        ["norm", "stays", "2", "16", "64"],
        ["statistic", "stays", "2", "16", "64"],
        ["counter", "stays", "1", "1", "8"],
        ["head", "stays", "2", "18", "72"],
        ["all", "travels", "2", "32", "128"],
        ["all", "stays", "7", "51", "208"],
    ]


def test_settings_are_checked():
    with pytest.raises(ValidationError, match="bn_match"):
        ExchangeSettings(batchnorm="shared_all", bn_match="name")
    with pytest.raises(ValidationError):
        ExchangeSettings(batchnorm="fedbn")
    with pytest.raises(ValidationError):
        ExchangeSettings(persona="head")


def test_a_partition_is_frozen():
    with pytest.raises(FrozenInstanceError):
        split(Parts(encoder=nn.Linear(2, 2))).shared = ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_size_of_a_tensor_is_that_of_its_largest_number_or_says_what_is_not_finite(dtype):
    made = torch.Generator().manual_seed(0)
    for _ in range(20):
        tensor = torch.randn(3, 7, generator=made).to(dtype)
        assert size_of(tensor) == float(tensor.abs().max())
        for bad in (math.nan, math.inf, -math.inf):
            broken = tensor.clone()
            broken.view(-1)[int(torch.randint(21, (1,), generator=made))] = bad
            assert not math.isfinite(size_of(broken))
    assert size_of(torch.empty(0, dtype=dtype)) == 0
