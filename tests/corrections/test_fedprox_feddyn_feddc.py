"""FedProx, FedDyn and FedDC against their own formulas, written out."""

import pytest
import torch
from quadratics import Line, context, local, sent_by, server, vector

from fedretina.corrections.feddc import FedDc
from fedretina.corrections.feddyn import FedDyn
from fedretina.corrections.fedprox import FedProx
from fedretina.exchange.partition import CONTROL
from fedretina.settings.correction import FedDcSettings, FedDynSettings, FedProxSettings


def gradient_of(correction, at, **kept):
    """What the correction adds to a raw gradient of zero when the weights stand at `at`."""
    net = Line(kept["received"].tolist())
    round_ = correction.begin(
        context(net, kept["received"], kept.get("control"), kept.get("memory"), kept.get("share", 1.0))
    )
    with torch.no_grad():
        net.w.copy_(at)
    net.w.grad = torch.zeros_like(net.w)
    round_.adjust({"w": 0.1})
    return net.w.grad


def by_autograd(term, at):
    w = at.clone().requires_grad_()
    return torch.autograd.grad(term(w), w)[0]


W, RECEIVED = vector(0.7, -1.2), vector(0.2, 0.5)
DRIFT, OWN, ALL = vector(0.3, -0.1), vector(0.05, 0.2), vector(-0.4, 0.6)


def test_fedprox_is_the_gradient_of_its_squared_norm():
    found = gradient_of(FedProx(FedProxSettings(mu=0.3)), W, received=RECEIVED)
    torch.testing.assert_close(found, by_autograd(lambda w: 0.3 / 2 * ((w - RECEIVED) ** 2).sum(), W))


@pytest.mark.parametrize("share", [1.0, 2.5])
def test_feddyn_is_the_gradient_of_its_linear_and_quadratic_terms(share):
    found = gradient_of(FedDyn(FedDynSettings(alpha=0.2)), W, received=RECEIVED, memory={"drift:w": DRIFT}, share=share)
    alpha = 0.2 / share
    term = by_autograd(lambda w: alpha * (w * (DRIFT - RECEIVED)).sum() + alpha / 2 * (w**2).sum(), W)
    torch.testing.assert_close(found, term)


@pytest.mark.parametrize("share", [1.0, 2.5])
def test_feddc_is_the_gradient_of_its_spring_and_its_gradient_term(share):
    found = gradient_of(
        FedDc(FedDcSettings(alpha=0.2)),
        W,
        received=RECEIVED,
        control=ALL,
        memory={"drift:w": DRIFT, "gradient:w": OWN},
        share=share,
    )
    alpha = 0.2 / share

    def term(w):
        return alpha / 2 * ((w - (RECEIVED - DRIFT)) ** 2).sum() + (w * (ALL / share - OWN)).sum()

    torch.testing.assert_close(found, by_autograd(term, W))


def test_feddyn_over_rounds_is_the_official_recursion():
    """Server w = mean over the accepted of w_i + mean over all of h_i, with every h_i known to this test."""
    alpha, rate, targets = 0.5, 0.1, {"a": 0.0, "b": 4.0, "c": 1.0}
    received, kept = vector(5, 5), {}
    memory, drifts = {site: {} for site in targets}, dict.fromkeys(targets, vector(0, 0))
    for answering in (("a", "b", "c"), ("a", "c"), ("b",)):
        sent = {}
        for site in answering:
            correction = FedDyn(FedDynSettings(alpha=alpha))
            target = targets[site]
            net, outcome = local(correction, received, [lambda w, t=target: w - t] * 3, rate, memory=memory[site])
            w = received.clone()
            for _ in range(3):
                w = w - rate * ((w - target) + alpha * (w - received + drifts[site]))
            torch.testing.assert_close(net.w.detach(), w)
            drifts[site] = drifts[site] + w - received
            torch.testing.assert_close(outcome.memory["drift:w"], drifts[site])
            sent[site], memory[site] = sent_by(net, outcome), outcome.memory
        after = server(FedDyn(FedDynSettings(alpha=alpha)), received, sent, 3, kept)
        mean = sum(update["w"] for update in sent.values()) / len(sent)
        expected = mean + sum(drifts.values()) / 3
        torch.testing.assert_close(after["w"], expected)
        received, kept = after["w"], {key: value for key, value in after.items() if key != "w"}
        assert all(set(update) == {"w"} for update in sent.values())  # no drift ever leaves its site


def test_feddc_over_rounds_is_the_official_recursion():
    alpha, rate = 0.5, 0.1
    targets, shares = {"a": 0.0, "b": 4.0}, {"a": 0.5, "b": 1.5}
    received, kept = vector(5, 5), {f"{CONTROL}w": vector(0, 0)}
    memory = {site: {} for site in targets}
    drifts, own, everybody = (dict.fromkeys(targets, vector(0, 0)) for _ in range(3))
    everybody = vector(0, 0)
    for _ in range(3):
        sent, changes = {}, []
        for site, target in targets.items():
            share = shares[site]
            net, outcome = local(
                FedDc(FedDcSettings(alpha=alpha)),
                received,
                [lambda w, t=target: w - t] * 4,
                rate,
                kept[f"{CONTROL}w"],
                memory[site],
                share,
            )
            w = received.clone()
            for _ in range(4):
                spring = alpha / share * (w - received + drifts[site])
                w = w - rate * ((w - target) + spring + everybody / share - own[site])
            torch.testing.assert_close(net.w.detach(), w)
            moved = w - received
            renewed = own[site] - everybody / share - moved / (4 * rate)
            changes.append(share * (renewed - own[site]))
            own[site], drifts[site] = renewed, drifts[site] + moved
            torch.testing.assert_close(outcome.memory["gradient:w"], renewed)
            sent[site], memory[site] = sent_by(net, outcome), outcome.memory
        after = server(FedDc(FedDcSettings(alpha=alpha)), received, sent, 2, kept)
        everybody = everybody + sum(changes) / 2
        torch.testing.assert_close(after[f"{CONTROL}w"], everybody)
        torch.testing.assert_close(after["w"], sum(u["w"] for u in sent.values()) / 2 + sum(drifts.values()) / 2)
        received, kept = after["w"], {key: value for key, value in after.items() if key != "w"}


@pytest.mark.parametrize("correction", [FedDyn(FedDynSettings(alpha=0)), FedDc(FedDcSettings(alpha=0))])
def test_alpha_zero_switches_both_halves_off(correction):
    received, gradients = vector(1, 2), [vector(1, -1)] * 2
    net, outcome = local(correction, received, gradients, 0.1, vector(0, 0))
    assert torch.equal(net.w.detach(), received - 0.1 * gradients[0] - 0.1 * gradients[0])
    after = server(correction, received, {"a": sent_by(net, outcome)}, 1, {f"{CONTROL}w": vector(0, 0)})
    assert torch.equal(after["w"], net.w.detach())
