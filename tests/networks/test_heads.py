import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fedretina.errors import SettingsError
from fedretina.networks.heads import build_head
from fedretina.settings.network import HeadSettings


def test_default_is_the_classifier_of_the_feduaa_code():
    head = build_head(2048, 5, HeadSettings())
    assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert head[0].weight.shape == (512, 2048)
    assert head[3].weight.shape == (5, 512)


def test_linear_is_one_layer():
    head = build_head(7, 3, HeadSettings(layout="linear"))
    assert [tuple(p.shape) for p in head.parameters()] == [(3, 7), (3,)]


@pytest.mark.parametrize("layout", ["linear", "linear_bn_relu_linear"])
def test_logits_have_one_column_a_grade_and_any_sign(layout):
    x = torch.randn(16, 7, generator=torch.Generator().manual_seed(0))
    logits = build_head(7, 6, HeadSettings(layout=layout))(x)
    assert logits.shape == (16, 6)
    assert logits.min() < 0 < logits.max()


@pytest.mark.parametrize("num_classes", [1, 0, -2])
def test_fewer_than_two_grades_are_refused(num_classes):
    with pytest.raises(SettingsError, match="at least 2 grades"):
        build_head(8, num_classes, HeadSettings())


def test_settings_are_checked():
    with pytest.raises(ValidationError):
        HeadSettings(width=0)
    with pytest.raises(ValidationError):
        HeadSettings(layout="mlp")
