"""Which settings of a run go together: the sentences that refuse those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedretina.settings.aggregation import ChoiceSettings
from fedretina.settings.codec import EncodingSettings
from fedretina.settings.correction import NoCorrectionSettings
from fedretina.settings.sums import SumsSettings
from fedretina.settings.training import (
    CalibrationSettings,
)

if TYPE_CHECKING:  # the class asks these checks when it is built
    from fedretina.settings.experiment import Experiment

_TASKS = {"prepare", "validate", "tune", "calibrate", "curve", "finalise"}


def _phases_are_distinct(run: Experiment) -> None:
    names = [phase.name for phase in run.phases]
    if not names:
        raise ValueError("phases is empty: give at least one, with a name and its rounds.")
    if len(set(names)) < len(names) or _TASKS & set(names):
        raise ValueError(f"phase names must differ from each other and from {', '.join(sorted(_TASKS))}, got {names}.")
    tasks = [phase.task for phase in run.phases]
    if "sums" in tasks and [task for task in tasks if task != "pretrain"] != ["sums"]:
        raise ValueError(
            "a phase of sums is a run's only one with labels: it trains nothing that another could go on from."
        )
    if tasks != sorted(tasks):  # "pretrain" before "train" and "sums"
        raise ValueError("a phase without labels stands behind one with labels: pre-train first.")


def _a_label_free_phase_has_its_layers(run: Experiment) -> None:
    methods = {phase.contrastive.layout for phase in run.phases if phase.contrastive is not None}
    layers = None if run.network.contrast is None else run.network.contrast.layout
    if layers is not None and not methods:
        raise ValueError(
            f"network.contrast has the layers of {layers}, but no phase trains without labels, so nothing reads it: "
            "set network.contrast to null, or add a phase with contrastive."
        )
    if methods - {layers}:
        raise ValueError(
            f"phases pre-train by {', '.join(sorted(methods))}, but network.contrast is for {layers}: set "
            f"network.contrast.layout to the one method of all label-free phases."
        )
    if methods and run.correction.contrasts:
        raise ValueError(
            f"correction {run.correction.name!r} is a contrast of its own and cannot correct a contrastive phase."
        )
    if not run.supervised and (run.tune.epochs or run.network.calibrator or run.aggregation.personal):
        raise ValueError(
            "a run without a phase that trains with labels has nothing to tune, calibrate or tell alike: add such "
            "a phase, or leave tune, network.calibrator and the similarity rule out."
        )


def _a_travelling_head_has_one_width(run: Experiment) -> None:
    if run.grades is not None and run.classes is not None:
        raise ValueError("grades and classes both say how wide the travelling head is: keep classes alone.")
    if run.sums is not None:
        _classes_of_sums(run, run.sums)
    elif (run.exchange.personal in ("nothing", "bias", "exits")) != (run.head_width is not None):
        raise ValueError(
            "grades or classes must be set when the head travels (exchange.personal: nothing, bias or exits), and "
            "only then: a head can be mixed only where it has one width."
        )
    if run.classes is not None and len(set(run.classes)) < len(run.classes):
        raise ValueError(f"classes names a class twice in {list(run.classes)}: each stands for one output.")


def _classes_of_sums(run: Experiment, sums: SumsSettings) -> None:
    if run.classes is None:
        raise ValueError("sums are told apart by the classes that the sites share: name them under classes.")
    if sums.shares is not None and len(sums.shares) != len(run.classes):
        raise ValueError(f"sums.shares gives {len(sums.shares)} weights for {len(run.classes)} classes: give each one.")


def _sums_train_nothing(run: Experiment) -> None:
    """Refuse what no head from sums would read: the encoder stands still, and one layer is solved for."""
    if run.sums is None:
        return
    network, chosen = run.network, run.evaluation
    blind = any(phase.contrastive is not None for phase in run.phases)
    beside = ("projector", "exits", "dropout") if blind else ("projector", "contrast", "exits", "dropout")
    parts = [name for name in beside if getattr(network, name) is not None]
    if parts or network.calibrator or network.head.layout != "linear":
        named = [*parts, *(["calibrator"] if network.calibrator else [])]
        raise ValueError(
            "a head from sums is one linear layer on the encoder: set network.head.layout to 'linear'"
            + (f", and leave network.{' and network.'.join(named)} out." if named else ".")
        )
    if blind:
        _sums_stand_on_one_encoder(run)
    elif network.frozen != "all":
        raise ValueError("heads from sums stand on the whole encoder as the run starts: set network.frozen to 'all'.")
    elif run.exchange.personal != "everything":
        raise ValueError(
            "a run of sums sends no part of the network, whatever exchange.personal lets go: set it to 'everything'."
        )
    if (run.correction.name != "none" and not blind) or run.tune.epochs or run.pooled or run.sampling.fraction < 1:
        raise ValueError("a run of sums trains nothing with labels: leave correction, tune, sampling and pooled out.")
    if run.aggregation.personal or run.aggregation.robust.guards or run.aggregation.optimiser.remembers:
        raise ValueError("sums are added and never weighed: leave aggregation as it is.")
    unread = chosen.evidential or chosen.most_members is None
    if unread or chosen.passes > 1 or run.objective.name != "cross_entropy":
        raise ValueError(
            "heads from sums answer by softmax: set evaluation.estimator to 'softmax_gated' or 'softmax', "
            "evaluation.passes to 1 and objective to 'cross_entropy'."
        )


def _sums_stand_on_one_encoder(run: Experiment) -> None:
    """Refuse encoders that differ from site to site after a phase without labels: their features do not add up."""
    exchange = run.exchange
    if exchange.personal != "head" or exchange.batchnorm not in ("shared_all", "none") or exchange.bn_match != "module":
        raise ValueError(
            "sums of several sites add up only on one encoder, and a phase without labels comes first: let all of it "
            "travel and nothing else (exchange.personal: head, batchnorm: shared_all)."
        )


def _images_fit_the_encoder(run: Experiment) -> None:
    (_, height, width), traits = run.images.shape, run.network.traits
    patch = traits.patch
    if traits.signals and height > 1:
        raise ValueError(
            f"encoder {run.network.encoder} takes signals, one row of samples, but images.modality is "
            f"{run.images.modality!r}, whose samples are {height} x {width}: choose another encoder."
        )
    if height % patch or width % patch:
        size = f"images.image_size is {height}" if height == width else f"samples are {height} x {width}"
        trained = "" if traits.side is None else f"; its published weights are made for {traits.side}"
        mend = f"a multiple{trained}" if height == width else "another encoder"
        raise ValueError(
            f"encoder {run.network.encoder} cuts images into patches of {patch} pixels, but {size}: choose {mend}."
        )


def _random_transforms_fit_the_modality(run: Experiment) -> None:
    kind = run.images.modality
    used = (run.augment, *(phase.augment for phase in run.phases))
    unfit = sorted({name for one in used if one is not None for name in one.unfit(run.images)})
    if unfit:
        raise ValueError(f"augment: {', '.join(unfit)} would spoil samples of {kind}: set them to 0 or false.")
    if run.images.signal and any(phase.contrastive for phase in run.phases):
        raise ValueError(f"label-free phases draw views of pictures, and samples of {kind} are none: leave them out.")


def _frozen_stages_fit_the_run(run: Experiment) -> None:
    frozen = run.network.frozen
    if frozen == "all" and any(phase.contrastive for phase in run.phases):
        raise ValueError(
            "network.frozen is 'all', but a phase without labels trains the encoder: name fewer stages, or drop the "
            "phase."
        )
    if frozen == "nothing":
        return
    for phase in (phase for phase in run.phases if phase.task == "train"):  # no other reads augment
        training, random = phase.training or run.training, phase.augment or run.augment
        if run.network.frozen_cache == "strict" and random.endless:
            raise ValueError(
                f"augment: {', '.join(random.endless)} gives other pixels each time, so that what the frozen stages "
                "make of an image cannot be kept: set it to 0 (flip, flip_vertical and quarter_turns can be kept), or "
                "network.frozen_cache to 'lenient' to run the frozen stages anew for every batch."
            )
        if frozen == "all" and any(stretch.train == "encoder" for stretch in training.stretches):
            raise ValueError(
                f"phase {phase.name!r} trains the encoder alone for a while, but network.frozen is 'all': drop that "
                "stretch, or freeze fewer stages."
            )


def _a_recipe_fits_the_phases(run: Experiment) -> None:
    blind = [phase.name for phase in run.phases if phase.contrastive is not None]
    if run.recipe is not None and blind:
        raise ValueError(
            f"recipe {run.recipe!r} is for runs that train with labels alone, but phase {blind[0]!r} pre-trains "
            "without: leave recipe out, or drop the phase and start from the encoder that a run exported."
        )
    if run.recipe is not None and run.sums is not None:
        raise ValueError(
            f"recipe {run.recipe!r} says how to train, and a run of sums trains nothing: leave recipe out."
        )


def _a_fitted_head_stays_at_its_site(run: Experiment) -> None:
    if run.network.head.start == "seed":
        return
    if run.exchange.personal not in ("head", "everything"):
        raise ValueError(
            f"network.head.start is {run.network.head.start!r}, but the head travels (exchange.personal: "
            f"{run.exchange.personal}), and a head that sites share begins alike at all of them: set it to 'seed', or "
            "let the head be personal."
        )
    if any(phase.contrastive for phase in run.phases):
        raise ValueError(
            f"network.head.start is {run.network.head.start!r}, but heads are fitted before the first round, and here "
            "a phase without labels comes first and changes the encoder: set it to 'seed', or drop that phase."
        )


def _members_have_an_estimator(run: Experiment) -> None:
    chosen, network = run.evaluation, run.network
    if chosen.gate is not None and run.sums is None:
        raise ValueError(
            f"evaluation.estimator {chosen.estimator!r} measures how far an image lies from the site's own training "
            "images, on an encoder that stands still from the start, and is fitted with heads from sums alone: choose "
            "row 'analytic', or another estimator."
        )
    if chosen.passes > 1 and network.dropout is None:
        raise ValueError(
            f"evaluation.passes is {chosen.passes}, but the network has no dropout, so all passes would be equal: "
            "set network.dropout, or passes to 1."
        )
    if chosen.passes == 1 and network.exits is None and chosen.least_members > 1 and chosen.gate is None:
        raise ValueError(
            f"evaluation.estimator {chosen.estimator!r} asks {chosen.least_members} members or more, but a network "
            "without early exits answers once: set network.exits, or network.dropout and evaluation.passes."
        )
    if run.exchange.personal == "exits" and network.exits is None:
        raise ValueError("exchange.personal is 'exits', but the network has none: set network.exits.")
    if run.exchange.encrypt != "nothing" and network.exits is not None:
        raise ValueError(
            "exchange.encrypt hides the head from the server, but early exits that know the same grades would "
            "travel in the clear: let one of the two be."
        )


def _all_that_trains_with_labels_is_read(run: Experiment) -> None:
    if run.theta.reference_grades is not None and not run.evaluation.evidential:
        raise ValueError(
            f"theta.reference_grades reads u as K / S, but evaluation.estimator {run.evaluation.estimator!r} answers "
            "with another: leave it out, or choose an estimator of evidence."
        )
    if run.sampling.fraction < 1 and run.choice.window > 1:
        raise ValueError(
            "choice.window averages the figures of rounds, but with sampling.fraction below 1 a run ends with its last "
            "model: leave one of the two out."
        )
    if run.sampling.fraction < 1 and run.choice.by != ChoiceSettings().by:
        raise ValueError(
            "choice.by says which validation AUC chooses the round, but with sampling.fraction below 1 a run ends with "
            "its last model: leave one of the two out."
        )


def _what_stays_is_not_corrected(run: Experiment) -> None:
    if run.exchange.personal != "everything":
        return
    if run.correction != NoCorrectionSettings():
        raise ValueError(
            f"correction {run.correction.name!r} holds the sites together by what travels, but exchange.personal is "
            "'everything': set correction to 'none', or let something travel."
        )
    if run.aggregation.personal:
        raise ValueError(
            f"aggregation.rule {run.aggregation.rule.name!r} mixes a model per site of what travels, but "
            "exchange.personal is 'everything': set it to 'uniform', or let something travel."
        )


def _a_correction_goes_with_every_optimiser(run: Experiment) -> None:
    """Refuse what a site or the server would refuse once it builds its half, whichever phase's optimiser it is."""
    for training in (run.training, *(phase.training for phase in run.phases if phase.training is not None)):
        why = run.correction.unfit(training)
        if why is not None:
            raise ValueError(why)


def _temperatures_have_a_calibrator(run: Experiment) -> None:
    if not run.network.calibrator and run.calibration != CalibrationSettings():
        raise ValueError(
            "calibration is set, but a network without a calibrator does not read it: leave it out, or set "
            "network.calibrator."
        )


def _pooled_sites_exchange_nothing(run: Experiment) -> None:
    if run.pooled and run.exchange.personal != "everything":
        raise ValueError("pooled sites train alone: set exchange.personal to 'everything', or pooled to false.")


def _a_model_that_goes_along_is_held_to_something(run: Experiment) -> None:
    if run.tune.along and run.exchange.personal == "everything":
        raise ValueError(
            "tune.when is 'rounds', which holds a model of the site's own to what travels, but exchange.personal is "
            "'everything': set tune.when to 'end', or let something travel."
        )


def _a_twin_differs(run: Experiment) -> None:
    if run.verdict != "twin":
        return
    if not run.supervised:
        raise ValueError("verdict is 'twin', but a run without labels has no answers to compare: leave it out.")
    if run.sums is not None:
        raise ValueError("verdict is 'twin', but the twin of a head from sums is the own head: leave it out.")
    if not run.shares:
        raise ValueError("verdict is 'twin', but nothing travels, so each site is its own twin: leave it out.")


def _a_curve_is_of_models_that_share(run: Experiment) -> None:
    if run.referral_curve and not (run.supervised and run.shares):
        raise ValueError(
            "referral_curve asks what the federation's models say of ill patients, but here no model answers that "
            "learned from all sites: leave it out."
        )


def _one_model_for_a_server_half(run: Experiment) -> None:
    if run.aggregation.personal and run.correction.has_server_half:
        raise ValueError(
            f"correction {run.correction.name!r} moves one global model, but aggregation "
            f"{run.aggregation.rule.name!r} keeps one per site: choose another of the two."
        )


def _one_hand_moves_the_aggregate(run: Experiment) -> None:
    chosen = run.aggregation.optimiser
    if not chosen.remembers:
        return
    if run.correction.has_server_half:
        raise ValueError(
            f"correction {run.correction.name!r} moves the aggregate itself, and aggregation.optimiser {chosen.name!r} "
            "would move it once more: choose another of the two."
        )
    if run.exchange.personal == "everything":
        raise ValueError(f"aggregation.optimiser is {chosen.name!r}, but nothing travels: set it to 'none'.")
    if run.exchange.encrypt != "nothing":
        raise ValueError(
            f"aggregation.optimiser {chosen.name!r} computes with the model, but exchange.encrypt is "
            f"{run.exchange.encrypt!r} and the server cannot read it: choose another of the two."
        )


def _a_robust_rule_sees_all_that_travels(run: Experiment) -> None:
    robust = run.aggregation.robust
    if not robust.guards:
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
            f"quorum is {run.quorum}, but aggregation.robust {robust.name!r} as it is set needs "
            f"{robust.least} accepted updates per round: set quorum to {robust.least} or more, or "
            "aggregation.robust.hostile lower."
        )


def _what_is_encrypted_is_only_averaged(run: Experiment) -> None:
    if run.exchange.encrypt == "nothing":
        return
    aggregation, correction = run.aggregation, run.correction
    if aggregation.robust.guards or aggregation.personal:
        other = (aggregation.rule if aggregation.personal else aggregation.robust).name
        raise ValueError(
            f"aggregation {other!r} compares what the sites sent, but exchange.encrypt is "
            f"{run.exchange.encrypt!r} and the server cannot read it: choose another of the two."
        )
    if correction.has_server_half:
        raise ValueError(
            f"correction {correction.name!r} sends controls of the head in the clear, which undoes exchange.encrypt"
            ": choose another of the two."
        )


def _sums_are_not_encoded(run: Experiment) -> None:
    if run.sums is not None and isinstance(run.exchange.codec, EncodingSettings):
        raise ValueError(
            f"exchange.codec is {run.exchange.codec.name!r}, but this run ends with sums, which are solved and must be "
            "exact to the last digit: set exchange.codec to 'none'."
        )


CHECKS: tuple[Callable[[Experiment], None], ...] = (
    _phases_are_distinct,
    _a_label_free_phase_has_its_layers,
    _a_travelling_head_has_one_width,
    _a_recipe_fits_the_phases,
    _sums_train_nothing,
    _images_fit_the_encoder,
    _random_transforms_fit_the_modality,
    _frozen_stages_fit_the_run,
    _a_fitted_head_stays_at_its_site,
    _members_have_an_estimator,
    _all_that_trains_with_labels_is_read,
    _temperatures_have_a_calibrator,
    _pooled_sites_exchange_nothing,
    _a_model_that_goes_along_is_held_to_something,
    _a_twin_differs,
    _a_curve_is_of_models_that_share,
    _one_model_for_a_server_half,
    _one_hand_moves_the_aggregate,
    _a_robust_rule_sees_all_that_travels,
    _what_is_encrypted_is_only_averaged,
    _sums_are_not_encoded,
    _what_stays_is_not_corrected,
    _a_correction_goes_with_every_optimiser,
)
"""In the order in which they are asked; the first that fails speaks, by a ValueError."""
