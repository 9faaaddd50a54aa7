"""The whitelist filter: only the kinds and scalars that the row sends, and the site allows, pass."""

from __future__ import annotations

import logging
from typing import Any

from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from fedretina.errors import RefusedError
from fedretina.exchange.kinds import Kind
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.partition import Partition
from fedretina.exchange.payload import Tensors
from fedretina.exchange.scalars import BY_TASK
from fedretina.exchange.stamp import require_name
from fedretina.experiment import Experiment
from fedretina.flare.surroundings import SiteSettings, load_experiment, load_site_settings, state_root
from fedretina.flare.wire import ENTRIES, META, WHY, unpack_order, unpack_payload
from fedretina.networks.network import build_on_meta
from fedretina.plan import Plan

_log = logging.getLogger(__name__)
_OWN_META = {META, MetaKey.FILTER_HISTORY, MetaKey.PROCESSED_KEYS}
_WHY_LENGTH = 2000
_BODY = {"DXO", ReservedHeaderKey.HEADERS}


class WhitelistFilter(Filter):
    """Checks every task's data and result at either end; it never changes them, it lets pass or refuses.

    Keys are mapped to kinds by building the network from the job's settings, without memory for its weights; what
    the sender says of kinds is not asked. A refusal is an ordinary error: nothing leaves, FLARE answers with its
    filter error, and the quorum decides.

    Args:
        direction: `order` on task data, `answer` on task results.
        experiment_file: Name of the experiment file in the job's config folder.
        ledger: Keep the site's ledger of what leaves; set it on the site's result filter.
    """

    def __init__(self, direction: str, experiment_file: str = "experiment.yaml", ledger: bool = False) -> None:
        super().__init__()
        if direction not in ("order", "answer"):
            raise ValueError(f"direction must be 'order' or 'answer', got {direction!r}.")
        self._direction = direction
        self._experiment_file = experiment_file
        self._keeps_ledger = ledger
        self._rules: tuple[Experiment, Partition] | None = None
        self._settings: SiteSettings | None = None

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Let the message pass unchanged.

        Raises:
            RefusedError: Something in it may not pass; the message names the first such thing.
        """
        if self._direction == "answer" and shareable.get_return_code() != ReturnCode.OK:
            if len(str(shareable.get_header(WHY) or "")) > _WHY_LENGTH or set(shareable) - {ReservedHeaderKey.HEADERS}:
                raise RefusedError("an error reply may carry one sentence and no data.")
            return shareable
        experiment, parts = self._load(fl_ctx)
        self._no_extras(shareable)
        if self._direction == "order":
            order, tensors = unpack_order(shareable)
            self._kinds(tensors, parts, frozenset(Kind))
            step = Plan.of(experiment).find(order.stamp.phase, order.stamp.round)
            if step is None:
                raise RefusedError(f"{order.stamp.phase} round {order.stamp.round} is no step of this job.")
            return shareable
        if self._settings is None:
            self._settings = load_site_settings(fl_ctx)
        payload = unpack_payload(shareable)
        payload.stamp.require_digest(experiment.digest(parts))
        self._kinds(payload.tensors, parts, self._settings.may_leave)
        step = Plan.of(experiment).find(payload.stamp.phase, payload.stamp.round)
        allowed = BY_TASK[step.task] if step else frozenset()
        extra = sorted(set(payload.scalars) - allowed)
        if extra:
            raise RefusedError(f"scalar {extra[0]!r} may not travel in {payload.stamp.phase}.")
        if self._keeps_ledger:
            root = state_root(fl_ctx, self._settings)
            folder = root / require_name(payload.stamp.run, "run") / require_name(fl_ctx.get_identity_name(), "site")
            Ledger(folder / "ledger.jsonl").note(payload, parts)
        return shareable

    def _load(self, fl_ctx: FLContext) -> tuple[Experiment, Partition]:
        if self._rules is None:
            experiment = load_experiment(fl_ctx, self._experiment_file)
            parts = experiment.partition(build_on_meta(experiment.network, experiment.grades or 2))
            self._rules = experiment, parts
        return self._rules

    def _no_extras(self, shareable: Shareable) -> None:
        meta: dict[str, Any] = from_shareable(shareable).get_meta_props() or {}
        extra = sorted(str(key) for key in meta if key not in _OWN_META)
        extra += sorted(str(key) for key in meta.get(META) or {} if key not in ENTRIES)
        extra += sorted(str(key) for key in shareable if key not in _BODY)
        if extra:
            raise RefusedError(f"the message carries {extra[0]!r}, which no row sends.")

    def _kinds(self, tensors: Tensors, parts: Partition, allowed: frozenset[Kind]) -> None:
        for key in sorted(tensors):
            kind = parts.kinds.get(key)
            if kind is None:
                raise RefusedError(f"tensor {key[:100]!r} is no part of the network.")
            if key not in parts.shapes:
                raise RefusedError(f"tensor {key!r} of kind {kind.value} is personal and stays at its site.")
            found = tuple(tensors[key].shape), tensors[key].dtype
            if found != (tuple(parts.shapes[key]), parts.dtypes[key]):
                raise RefusedError(f"tensor {key!r} is {found}, not what the network has there.")
            if kind not in allowed:
                raise RefusedError(f"tensor {key!r} of kind {kind.value} may not pass by this site's own policy.")
