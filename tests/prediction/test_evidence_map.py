"""The evidence map: exact where it can be computed by hand, and it follows lesions that were planted into phantoms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedretina.data.phantoms import fundus
from fedretina.data.phantoms.canvas import Canvas
from fedretina.data.phantoms.fundus import FundusStyle, draw_fundus
from fedretina.networks.build import build_network
from fedretina.prediction.evidence import evidence_map
from fedretina.settings.evaluation import EvaluationSettings
from fedretina.settings.network import NetworkSettings
from fedretina.settings.scheme import GradingScheme
from fedretina.uncertainty.estimators import build_estimator

SCHEME = GradingScheme(grades=("well", "ill"), referable=("ill",))
SIZE = 128
STYLE = FundusStyle(retina=(200, 105, 60), spread=0.1, trouble=0.0)


def network(**words):
    settings = NetworkSettings(
        **{"encoder": "efficientnet_lite0", "head": {"layout": "linear"}, "weights": {"source": "package"}, **words}
    )
    return build_network(settings, 2, 0).eval()


def softmax():
    return build_estimator(EvaluationSettings.model_validate({"estimator": "softmax"}))


def asked(net, image):
    with torch.inference_mode():
        return evidence_map(net, softmax(), SCHEME, image, net(image))


def planted(monkeypatch, count):
    """Photographs [2 n, 3, S, S], of well eyes and of ill ones that have lesions in one quarter; and which quarter."""
    real, where = fundus.draw_lesions, []

    def in_a_quarter(canvas, masks, eye, trunks, severity, rng):
        before = [mask.copy() for mask in masks]
        real(canvas, masks, eye, trunks, severity, rng)
        if severity:
            y, x = where[-1]
            outside = np.ones((canvas.side, canvas.side), bool)
            half = canvas.side // 2
            outside[y * half : (y + 1) * half, x * half : (x + 1) * half] = False
            for mask, old in zip(masks, before, strict=True):
                mask[outside] = old[outside]

    monkeypatch.setattr(fundus, "draw_lesions", in_a_quarter)
    images = []
    for at in range(count):
        where.append(divmod(at % 4, 2))
        for severity in (0.0, 3.2):
            drawn = [np.random.default_rng([at, part]) for part in range(2)]
            images.append(draw_fundus(Canvas(SIZE), STYLE, drawn[0], at % 2 == 0, severity, False, drawn[1]))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float().div_(255)
    return pixels, where


def fit(net, features, labels):
    """A linear head by logistic regression on features."""
    head = net.head[0]
    middle, spread = features.mean(0), features.std(0) + 1e-3
    seen = (features - middle) / spread
    weight = torch.zeros(2, seen.shape[1], requires_grad=True)
    bias = torch.zeros(2, requires_grad=True)
    steps = torch.optim.LBFGS([weight, bias], max_iter=60)

    def loss():
        steps.zero_grad()
        out = torch.nn.functional.cross_entropy(seen @ weight.T + bias, labels) + 0.02 * weight.square().sum()
        out.backward()
        return out

    steps.step(loss)
    with torch.no_grad():
        head.weight.copy_(weight / spread)
        head.bias.copy_(bias - (weight / spread) @ middle)


@pytest.fixture(scope="module")
def eyes():
    with pytest.MonkeyPatch.context() as patch:
        images, where = planted(patch, 64)
    net = network()
    with torch.inference_mode():
        features = torch.cat([net.features(part) for part in images.split(40)])
    return net, images, where, features.clone()


def share_in_the_quarter(net, images, where):
    """Of ill eyes that were not learned from: in how many the quarter with the lesions speaks most for disease."""
    found = []
    for at in range(40, 64):
        cells = asked(net, images[2 * at + 1][None]).cells
        half = cells.shape[0] // 2
        quarters = {(y, x): cells[y * half :, x * half :][:half, :half].sum() for y in (0, 1) for x in (0, 1)}
        found.append(max(quarters, key=quarters.get) == where[at])
    return np.mean(found)


@pytest.mark.slow
def test_it_follows_planted_lesions_and_does_not_where_the_head_learned_nothing(eyes):
    net, images, where, features = eyes
    labels = torch.arange(128) % 2
    fit(net, features[:80], labels[:80])
    with torch.inference_mode():
        right = (net.logits(features[80:]).argmax(1) == labels[80:]).float().mean()
    assert right > 0.8  # else there is nothing to follow
    assert share_in_the_quarter(net, images, where) > 0.7
    fit(net, features[:80], labels[torch.randperm(80, generator=torch.Generator().manual_seed(0))])
    assert share_in_the_quarter(net, images, where) < 0.5  # a quarter is chance


def test_with_a_linear_head_it_is_the_class_activation_map_but_for_a_constant(eyes):
    net, images, _, _ = eyes
    image = images[1][None]
    with torch.inference_mode():
        last = net.encoder.span(net.normalised(image), 0, len(net.encoder.stages))
        weight = net.head[0].weight[1] - net.head[0].weight[0]
        activation = torch.einsum("c,chw->hw", weight, last[0]).double().numpy()
    found = asked(net, image)
    count = activation.size
    # Without a cell the mean is that of the others.
    expected = (activation - activation.mean()) / (count - 1)
    assert found.cells == pytest.approx(expected, abs=1e-4)
    with torch.inference_mode():
        logits = net(image)[0]
    assert found.odds == pytest.approx(float(logits[1] - logits[0]), abs=1e-4)


def test_a_head_with_layers_and_early_exits_are_asked_as_they_answer(eyes):
    _, images, _, _ = eyes
    net = network(head={"layout": "linear_bn_relu_linear", "width": 8}, exits={"after": [2, 3]})
    image = images[1][None]
    with torch.inference_mode():
        logits = net(image)
        last = net.encoder.span(net.normalised(image), 0, len(net.encoder.stages))
        without = last.clone()
        without[0, :, 0, 1] = (last[0].sum((1, 2)) - last[0, :, 0, 1]) / (last[0, 0].numel() - 1)
        changed = logits.clone()
        changed[:, -1] = net.logits(net.encoder.pool(without))
    estimator = build_estimator(EvaluationSettings.model_validate({"estimator": "softmax_mean"}))
    found = evidence_map(net, estimator, SCHEME, image, logits)
    chances = [estimator.predict(one).probabilities[0, 1] for one in (logits, changed)]
    odds = np.log(chances) - np.log1p(-np.array(chances))
    assert found.cells[0, 1] == pytest.approx(odds[0] - odds[1], abs=1e-5)


def test_there_is_none_where_the_encoder_has_no_grid_or_answered_otherwise(eyes):
    net, images, _, _ = eyes
    with torch.inference_mode():
        assert evidence_map(net, softmax(), SCHEME, images[:1], net(images[:1]) + 1) is None
        small = images[:1, :, :32, :32]
        assert evidence_map(net, softmax(), SCHEME, small, net(small)) is None  # one cell is no map
