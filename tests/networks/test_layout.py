"""What holds for every form in which weights are published."""

import pytest
import torch
from torch import nn

from fedretina.errors import SettingsError
from fedretina.networks.encoder import Encoder
from fedretina.networks.layout import Layout


class Form(Layout):
    title, pretrained_on, licence = "nobody's", "nothing", "none"
    dropped = ("last",)

    def homes(self, encoder):
        return {"net": "stages.0", "net.1": "stages.1.0"}


def test_published_names_find_their_place_by_the_longest_that_fits():
    encoder = Encoder([nn.Conv2d(3, 3, 1), nn.Sequential(nn.Conv2d(3, 3, 1))], [3, 3])
    state = {"net.weight": 1.0, "net.bias": 2.0, "net.1.weight": 3.0, "net.1.bias": 4.0, "last.weight": 5.0}
    state = {k: torch.full((3, 3, 1, 1) if k.endswith("weight") else (3,), v) for k, v in state.items()}
    Form().load(encoder, state)
    assert [float(v.mean()) for v in encoder.state_dict().values()] == [1, 2, 3, 4]
    assert Form().fit(encoder, state).dropped == ("last.weight",)
    stranger = {**state, "weight": torch.zeros(1), "lastly.weight": torch.zeros(1)}
    assert Form().fit(encoder, stranger).left_over == ["lastly.weight", "weight"]
    with pytest.raises(SettingsError, match="2 are left over"):
        Form().load(encoder, stranger)
