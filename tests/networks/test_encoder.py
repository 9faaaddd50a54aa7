import pytest
import torch
from torch import nn

from fedretina.errors import SettingsError
from fedretina.networks.encoder import Encoder


def small():
    return Encoder([nn.Conv2d(c, c + 1, 1) for c in range(3, 8)], range(4, 9))


def test_forward_is_the_mean_of_the_last_map():
    encoder = small()
    x = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5) / 100
    maps = encoder.forward_stages(x)
    assert [m.shape[1] for m in maps] == list(encoder.widths) == [4, 5, 6, 7, 8]
    assert encoder.features == 8
    torch.testing.assert_close(encoder(x), maps[-1].flatten(2).mean(2))


@pytest.mark.parametrize(("stages", "widths"), [(4, 5), (5, 4), (1, 1), (0, 0)])
def test_two_stages_and_a_width_for_each_are_needed(stages, widths):
    with pytest.raises(SettingsError, match=f"{stages} stages and {widths} widths"):
        Encoder([nn.Identity()] * stages, range(widths))


@pytest.mark.parametrize("stages", [2, 9])
def test_any_number_of_stages_will_do(stages):
    encoder = Encoder([nn.Conv2d(3, 3, 1) for _ in range(stages)], [3] * stages)
    assert len(encoder.forward_stages(torch.zeros(1, 3, 4, 4))) == stages


def test_load_exactly_loads():
    one, two = small(), small()
    state = {k: v + 1 for k, v in one.state_dict().items()}
    two.load_exactly(state)
    assert all(torch.equal(v, state[k]) for k, v in two.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.pop("stages.3.bias"),
            r"1 of its 10 tensors are missing \(the first is stages\.3\.bias\)",
        ),
        (lambda s: s.update(alien=torch.zeros(1)), "1 are left over"),
        (lambda s: s.update({"stages.3.bias": torch.zeros(3)}), r"\(3,\) where \(7,\)"),
        (lambda s: s["stages.3.bias"].fill_(float("nan")), "not finite"),
    ],
)
def test_load_exactly_refuses_and_leaves_the_encoder_alone(change, message):
    encoder = small()
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    state = {k: v + 1 for k, v in before.items()}
    change(state)
    with pytest.raises(SettingsError, match=message) as caught:
        encoder.load_exactly(state)
    assert "alien" not in str(caught.value)
    assert all(torch.equal(v, before[k]) for k, v in encoder.state_dict().items())


def test_only_counters_may_be_missing():
    encoder = Encoder([nn.BatchNorm2d(3) for _ in range(5)], [3] * 5)
    encoder.stages[0].num_batches_tracked.fill_(7)
    state = {k: v for k, v in encoder.state_dict().items() if not k.endswith("num_batches_tracked")}
    encoder.load_exactly(state)
    assert encoder.stages[0].num_batches_tracked == 7
