"""A network of a few hundred weights and a site of a few images."""

import numpy as np
import torch
from torch import nn

from fedretina.contrastive.objective import ContrastiveContext, Views
from fedretina.networks.contrast import build_contrast_head
from fedretina.networks.encoder import Encoder
from fedretina.networks.network import Network
from fedretina.seeds import generator
from fedretina.settings.network import ContrastSettings

SIZE = 8
PATIENTS = torch.arange(24) // 2


class TinyEncoder(Encoder):
    features = 6

    def __init__(self):
        conv, norm = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)
        super().__init__([conv, nn.Sequential(norm, nn.ReLU())], [6, 6])

    @property
    def conv(self):
        return self.stages[0]

    @property
    def norm(self):
        return self.stages[1][0]


def tiny_network(layout="moco_v2", seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        contrast = build_contrast_head(
            TinyEncoder.features, ContrastSettings.of({"layout": layout, "hidden": 8, "width": 4})
        )
        return Network(TinyEncoder(), nn.Linear(6, 2), "half", contrast=contrast).train()


def pictures(numbers, *purpose):
    """Views of images: the same content, other noise."""
    views = []
    for number in numbers:
        content = generator("image", int(number)).random((3, SIZE, SIZE))
        noise = generator("noise", int(number), *purpose).random((3, SIZE, SIZE))
        views.append(torch.from_numpy(0.8 * content + 0.2 * noise).float())
    return torch.stack(views)


def views_of(numbers, *purpose):
    at = torch.as_tensor(np.asarray(numbers))
    return Views(pictures(numbers, *purpose, 1), pictures(numbers, *purpose, 2), at, PATIENTS[at])


def context(net, memory=None, round_=0, **words):
    base = {
        "net": net,
        "memory": memory or {},
        "count": 24,
        "batch_size": 8,
        "seed": (7, "site-1", "pretrain", round_),
        "first_views": lambda numbers: pictures(numbers, "refill", round_),
        "patients": PATIENTS,
        "device": torch.device("cpu"),
    }
    return ContrastiveContext(**{**base, **words})
