"""A small federation of quadratics, on which every correction can be worked out by hand."""

import torch
from torch import nn

from fedretina.corrections.correction import RoundContext, ServerRound, build_correction
from fedretina.exchange.partition import CONTROL
from fedretina.local.supervised import RoundOptimiser
from fedretina.losses.objective import Clock


class Line(nn.Module):
    """Two weights that travel and one that does not."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.own = nn.Parameter(torch.tensor([7.0], dtype=torch.float64))


class Means:
    """Stands for the spool: the sites' tensors by name."""

    def __init__(self, sent):
        self.sent = sent

    def weighted_mean(self, weights, like):
        return {key: sum(weights[site] * self.sent[site][key] for site in sorted(weights)) for key in like}


def context(net, received, control=None, memory=None, share=1.0):
    return RoundContext(
        net, {"w": net.w}, {"w": received}, {} if control is None else {"w": control}, memory or {}, share
    )


def local(correction, received, gradients, rate=0.1, control=None, memory=None, share=1.0, steps=None):
    """Run a round of plain SGD with the given raw gradients; returns the net and the outcome."""
    net = Line(received.tolist())
    round_ = correction.begin(context(net, received, control, memory, share))
    rates = steps or [rate] * len(gradients)
    for gradient, now in zip(gradients, rates, strict=True):
        net.w.grad = gradient(net.w.detach()) if callable(gradient) else gradient.clone()
        net.own.grad = torch.ones_like(net.own)
        round_.adjust({"w": now})
        with torch.no_grad():
            net.w.sub_(now * net.w.grad)
        round_.stepped({"w": now})
    return net, round_.finish()


def server(correction, received, sent, enrolled, kept=None):
    """End a round at the server with uniform weights."""
    sites = sorted(sent)
    spool = Means(sent)
    state = {"w": received, **(kept or {})}
    mixed = spool.weighted_mean(dict.fromkeys(sites, 1 / len(sites)), ["w"])
    return correction.server(ServerRound(state, mixed, spool, sites, enrolled, ("w",)))


def sent_by(net, outcome):
    return {"w": net.w.detach().clone(), **{f"{CONTROL}{key}": value for key, value in outcome.control.items()}}


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


class Bowls:
    """Three sites, each a random convex quadratic f_i(w) = (w - m_i)' A_i (w - m_i) / 2, and their joint minimum.

    Sites take unlike numbers of local steps; what they start a round with is far from what each of them wants.
    """

    STEPS = (4, 10, 25)

    def __init__(self, size, seed, noise=0.0):
        self._noise = noise
        self._draws = torch.Generator().manual_seed(seed)
        self._bends, self._least = [], []
        for _ in self.STEPS:
            turn = torch.linalg.qr(self._drawn(size, size)).Q
            bend = torch.rand(size, generator=self._draws, dtype=torch.float64) * 1.8 + 0.2
            self._bends.append(turn @ torch.diag(bend) @ turn.T)
            self._least.append(2 * self._drawn(size))
        pulls = sum(bend @ least for bend, least in zip(self._bends, self._least, strict=True))
        self.best = torch.linalg.solve(sum(self._bends), pulls)

    def _drawn(self, *size):
        return torch.randn(*size, generator=self._draws, dtype=torch.float64)

    def error(self, settings, optimiser, rounds, correction=None):
        """Run rounds with the product's own corrections and optimisers, or with another correction.

        Returns:
            The distance of the server's weights to the joint minimum, over the distance at the start; and the largest
            length that a correction had beside the gradient, as a mean over a round.
        """
        correction = correction or build_correction(settings, optimiser)
        received, kept = torch.zeros_like(self.best), {f"{CONTROL}w": torch.zeros_like(self.best)}
        memories = [({}, {}) for _ in self.STEPS]
        sizes = []
        for number in range(rounds):
            sent = {}
            for site, steps in enumerate(self.STEPS):
                net = Line(received.tolist())
                round_ = correction.begin(context(net, received, kept[f"{CONTROL}w"], memories[site][0]))
                moving = RoundOptimiser(net, optimiser)
                moving.recall(memories[site][1])
                for step in range(steps):
                    pull = self._bends[site] @ (net.w - self._least[site]) + self._noise * self._drawn(len(received))
                    loss = (net.w * pull.detach()).sum() + net.own.sum()  # whose gradient is the noisy one
                    moving.step(loss, round_, Clock(number, rounds, 0, 1, step, steps))
                outcome = round_.finish()
                memories[site] = outcome.memory, moving.memory()
                sent[str(site)] = sent_by(net, outcome)
                sizes.append(outcome.figures.get("correction_ratio", 0.0))
            after = server(correction, received, sent, len(sent), kept)
            received, kept = after["w"], {**kept, **{key: value for key, value in after.items() if key != "w"}}
        return float((received - self.best).norm() / self.best.norm()), max(sizes)
