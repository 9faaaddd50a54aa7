import math

import pytest
import torch
from quadratics import Line, context, local, sent_by, server, vector

from fedretina.corrections.correction import build_correction
from fedretina.corrections.gradients import RATIO, CorrectionSize
from fedretina.corrections.scaffold import Scaffold
from fedretina.errors import SettingsError
from fedretina.exchange.partition import CONTROL
from fedretina.settings.correction import NoCorrectionSettings, ScaffoldSettings
from fedretina.settings.training import OptimiserSettings


def scaffold(momentum=0.0, **words):
    return Scaffold(ScaffoldSettings(**words), momentum)


def pull(target, curvature):
    return lambda w: curvature * (w - target)


def test_the_mean_of_raw_gradients_is_the_papers_option_two_for_plain_sgd():
    received, control = vector(1.0, -2.0), vector(0.3, 0.1)
    memory = {"variate:w": vector(-0.2, 0.4)}
    gradients = [pull(vector(2.0, 1.0), 0.7)] * 5
    found = {
        update: local(scaffold(update=update), received, gradients, 0.1, control, memory)[1]
        for update in ("mean_grad", "option2")
    }
    torch.testing.assert_close(found["mean_grad"].control["w"], found["option2"].control["w"], rtol=0, atol=1e-12)
    # The paper's formula, written out: c_i+ = c_i - c + (x - y) / (S eta).
    net, outcome = local(scaffold(), received, gradients, 0.1, control, memory)
    written = memory["variate:w"] - control + (received - net.w.detach()) / (5 * 0.1)
    torch.testing.assert_close(outcome.memory["variate:w"], written, rtol=0, atol=1e-12)
    torch.testing.assert_close(outcome.control["w"], written - memory["variate:w"], rtol=0, atol=1e-12)


def test_steps_of_other_rates_weigh_by_their_rate():
    gradients = [vector(1.0, 0.0), vector(0.0, 1.0), vector(2.0, 2.0)]
    steps = [0.4, 0.1, 0.5]
    for update in ("mean_grad", "option2"):
        _, outcome = local(
            scaffold(update=update), vector(0, 0), gradients, control=vector(0.1, 0.2), memory={}, steps=steps
        )
        expected = sum(rate * gradient for rate, gradient in zip(steps, gradients, strict=True)) / sum(steps)
        torch.testing.assert_close(outcome.memory["variate:w"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("update", "error"), [("mean_grad", 1.0), ("option2", 9.67), ("option2_fednova", 1.0)])
def test_momentum_inflates_option_two_tenfold_and_leaves_the_mean_gradient_right(update, error):
    # A constant gradient of 1 over the 270 steps of the OCT paper's Duke client, momentum 0.9.
    net = Line([0.0, 0.0])
    received = net.w.detach().clone()
    round_ = scaffold(0.9, update=update).begin(context(net, received, vector(0, 0)))
    optimiser = torch.optim.SGD([net.w], lr=0.01, momentum=0.9)
    for _ in range(270):
        net.w.grad = vector(1.0, 1.0)
        round_.adjust({"w": 0.01})
        optimiser.step()
        round_.stepped({"w": 0.01})
    assert round_.finish().control["w"].tolist() == pytest.approx([error, error], abs=0.01)


def test_one_site_is_plain_training_to_the_last_bit():
    received, control = vector(1.1, -2.3), torch.zeros(2, dtype=torch.float64)
    plain, memory = received.clone(), {}
    for round_number in range(4):
        gradients = [pull(vector(0.3 + round_number, 1.7), 0.37)] * 3
        net, outcome = local(scaffold(), received, gradients, 0.1, control, memory)
        for gradient in gradients:
            plain = plain - 0.1 * gradient(plain)
        assert torch.equal(net.w.detach(), plain)
        after = server(scaffold(), received, {"a": sent_by(net, outcome)}, 1, {f"{CONTROL}w": control})
        received, control, memory = after["w"], after[f"{CONTROL}w"], outcome.memory
        assert torch.equal(control, memory["variate:w"])


def test_identical_sites_make_the_correction_vanish():
    received, control, memory = vector(1.0, 2.0), vector(0, 0), {}
    for _ in range(3):
        net, outcome = local(scaffold(), received, [pull(vector(0, 5), 0.5)] * 4, 0.1, control, memory)
        sent = dict.fromkeys("abc", sent_by(net, outcome))
        after = server(scaffold(), received, sent, 3, {f"{CONTROL}w": control})
        received, control, memory = after["w"], after[f"{CONTROL}w"], outcome.memory
        torch.testing.assert_close(control, memory["variate:w"], rtol=0, atol=1e-12)


def test_two_sites_that_pull_apart_end_where_their_sum_is_least():
    # FedAvg's fixed point with unequal curvatures and many local steps is biased; SCAFFOLD's is the optimum 2.5.
    targets, curvatures = {"a": 0.0, "b": 3.0}, {"a": 0.2, "b": 1.0}
    best = sum(targets[s] * curvatures[s] for s in targets) / sum(curvatures.values())

    def ends_at(correction):
        received, control = vector(9.0, 9.0), vector(0, 0)
        memory = {site: {} for site in targets}
        for _ in range(200):
            sent = {}
            for site, target in targets.items():
                gradients = [pull(vector(target, target), curvatures[site])] * 10
                net, outcome = local(correction, received, gradients, 0.1, control, memory[site])
                sent[site], memory[site] = sent_by(net, outcome), outcome.memory
            after = server(correction, received, sent, 2, {f"{CONTROL}w": control})
            received, control = after["w"], after.get(f"{CONTROL}w", control)
        return received[0].item()

    averaged = build_correction(NoCorrectionSettings(), OptimiserSettings())
    assert abs(ends_at(averaged) - best) > 0.1
    assert ends_at(scaffold()) == pytest.approx(best, abs=1e-6)


def test_the_servers_variate_moves_by_the_share_of_the_sites_that_answered():
    sent = {
        "a": {"w": vector(1, 1), f"{CONTROL}w": vector(4, 0)},
        "b": {"w": vector(3, 1), f"{CONTROL}w": vector(0, 2)},
    }
    after = server(scaffold(), vector(0, 0), sent, enrolled=5, kept={f"{CONTROL}w": vector(1, 1)})
    assert after[f"{CONTROL}w"].tolist() == pytest.approx([1 + 2 / 5 * 2, 1 + 2 / 5 * 1])
    assert after["w"].tolist() == [2, 1]
    half = server(scaffold(eta_g=0.5), vector(0, 0), sent, 2, {f"{CONTROL}w": vector(0, 0)})
    assert half["w"].tolist() == pytest.approx([1, 0.5])


def test_the_correction_enters_before_or_after_the_step_and_is_the_same_for_sgd():
    received, control, gradients = vector(1, 2), vector(0.5, -0.5), [vector(1, 1), vector(2, 0)]
    ends = [local(scaffold(place=place), received, gradients, 0.1, control)[0].w for place in ("gradient", "weights")]
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)


def test_a_correction_that_dwarfs_the_gradient_is_shortened():
    received, control = vector(0, 0), vector(300, 400)
    net, outcome = local(scaffold(max_ratio=2.0), received, [vector(3, 4)], 1.0, control)
    moved = -net.w.detach() - vector(3, 4)
    assert moved.norm().item() == pytest.approx(2 * 5)
    assert outcome.figures["correction_ratio"] == pytest.approx(100)
    still, _ = local(scaffold(max_ratio=2.0), received, [vector(0, 0)], 1.0, control)
    assert torch.isfinite(still.w).all()


def test_one_step_without_a_gradient_to_speak_of_is_not_what_a_round_is_told_by():
    size = CorrectionSize()
    for gradient in (2.0, 1e-9, 0.0):
        size.note(torch.tensor(1.0), torch.tensor(gradient))
    assert size.figures() == {RATIO: pytest.approx(1.5)}
    assert CorrectionSize().figures() == {RATIO: 0.0}


def test_a_personal_parameter_is_never_touched():
    net, outcome = local(scaffold(), vector(0, 0), [vector(1, 1)], 0.1, vector(5, 5))
    assert net.own.grad.tolist() == [1.0]
    assert net.own.item() == 7.0
    assert set(outcome.control) == {"w"}
    assert set(outcome.memory) == {"variate:w"}


def test_a_parameter_without_gradients_keeps_its_variate():
    net = Line([1.0, 1.0])
    round_ = scaffold().begin(context(net, vector(1, 1), vector(0.5, 0.5), {"variate:w": vector(0.25, 0)}))
    round_.adjust({"w": 0.1})
    outcome = round_.finish()
    assert outcome.control["w"].tolist() == [0, 0]
    assert outcome.memory["variate:w"].tolist() == [0.25, 0]
    assert math.isfinite(outcome.figures["correction_ratio"])


def test_a_place_that_would_do_nothing_is_refused():
    with pytest.raises(SettingsError, match=r"nothing is left of the correction .* use 'gradient'"):
        build_correction(ScaffoldSettings(place="weights"), OptimiserSettings(optimizer="adam"))


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ("option2", {"momentum": 0.9}),
        ("option2", {"optimizer": "adam"}),
        ("option2", {"weight_decay": 0.1}),
        ("option2_fednova", {"optimizer": "adam"}),
    ],
)
def test_an_update_that_would_be_wrong_is_refused(update, words):
    settings = ScaffoldSettings(update=update)
    with pytest.raises(SettingsError, match="mean_grad"):
        build_correction(settings, OptimiserSettings(**words))
