"""Which settings of a run do not go together, a check each; every one says how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedretina.data.modality import SIGNALS
from fedretina.networks.encoders import PATCH

if TYPE_CHECKING:
    from fedretina.experiment import Experiment

_TASKS = {"prepare", "validate", "tune", "calibrate", "finalise"}


def _phases_are_distinct(run: Experiment) -> None:
    names = [phase.name for phase in run.phases]
    if not names:
        raise ValueError("phases is empty: give at least one, with a name and its rounds.")
    if len(set(names)) < len(names) or _TASKS & set(names):
        raise ValueError(f"phase names must differ from each other and from {', '.join(sorted(_TASKS))}, got {names}.")
    tasks = [phase.task for phase in run.phases]
    if tasks != sorted(tasks):  # "pretrain" before "train"
        raise ValueError("a phase without labels stands behind one with labels: pre-train first.")


def _a_label_free_phase_has_its_layers(run: Experiment) -> None:
    methods = {phase.contrastive.method for phase in run.phases if phase.contrastive is not None}
    layers = None if run.network.contrast is None else run.network.contrast.layout
    if methods - {layers}:
        raise ValueError(
            f"phases pre-train by {', '.join(sorted(methods))}, but network.contrast is for {layers}: set "
            f"network.contrast.layout to the one method of all label-free phases."
        )
    if methods and run.correction.name == "moon":
        raise ValueError("correction 'moon' is a contrast of its own and cannot correct a contrastive phase.")
    if not run.supervised and (run.tune.epochs or run.network.calibrator or run.aggregation.personal):
        raise ValueError(
            "a run without a phase that trains with labels has nothing to tune, calibrate or tell alike: add such "
            "a phase, or leave tune, network.calibrator and the similarity rule out."
        )


def _a_travelling_head_has_one_width(run: Experiment) -> None:
    if run.grades is not None and run.classes is not None:
        raise ValueError("grades and classes both say how wide the travelling head is: keep classes alone.")
    if (run.exchange.personal in ("nothing", "exits")) != (run.head_width is not None):
        raise ValueError(
            "grades or classes must be set when the head travels (exchange.personal: nothing or exits), and only "
            "then: a head can be mixed only where it has one width."
        )
    if run.classes is not None and len(set(run.classes)) < len(run.classes):
        raise ValueError(f"classes names a class twice in {list(run.classes)}: each stands for one output.")


def _images_fit_the_encoder(run: Experiment) -> None:
    (_, height, width), patch = run.images.shape, PATCH.get(run.network.encoder, 1)
    if height % patch or width % patch:
        size = f"images.image_size is {height}" if height == width else f"samples are {height} x {width}"
        mend = "a multiple" if height == width else "another encoder"
        raise ValueError(
            f"encoder {run.network.encoder} cuts images into patches of {patch} pixels, but {size}: choose {mend}."
        )


def _random_transforms_fit_the_modality(run: Experiment) -> None:
    kind = run.images.modality
    used = (run.augment, *(phase.augment for phase in run.phases))
    unfit = sorted({name for one in used if one is not None for name in one.unfit(kind)})
    if unfit:
        raise ValueError(f"augment: {', '.join(unfit)} would spoil samples of {kind}: set them to 0 or false.")
    if kind in SIGNALS and any(phase.contrastive for phase in run.phases):
        raise ValueError(f"label-free phases draw views of pictures, and samples of {kind} are none: leave them out.")


def _members_have_an_estimator(run: Experiment) -> None:
    chosen, network = run.evaluation, run.network
    if chosen.passes > 1 and network.dropout is None:
        raise ValueError(
            f"evaluation.passes is {chosen.passes}, but the network has no dropout, so all passes would be equal: "
            "set network.dropout, or passes to 1."
        )
    if run.exchange.personal == "exits" and network.exits is None:
        raise ValueError("exchange.personal is 'exits', but the network has none: set network.exits.")
    if run.exchange.encrypt != "nothing" and network.exits is not None:
        raise ValueError(
            "exchange.encrypt hides the head from the server, but early exits that know the same grades would "
            "travel in the clear: let one of the two be."
        )


def _pooled_sites_exchange_nothing(run: Experiment) -> None:
    if run.pooled and run.exchange.personal != "everything":
        raise ValueError("pooled sites train alone: set exchange.personal to 'everything', or pooled to false.")


def _one_model_for_a_server_half(run: Experiment) -> None:
    if run.aggregation.personal and run.correction.has_server_half:
        raise ValueError(
            f"correction {run.correction.name!r} moves one global model, but aggregation 'similarity' keeps one a "
            "site: choose another of the two."
        )


def _a_robust_rule_sees_all_that_travels(run: Experiment) -> None:
    robust = run.aggregation.robust
    if robust.name == "none":
        return
    if run.correction.has_server_half:
        raise ValueError(
            f"correction {run.correction.name!r} moves the aggregate by a plain mean over all sites, which "
            f"aggregation.robust {robust.name!r} does not guard: choose another of the two."
        )
    if run.exchange.personal == "everything":
        raise ValueError(f"aggregation.robust is {robust.name!r}, but nothing travels: set it to 'none'.")
    if run.quorum < robust.least:
        raise ValueError(
            f"quorum is {run.quorum}, but aggregation.robust {robust.name!r} (hostile: {robust.hostile}) needs "
            f"{robust.least} accepted updates a round: set quorum to {robust.least} or more, or hostile lower."
        )


def _what_is_encrypted_is_only_averaged(run: Experiment) -> None:
    if run.exchange.encrypt == "nothing":
        return
    aggregation, correction = run.aggregation, run.correction
    if aggregation.robust.name != "none" or aggregation.personal:
        other = aggregation.rule if aggregation.personal else aggregation.robust.name
        raise ValueError(
            f"aggregation {other!r} compares what the sites sent, but exchange.encrypt is "
            f"{run.exchange.encrypt!r} and the server cannot read it: choose another of the two."
        )
    if correction.has_server_half:
        raise ValueError(
            f"correction {correction.name!r} sends controls of the head in the clear, which undoes exchange.encrypt"
            ": choose another of the two."
        )


CHECKS: tuple[Callable[[Experiment], None], ...] = (
    _phases_are_distinct,
    _a_label_free_phase_has_its_layers,
    _a_travelling_head_has_one_width,
    _images_fit_the_encoder,
    _random_transforms_fit_the_modality,
    _members_have_an_estimator,
    _pooled_sites_exchange_nothing,
    _one_model_for_a_server_half,
    _a_robust_rule_sees_all_that_travels,
    _what_is_encrypted_is_only_averaged,
)
"""In the order in which they are asked; the first that fails speaks, by a ValueError."""
