"""What the simulator loads for `round_overhead`: sites whose network is never run, ours and a plain one of FLARE."""

from __future__ import annotations

from collections.abc import Callable

import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from torch import nn
from torchvision.models import resnet50

from fedretina.corrections.correction import LocalRound
from fedretina.data.site_data import Split
from fedretina.exchange.payload import Tensors
from fedretina.flare.executor import SiteHost, TrainerExecutor
from fedretina.local.site import Site
from fedretina.local.supervised import EpochResult, Predictions
from fedretina.local.trainer import LocalTrainer
from fedretina.settings.plan import Step
from fedretina.settings.training import TrainingSettings


class EchoTrainer(LocalTrainer):
    """The local trainer with random answers in place of the network's; all else is as it is."""

    def _epochs(
        self,
        split: Split,
        correction: LocalRound,
        step: Step,
        stop: Callable[[], bool],
        settings: TrainingSettings,
        memory: Tensors,
    ) -> EpochResult:
        return EpochResult(self._pass(split), [0.0], {})

    def _pass(self, split: Split) -> Predictions:
        draws = torch.Generator().manual_seed(1)
        logits = torch.randn(len(split.labels), self._data.scheme.num_classes, generator=draws)
        return Predictions(logits, split.labels, torch.randn(len(split.labels), 8, generator=draws))


class EchoHost(SiteHost):
    """A site's host that gives its site the echo."""

    def _open(self, run: str, fl_ctx: FLContext) -> Site:
        site = super()._open(run, fl_ctx)
        assert isinstance(site, Site)  # the benchmark's sites train in their own process
        if not isinstance(site.trainer, EchoTrainer):
            site.trainer = EchoTrainer(site._experiment, site._data)
        return site


class EchoExecutor(TrainerExecutor):
    """Our executor over the echo: ledger, filters, state and checks are the real ones."""

    def __init__(self) -> None:
        super().__init__()
        self._host = EchoHost("experiment.yaml")


class ReferenceNet(nn.Module):
    """torchvision's ResNet-50, without weights; PTFileModelPersistor builds it by its class."""

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet50(weights=None)


class PlainExecutor(Executor):  # type: ignore[misc]
    """As little as an executor for FLARE's FedAvg can do: load what came, and send it back."""

    def __init__(self) -> None:
        super().__init__()
        self._net: nn.Module | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer with the received weights."""
        self._net = self._net or ReferenceNet()
        received = from_shareable(shareable).data
        self._net.load_state_dict({key: torch.as_tensor(array) for key, array in received.items()})
        answer = {key: tensor.numpy().copy() for key, tensor in self._net.state_dict().items()}
        reply: Shareable = DXO(DataKind.WEIGHTS, answer, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}).to_shareable()
        return reply
