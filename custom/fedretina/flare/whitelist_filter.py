"""The whitelist filter: only the kinds and scalars that the row sends, and the site allows, pass."""

from __future__ import annotations

import logging
from threading import Lock
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from fedretina.codecs.encoding import Encoding, encoding_of
from fedretina.errors import DataError, FedretinaError, NotApprovedError, RefusedError
from fedretina.exchange.encryption import require_sealed
from fedretina.exchange.ledger import LEDGER, Ledger, ledgers
from fedretina.exchange.noise import NOISE_KEY, noise_key
from fedretina.exchange.partition import Partition, partition_of
from fedretina.exchange.payload import Payload, Tensors, tensors_digest
from fedretina.exchange.policy import apply_policy, require_budget, require_kinds
from fedretina.flare.approval_gate import require_approval
from fedretina.flare.job_context import (
    RELEASE,
    load_experiment,
    load_server_settings,
    load_site_settings,
    shares_state_root,
    state_root,
)
from fedretina.flare.plain_bytes import register, understood
from fedretina.flare.wire import ENTRIES, META, WAITS, WHY, pack_error, pack_payload, unpack_order, unpack_payload
from fedretina.kit.job_folder import FILTER, RESULT_FILTERS
from fedretina.locks import folder_lock
from fedretina.networks.build import build_on_meta
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.settings.policy import SvtNoise
from fedretina.settings.scalars import allowed_scalars
from fedretina.settings.site import REQUIRED, SiteSettings
from fedretina.storage import require_name
from fedretina.told import told

_log = logging.getLogger(__name__)
_OWN_META = {META, MetaKey.FILTER_HISTORY, MetaKey.PROCESSED_KEYS}
_WHY_LENGTH = 2000
_BODY = {"DXO", ReservedHeaderKey.HEADERS}
_RECEIVED = "fedretina_received"
_STAMP = "fedretina_stamp"
_LOCK_WAIT_S = 60.0
_WORDS = 624  # of 32 bits: the whole state of NumPy's generator that FLARE draws from
_LOCK = Lock()


class WhitelistFilter(Filter):
    """Checks every task's data and result at either end: it lets pass or refuses.

    Keys are mapped to kinds by building the network from the job's settings, without memory for its weights; what
    the sender says of kinds is not asked. A refusal is an ordinary error: nothing leaves, FLARE answers with its
    filter error, and the quorum decides. What the site's own policy refuses is answered with its sentence instead, so
    that whoever runs the study can mend the job.

    A job brings this filter in its own configuration, and a hospital has it in every scope of its privacy.json, where
    no job can take it away. There it also refuses a job that would put a filter of another class behind it. The one of
    them that answers for the site, the scope's where there is one, applies the site's policy, keeps the ledger, and
    packs anew what it has checked, so that nothing else travels with it.

    Args:
        direction: `order` on task data, `answer` on task results.
        experiment_file: Name of the experiment file in the job's config folder.
        ledger: Keep the site's ledger of what leaves; a filter in a scope always keeps it, and then a job's does not.
        scope: Whether the filter stands in a scope of the site's privacy.json.
    """

    def __init__(
        self, direction: str, experiment_file: str = "experiment.yaml", ledger: bool = False, scope: bool = False
    ) -> None:
        super().__init__()
        if direction not in ("order", "answer"):
            raise ValueError(f"direction must be 'order' or 'answer', got {direction!r}.")
        self._direction = direction
        self._experiment_file = experiment_file
        self._keeps_ledger = ledger
        self._scope = scope
        self._rules: tuple[Experiment, Partition] | None = None
        self._encoding: Encoding | None = None
        self._settings: SiteSettings | None = None

    @property
    def claims_scope(self) -> bool:
        """Whether it says that it stands in a scope of the site's; a job's may not."""
        return self._scope

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Let the message pass.

        Raises:
            RefusedError: Something in it may not pass; the message names the first such thing.
            UnsafeJobError: The job would put a filter of another class behind the site's own; FLARE ends it.
        """
        try:
            if self._scope and self._at_site(fl_ctx):
                require_known_filters(fl_ctx)
            return self._order(shareable, fl_ctx) if self._direction == "order" else self._answer(shareable, fl_ctx)
        except FedretinaError as error:
            if error.public:
                raise
            # FLARE sends no filter's words, only that it failed; what names a file keeps out of its log all the same.
            _log.warning("%s: %s", fl_ctx.get_identity_name(), error)
            raise RefusedError(f"{type(error).__name__}: the site's own log says what and where.") from None

    def _order(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        responsible = self._answers_for(fl_ctx)
        if responsible:  # a job's filter behind the scope's must not wipe what that one noted
            fl_ctx.set_prop(_RECEIVED, None, private=True, sticky=False)
            fl_ctx.set_prop(_STAMP, None, private=True, sticky=False)
            fl_ctx.set_prop(RELEASE, None, private=True, sticky=False)
        experiment, parts = self._load(fl_ctx)
        self._no_extras(shareable)
        order, tensors = unpack_order(shareable)
        self._kinds(tensors, parts)
        step = Plan.of(experiment).find(order.stamp.phase, order.stamp.round)
        if step is None:
            raise RefusedError(f"{order.stamp.phase} round {order.stamp.round} is no step of this job.")
        if responsible:
            fl_ctx.set_prop(_STAMP, order.stamp, private=True, sticky=False)
        if responsible and self._changes_tensors(fl_ctx):
            model = {key: tensors[key] for key in (*parts.shared, *parts.keys) if key in tensors}
            fl_ctx.set_prop(_RECEIVED, (order.stamp, model), private=True, sticky=False)
        return shareable

    def _answer(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        if shareable.get_return_code() != ReturnCode.OK:
            return self._error(shareable, fl_ctx)
        experiment, parts = self._load(fl_ctx)
        self._no_extras(shareable)
        payload = unpack_payload(shareable)
        payload.stamp.require_digest(experiment.digest(parts))
        self._kinds(payload.tensors, parts)
        step = Plan.of(experiment).find(payload.stamp.phase, payload.stamp.round)
        allowed = allowed_scalars(step.task, experiment.supervised) if step else frozenset()
        extra = sorted(set(payload.scalars) - allowed)
        if extra:
            raise RefusedError(f"scalar {extra[0]!r} may not travel in {payload.stamp.phase}.")
        if not self._answers_for(fl_ctx):
            return shareable
        try:
            return pack_payload(self._under_policy(payload, parts, fl_ctx), understood(fl_ctx))
        except NotApprovedError:  # its approval ended while it was at work: it is asked again, and the answer stays
            return make_reply(WAITS)
        except RefusedError as error:  # the site's own rule, not a fault: raised, FLARE would tell its code and no word
            _log.error("%s: %s", fl_ctx.get_identity_name(), error)
            known = {payload.stamp.phase, *parts.kinds, *(kind.value for kind in parts.kinds.values())}
            return self._answer(pack_error(told(error, known)), fl_ctx)

    def _error(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Let an error's sentence go, once it stands in the ledger, and nothing that came with it."""
        sentence = str(shareable.get_header(WHY) or "")
        if len(sentence) > _WHY_LENGTH or set(shareable) - {ReservedHeaderKey.HEADERS}:
            raise RefusedError("an error reply may carry one sentence and no data.")
        if not self._answers_for(fl_ctx):
            return shareable
        stamp = fl_ctx.get_prop(_STAMP)
        if sentence and stamp is None:
            raise RefusedError("an error reply answers no order that this filter let in.")
        if sentence and (self._scope or self._keeps_ledger):
            try:
                self._ledger(stamp.run, fl_ctx).note_words(stamp, sentence)
            except FedretinaError as error:  # no room, or no settings that say where: FLARE's code leaves alone
                _log.warning("%s: %s", fl_ctx.get_identity_name(), error)
                sentence = ""
        return make_reply(shareable.get_return_code(), headers={WHY: sentence} if sentence else None)

    def _ledger(self, run: str, fl_ctx: FLContext) -> Ledger:
        site = require_name(fl_ctx.get_identity_name(), "site")
        return Ledger(state_root(fl_ctx, self._own(fl_ctx)) / require_name(run, "run") / site / LEDGER)

    def _under_policy(self, payload: Payload, parts: Partition, fl_ctx: FLContext) -> Payload:
        """Turn an answer into what may leave, and write that down."""
        if self._own(fl_ctx).approval == REQUIRED:
            require_approval(fl_ctx, self._load(fl_ctx)[0], self._experiment_file, payload.stamp.run)
        policy = self._own(fl_ctx).own_policy
        require_kinds(policy, (parts.kinds[key] for key in payload.tensors))
        root, site = state_root(fl_ctx, self._own(fl_ctx)), require_name(fl_ctx.get_identity_name(), "site")
        stamp, received = fl_ctx.get_prop(_RECEIVED) or (None, None)
        if stamp != payload.stamp:
            received = None
        leaving, done = apply_policy(policy, payload, received, lambda: noise_key(root / NOISE_KEY), sparse)
        ledger = self._ledger(payload.stamp.run, fl_ctx)
        if "privacy" not in done:
            if self._scope or self._keeps_ledger:
                ledger.note(leaving, parts, done)
            return leaving
        stamp, release = fl_ctx.get_prop(RELEASE) or (None, "")
        if stamp == payload.stamp:
            done["release"] = release
        # What left under a name that the site had before has cost the same images' budget.
        name = site if shares_state_root(fl_ctx, self._own(fl_ctx)) else None
        with folder_lock(root / "privacy", _LOCK_WAIT_S):  # one release at a time, or two could share what is left
            before = [line for path in ledgers(root, name) for line in Ledger(path).lines()]
            done["privacy"]["epsilon_so_far"] = require_budget(
                policy,
                before,
                done.get("release") or tensors_digest(leaving.tensors),
                sums=bool(set(parts.sums) & set(leaving.tensors)),
            )
            ledger.note(leaving, parts, done)
        return leaving

    def _changes_tensors(self, fl_ctx: FLContext) -> bool:
        try:
            return self._own(fl_ctx).own_policy.changes_tensors
        except DataError:
            return False  # settings that cannot be read: the executor's answer says so, and nothing else leaves

    def _answers_for(self, fl_ctx: FLContext) -> bool:
        """Whether this filter is the one that applies the site's policy: the scope's, else the job's."""
        return self._at_site(fl_ctx) and (self._scope or not stands_in_scope(fl_ctx))

    def _at_site(self, fl_ctx: FLContext) -> bool:
        """Whether this is a site: orders come in there and answers go out; at the server it is the other way."""
        way = FilterKey.IN if self._direction == "order" else FilterKey.OUT
        return bool(fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == way)

    def _own(self, fl_ctx: FLContext) -> SiteSettings:
        if self._settings is None:
            self._settings = load_site_settings(fl_ctx)
        return self._settings

    def _load(self, fl_ctx: FLContext) -> tuple[Experiment, Partition]:
        if self._rules is None:
            experiment = load_experiment(fl_ctx, self._experiment_file)
            net = build_on_meta(experiment.network, experiment.head_width or 2)
            parts = partition_of(experiment, net, experiment.sums is not None and self._has_keys(fl_ctx))
            self._encoding = encoding_of(experiment, parts)
            self._rules = experiment, parts
            if self._at_site(fl_ctx):
                register().largest = parts.most_bytes(parts.receivable)
        return self._rules

    def _has_keys(self, fl_ctx: FLContext) -> bool:
        """Whether this end has the federation's keys, so that sums pass it under encryption alone."""
        try:
            own = self._own(fl_ctx) if self._at_site(fl_ctx) else load_server_settings(fl_ctx)
        except FedretinaError:
            return False  # settings that cannot be read: the executor's answer says so, and nothing else leaves
        return own.he_keys is not None

    def _no_extras(self, shareable: Shareable) -> None:
        meta: dict[str, Any] = from_shareable(shareable).get_meta_props() or {}
        extra = sorted(str(key) for key in meta if key not in _OWN_META)
        extra += sorted(str(key) for key in meta.get(META) or {} if key not in ENTRIES)
        extra += sorted(str(key) for key in shareable if key not in _BODY)
        if extra:
            raise RefusedError(f"the message carries {extra[0]!r}, which no row sends.")

    def _kinds(self, tensors: Tensors, parts: Partition) -> None:
        passing = frozenset(parts.receivable if self._direction == "order" else parts.sendable)
        for key in sorted(tensors):
            kind = parts.kinds.get(key)
            if kind is None:
                raise RefusedError(f"tensor {key[:100]!r} is no part of the network.")
            if key not in passing:
                raise RefusedError(f"tensor {key!r} of kind {kind.value} is personal and stays at its site.")
            if key in parts.sealed:
                require_sealed(key, tensors[key], parts.sizes[key][0])
                continue
            # An order may bring a tensor whole, to who missed a round; an answer never does.
            whole = self._direction == "order"
            if self._encoding is not None and self._encoding.require(key, tensors[key], whole):
                continue
            found = tuple(tensors[key].shape), tensors[key].dtype
            if found != (tuple(parts.shapes[key]), parts.dtypes[key]):
                raise RefusedError(f"tensor {key!r} is {found}, not what the network has there.")


def require_known_filters(fl_ctx: FLContext) -> None:
    """Refuse a job whose own filters could add to what the site's has let pass, or take themselves for the site's.

    FLARE runs a job's filters after those of the site's scope. The objects are asked that it has built, not the job's
    file, which it may read in several formats.

    Raises:
        UnsafeJobError: A result filter of the job is of a class that is not known to only pass or refuse, or a filter
            of the job claims the scope, in which it would apply the site's policy, its noise and its budget, twice.
    """
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    chains = getattr(runner, "task_result_filters", None)
    if not isinstance(chains, dict):
        raise UnsafeJobError("this FLARE does not show a job's filters to the site's own: use the version of the lock.")
    for kind in (type(entry) for chain in chains.values() for entry in chain):
        found = f"{kind.__module__}.{kind.__qualname__}"
        if found not in RESULT_FILTERS:
            raise UnsafeJobError(f"the job puts {found} behind the site's filter, which only knows {FILTER}.")
    of_job = [*chains.values(), *(getattr(runner, "task_data_filters", None) or {}).values()]
    if any(isinstance(entry, WhitelistFilter) and entry.claims_scope for chain in of_job for entry in chain):
        raise UnsafeJobError("a filter of the job claims the site's scope, which is the site's own.")


def stands_in_scope(fl_ctx: FLContext) -> bool:
    """Whether the scope that the job runs under carries this filter for results."""
    scope = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT)
    found = getattr(scope, "task_result_filters", None) or {}
    return any(isinstance(entry, WhitelistFilter) for entry in found.get(FilterKey.OUT, []))


def sparse(update: Tensors, noise: SvtNoise, source: np.random.Generator) -> dict[str, torch.Tensor]:
    """Let a part of an update's numbers pass, chosen and noised; the others become zero.

    FLARE's class draws from NumPy's global generator, which is seeded here from the site's source and put back after.
    """
    dxo_filter = SVTPrivacy(
        fraction=noise.fraction,
        epsilon=noise.epsilon,
        epsilon_release=noise.epsilon_release,
        gamma=noise.clip,
        tau=noise.threshold,
        replace=False,
    )
    # FLARE lets a single number pass without noise, so every tensor goes through as a row.
    rows = {key: tensor.reshape(-1).numpy() for key, tensor in update.items()}
    with _LOCK:
        before = np.random.get_state()
        try:
            np.random.seed(source.integers(0, 2**32, _WORDS, dtype=np.uint32))
            found = dxo_filter.process_dxo(DXO(DataKind.WEIGHT_DIFF, data=rows), Shareable(), FLContext())
        finally:
            np.random.set_state(before)
    return {
        key: torch.from_numpy(np.asarray(found.data[key], dtype=rows[key].dtype)).reshape(update[key].shape)
        for key in update
    }
