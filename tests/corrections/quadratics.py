"""A small federation of quadratics, on which every correction can be worked out by hand."""

import torch
from torch import nn

from fedretina.corrections.correction import Ground, ServerRound
from fedretina.exchange.partition import CONTROL


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


def ground(net, received, control=None, memory=None, share=1.0):
    return Ground(net, {"w": net.w}, {"w": received}, {} if control is None else {"w": control}, memory or {}, share)


def local(correction, received, gradients, rate=0.1, control=None, memory=None, share=1.0, steps=None):
    """Run a round of plain SGD with the given raw gradients; returns the net and the outcome."""
    net = Line(received.tolist())
    round_ = correction.begin(ground(net, received, control, memory, share))
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
