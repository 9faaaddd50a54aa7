"""A site's policy on an answer: what is held back, rounded, noised, refused."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedretina.errors import RefusedError
from fedretina.evaluation.pooled import decode
from fedretina.exchange.min_count import encode
from fedretina.exchange.payload import Payload, Stamp
from fedretina.exchange.policy import apply_policy, require_budget, rounded, significant
from fedretina.settings.exchange import Kind
from fedretina.settings.policy import GaussianNoise, PolicySettings
from fedretina.settings.scalars import BY_TASK, held_back
from fedretina.settings.site import SiteSettings

STAMP = Stamp("run", "train", 0, 0, "d" * 64)
RECEIVED = {"encoder.w": torch.full((40,), 0.5)}
ANSWER = Payload(
    {"encoder.w": torch.linspace(0.4, 0.6, 40), "control:encoder.w": torch.linspace(-1e-3, 1e-3, 40)},
    {"theta": 0.123456, "images": 24.0, "val_auc": 0.98765},
    STAMP,
)


def key():
    return b"k" * 32


def sparse(update, noise, source):
    return {name: torch.zeros_like(tensor) for name, tensor in update.items()}


def apply(payload=ANSWER, received=RECEIVED, **words):
    return apply_policy(PolicySettings.model_validate(words), payload, received, key, sparse)


def test_without_a_word_everything_leaves_as_it_is():
    leaving, done = apply(received=None)
    assert leaving.tensors is ANSWER.tensors
    assert leaving == ANSWER
    assert done == {}


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ("noise", {"kind": "gaussian", "clip": 1, "multiplier": 1}),
        ("noise", {"kind": "svt", "epsilon": 1, "epsilon_release": 1, "clip": 1}),
        ("sums_noise", {"multiplier": 1}),
    ],
)
def test_no_number_of_the_noise_is_infinite(noise, words):
    PolicySettings.model_validate({noise: words})
    for name in (*(words.keys() - {"kind"}), "max_epsilon"):
        with pytest.raises(ValidationError, match="finite number"):
            PolicySettings.model_validate({noise: {**words, name: float("inf")}})


def test_what_is_held_back_does_not_leave():
    leaving, done = apply(hold_back=["images", "val_auc", "test_auc"])
    assert dict(leaving.scalars) == {"theta": 0.123456}
    assert done == {"held_back": ["images", "val_auc"]}
    with pytest.raises(
        ValidationError, match="'theta' cannot be held back: a run can do without bad_files, contrast_loss"
    ):
        apply(hold_back=["theta"])
    with pytest.raises(ValidationError, match="'people' cannot be held back"):
        apply(hold_back=["people"])


def test_with_a_figure_goes_what_says_much_the_same():
    told = Payload(
        {}, {"val_auc": 0.7, "val_auc_supported": 0.8, "images": 90.0, "patients": 45.0, "theta": 0.5}, STAMP
    )
    leaving, done = apply(told, hold_back=["val_auc", "images"])
    assert dict(leaving.scalars) == {"theta": 0.5}
    assert done == {"held_back": ["images", "patients", "val_auc", "val_auc_supported"]}
    assert dict(apply(told, hold_back=["patients"])[0].scalars) == {
        name: value for name, value in told.scalars.items() if name != "patients"
    }
    ended = BY_TASK["finalise"]
    kept = ended - held_back(ended, {"images", "test_auc"})
    assert not [name for name in kept if name.startswith("test_auc") or name in ("images", "images_train")]
    assert {"images_val", "images_test", "test_kappa_low"} <= kept
    assert held_back(ended, {"test_kappa"}) == {"test_kappa", "test_kappa_low", "test_kappa_high"}


def test_sums_of_subgroups_leave_where_the_policy_names_their_column_alone():
    told = Payload({}, {"group_sex_male_ill": 123456.0, "group_eye_left_ill": 7.0, "theta": 0.5}, STAMP)
    assert dict(apply(told)[0].scalars) == {"theta": 0.5}
    assert apply(told)[1] == {}  # nothing was asked for, so nothing was held back
    assert dict(apply(told, subgroups=["sex"], scalar_digits=2)[0].scalars) == {
        "group_sex_male_ill": 123456.0,
        "theta": 0.5,
    }
    with pytest.raises(ValidationError, match="camera"):
        apply(told, subgroups=["camera"])


def test_counts_of_ill_patients_leave_where_the_policy_says_so_alone():
    told = Payload({}, {"curve_00": 123456.0, "curve_15": 7.0}, STAMP)
    assert apply(told) == (Payload({}, {}, STAMP), {})  # nothing was asked for, so nothing was held back
    assert dict(apply(told, referral_curve=True, scalar_digits=2)[0].scalars) == told.scalars
    assert SiteSettings().own_policy.referral_curve  # a phantom hospital's
    assert not SiteSettings.model_validate({"data": {"manifest": "m.csv"}}).own_policy.referral_curve


def test_scalars_are_rounded():
    leaving, done = apply(scalar_digits=2)
    assert dict(leaving.scalars) == {"theta": 0.12, "images": 24.0, "val_auc": 0.99}
    assert done == {"scalar_digits": 2}
    assert [significant(value, 3) for value in (0.0, 12345.0, -0.00123456, 1e300)] == [0.0, 12300.0, -0.00123, 1e300]


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_counts_of_answers_are_not_rounded_and_still_add_up(digits):
    rng = np.random.default_rng(digits)
    scores = rng.dirichlet(np.full(5, 0.4), 9000)
    labels = (scores.cumsum(1) < rng.random((9000, 1))).sum(1)
    counts = encode(scores, labels, rng.random(9000), [str(at) for at in range(9000)])
    sent = Payload({}, {**counts, "images_test": 9000.0, "test_auc": 0.98765}, STAMP)
    leaving, _ = apply(sent, None, scalar_digits=digits)
    assert {name: leaving.scalars[name] for name in counts} == counts
    assert decode(leaving.scalars) is not None
    assert leaving.scalars["test_auc"] != 0.98765


def test_seven_bits_are_bfloat16_and_ten_are_float16():
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(10_000, generator=generator) * torch.logspace(-6, 6, 10_000)
    assert torch.equal(rounded(numbers, 7), numbers.bfloat16().float())
    normal = numbers[(numbers.abs() > 1e-4) & (numbers.abs() < 6e4)]
    assert torch.equal(rounded(normal, 10), normal.half().float())
    assert torch.equal(rounded(torch.tensor([0.0, -0.0, 1.0]), 3), torch.tensor([0.0, 0.0, 1.0]))
    assert torch.isnan(rounded(torch.tensor([float("nan")]), 7)).all()


def test_it_is_the_update_that_is_rounded_not_the_model():
    leaving, done = apply(mantissa_bits=3)
    update = leaving.tensors["encoder.w"] - RECEIVED["encoder.w"]
    exact = ANSWER.tensors["encoder.w"] - RECEIVED["encoder.w"]
    assert done == {"mantissa_bits": 3}
    assert torch.allclose(update, rounded(exact, 3), atol=1e-7)
    assert float(((update - exact) / exact).abs().max()) < 2**-3
    # A control is no part of what came down, so it is rounded itself.
    control = "control:encoder.w"
    assert torch.equal(leaving.tensors[control], rounded(ANSWER.tensors[control], 3))


def test_noise_covers_all_that_leaves_and_is_written_down():
    noise = {"kind": "gaussian", "clip": 0.1, "multiplier": 0.5}
    leaving, done = apply(noise=noise)
    again, _ = apply(noise=noise)
    for name, tensor in ANSWER.tensors.items():
        assert float((leaving.tensors[name] - tensor).abs().min()) > 0
        assert torch.equal(leaving.tensors[name], again.tensors[name])
    assert done == {"privacy": {**noise, "delta": 1e-5, "rho": 8.0}}
    assert leaving.scalars == ANSWER.scalars
    both, done = apply(noise=noise, mantissa_bits=2)
    assert set(done) == {"privacy", "mantissa_bits"}
    assert not torch.equal(both.tensors["encoder.w"], leaving.tensors["encoder.w"])


@pytest.mark.parametrize("key_", ["encoder.bn.running_var", "key:encoder.bn.running_var", "statistic:bn.variance"])
def test_noise_and_rounding_leave_no_variance_below_0(key_):
    came = {} if key_.startswith("statistic:") else {key_: torch.full((40,), 0.99)}
    own = Payload({key_: torch.full((40,), 1e-3), "encoder.w": torch.full((40,), 1e-3)}, {}, STAMP)
    noised, _ = apply(own, came, noise={"kind": "gaussian", "clip": 10.0, "multiplier": 0.1})
    assert 0 < int((noised.tensors[key_] > 0).sum()) < 40
    assert float(noised.tensors[key_].min()) == 0
    assert float(noised.tensors["encoder.w"].min()) < 0  # a weight is what it is
    rounded_, _ = apply(own, came, mantissa_bits=2)  # 0.989 becomes 1
    assert float(rounded_.tensors[key_].min()) >= 0


def test_the_sparse_technique_is_asked_when_it_is_chosen():
    leaving, done = apply(noise={"kind": "svt", "epsilon": 0.5, "epsilon_release": 0.25, "clip": 1e-3})
    assert torch.equal(leaving.tensors["encoder.w"], RECEIVED["encoder.w"])
    assert done["privacy"]["epsilon"] == 0.75
    assert done["privacy"]["kind"] == "svt"


@pytest.mark.parametrize("words", [{"mantissa_bits": 7}, {"noise": {"kind": "gaussian", "clip": 1, "multiplier": 1}}])
def test_what_cannot_be_made_safe_does_not_leave(words):
    with pytest.raises(RefusedError, match="began with is not known"):
        apply(received=None, **words)
    counter = Payload({"encoder.n": torch.tensor(3)}, {}, STAMP)
    with pytest.raises(RefusedError, match=r"'encoder\.n' holds no real numbers"):
        apply(counter, **words)
    scalars_alone = Payload({}, {"val_auc": 0.5}, STAMP)
    assert apply(scalars_alone, None, **words) == (scalars_alone, {})


def test_the_budget_is_the_sites_over_all_its_runs():
    noise = GaussianNoise(kind="gaussian", clip=1, multiplier=2, delta=1e-5, max_epsilon=15)
    policy = PolicySettings(noise=noise)
    first = require_budget(policy, [], "a")
    ledgers = [{"digest": "a", "privacy": {"rho": 0.5}}]
    assert first == pytest.approx(0.5 + 2 * (0.5 * 11.512925) ** 0.5)
    assert require_budget(policy, ledgers, "a") == first
    second = require_budget(policy, ledgers, "b")
    assert first < second < 15
    ledgers += [{"digest": name, "privacy": {"rho": 0.5}} for name in "bcdef"]
    with pytest.raises(RefusedError, match=r"budget is spent: with this update epsilon would be \d"):
        require_budget(policy, ledgers, "g")
    require_budget(policy, ledgers, "f")  # sent again
    assert require_budget(PolicySettings(), ledgers, "g") == 0
    free = PolicySettings(noise=noise.model_copy(update={"max_epsilon": None}))
    assert require_budget(free, ledgers, "g") > 15


def test_heads_do_not_leave_unless_the_site_says_so():
    assert {Kind.HEAD, Kind.EXIT}.isdisjoint(PolicySettings().kinds)
    with pytest.raises(ValidationError):
        PolicySettings.model_validate({"kinds": ["images"]})
    with pytest.raises(ValidationError):
        PolicySettings.model_validate({"allow": ["encoder"]})


def test_a_head_leaves_a_phantom_hospital_and_no_hospital_with_data_that_did_not_say_so():
    assert SiteSettings().own_policy.kinds == frozenset(Kind)
    with_data = SiteSettings.model_validate({"data": {"manifest": "manifest.csv", "scheme": "icdr5"}})
    assert Kind.HEAD not in with_data.own_policy.kinds
    strict = SiteSettings.model_validate({"policy": {"hold_back": ["images"]}})
    assert Kind.HEAD not in strict.own_policy.kinds
    named = SiteSettings.model_validate({"data": {"manifest": "m.csv"}, "policy": {"kinds": ["encoder", "head"]}})
    assert named.own_policy.kinds == {Kind.ENCODER, Kind.HEAD}
