"""From a round's accepted updates to the next model, one for all or one per site; and the last, of temperatures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedretina.aggregation.admission import require_finite
from fedretina.aggregation.lineage import ERROR, FRAME
from fedretina.aggregation.robust import RoundUpdates, combining
from fedretina.aggregation.server_optimiser import stepping
from fedretina.aggregation.spool import Spool
from fedretina.aggregation.weights import Scalars, among, weighing
from fedretina.codecs.encoding import Base, Encoding, Ways
from fedretina.corrections.correction import ServerRound, build_correction
from fedretina.errors import RefusedError, SettingsError
from fedretina.exchange.encryption import NO_KEYS, HeadCipher
from fedretina.exchange.partition import GRAM, MOMENT, SUMS, Partition
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.settings.aggregation import RuleSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Step


class Round(NamedTuple):
    """What a training step leaves to be mixed.

    Attributes:
        spool: The accepted updates.
        scalars: What came with them, by site.
        enrolled: Names of the sites of the run, whether they answered or not.
        step: What they were asked.
        state: The model that the step began with, with all that the server keeps beside it.
        ways: By site, what came in the place of controls; see `Encoding`.
        joined: How many of the enrolled were not in the run in the round before.
    """

    spool: Spool
    scalars: Scalars
    enrolled: tuple[str, ...]
    step: Step
    state: Tensors
    ways: Mapping[str, Ways] = MappingProxyType({})
    joined: int = 0


class Mixer:
    """Mixes the updates of a run's rounds by its settings.

    Args:
        experiment: The run's settings.
        parts: What travels.
        cipher: The server's half of the keys, where a part of the model travels encrypted.
        encoding: How the next model travels to the sites, which then is what they decode; None as it is.

    Raises:
        SettingsError: The run encrypts, and there is no cipher.
    """

    def __init__(
        self, experiment: Experiment, parts: Partition, cipher: HeadCipher | None, encoding: Encoding | None = None
    ) -> None:
        always = experiment.sums is not None and experiment.sums.encrypt == "always"
        if (parts.sealed or always) and cipher is None:
            raise SettingsError(NO_KEYS)
        chosen = experiment.aggregation
        # A phase without labels has a rule of its own. What a name chooses is looked up here, before any site trains.
        self._rules = {
            phase.name: RuleSettings.of(phase.weights) if phase.task == "pretrain" else chosen.rule
            for phase in experiment.phases
        }
        self._weigh = {phase: weighing(rule) for phase, rule in self._rules.items() if not rule.personal}
        self._combine = combining(chosen.robust)
        self._optimise = stepping(chosen.optimiser)
        self._parts = parts
        self._cipher = cipher
        self._encoding = encoding
        self._correction = build_correction(experiment.correction, experiment.training)

    def needed(self, step: Step) -> frozenset[str]:
        """Scalars that the step's updates cannot be weighed without, besides those that every site must bring."""
        return self._rules[step.phase].needs if step.task in ("pretrain", "train") else frozenset()

    def require(self, tensors: Tensors) -> None:
        """Refuse an update whose encrypted part cannot be mixed.

        Raises:
            RefusedError: It cannot.
        """
        for key in self._parts.sealed:
            if self._cipher is not None and key in tensors:
                self._cipher.require(key, tensors[key], self._parts.sizes[key][0])

    def one_for_all(self, round_: Round) -> tuple[Tensors, dict[str, Any]]:
        """One model: the sites' combined, moved on by the server's optimiser or the correction's server half.

        Returns:
            The model with what the server keeps beside it, and what the step's record says of it.
        """
        moving = self._parts.moving(round_.step.task)
        weights = self._weigh[round_.step.phase](round_.scalars)
        dtypes = {key: self._parts.dtypes[key] for key in moving.mixed if key not in self._parts.sealed}
        accepted = RoundUpdates(round_.spool, weights, round_.state, dtypes, frozenset(moving.parameters))
        combined = self._combine(accepted)
        record: dict[str, Any] = {"weights": dict(combined.weights)}
        if combined.figures:
            record["robust"] = {name: dict(figure) for name, figure in combined.figures.items()}
        model = {**combined.tensors, **self._sealed(round_.spool, weights, moving.shared)}
        enrolled = max(len(round_.enrolled), len(accepted.sites))
        given = ServerRound(
            round_.state, model, round_.spool, accepted.sites, enrolled, moving.parameters, round_.joined
        )
        given = given._replace(mixed=self._optimise(given))
        mixed = self._resting(round_.state) | dict(self._correction.server(given))
        if self._encoding is not None:
            # What joined makes the mean over all sites another one than the sites that were there hold.
            ways = {} if round_.joined else self._encoding.common_ways(round_.ways, weights, enrolled)
            mixed |= self._as_held(round_.step, mixed, round_.state, ways)
        record["digest"] = tensors_digest({key: mixed[key] for key in moving.shared})
        return mixed, record

    def totalled(self, round_: Round) -> tuple[Tensors, dict[str, Any]]:
        """The total of the sites' sums, in float64 and in the order of their names; of ciphertexts without a weight.

        Returns:
            The total, with the encoder that the sums stand on where the run has pre-trained one, and what the step's
            record says of it: by site its share of the images, where it can be read.
        """
        spool, sites = round_.spool, sorted(round_.scalars)
        encoder = {key: round_.state[key] for key in self._parts.moving("sums").shared}
        if self._cipher is not None:
            total = {key: self._cipher.total([spool.tensor(site, key) for site in sites]) for key in self._parts.sums}
            return {**encoder, **total}, {"digest": tensors_digest({**encoder, **total})}
        dtypes = {key: self._parts.dtypes[key] for key in self._parts.sums}
        total = spool.weighted_mean(dict.fromkeys(sites, 1.0), dtypes)
        images = {site: float(spool.tensor(site, f"{SUMS}counts").sum()) for site in sites}
        weights = {site: images[site] / sum(images.values()) for site in sites}
        return {**encoder, **total}, {"weights": weights, "digest": tensors_digest({**encoder, **total})}

    def one_a_site(
        self,
        round_: Round,
        similarity: Mapping[str, Mapping[str, float]],
        before: Callable[[str], Tensors],
        put: Callable[[str, Tensors], None],
    ) -> tuple[Tensors, dict[str, Any]]:
        """A model per site, one in memory at a time.

        Args:
            round_: The round.
            similarity: By site, the weights that its model gives the sites.
            before: The model that a site began the round with, with all that the server keeps beside it.
            put: Stores a site's own model.

        Returns:
            The plain mean, for a site that comes later, and what the step's record says of the models.
        """
        dtypes = {key: self._parts.dtypes[key] for key in self._parts.moving(round_.step.task).mixed}
        answered = sorted(round_.scalars)
        mixing = {site: among(similarity.get(site, {}), answered) for site in round_.enrolled}
        digests = {}
        for site, weights in mixing.items():
            own = round_.spool.weighted_mean(weights, dtypes)
            beside: Tensors = {}
            if self._encoding is not None:
                both = self._as_held(round_.step, own, before(site), {})
                own, beside = {key: both[key] for key in own}, both
            digests[site] = tensors_digest(own)
            put(site, {**self._resting(round_.state), **beside, **own})
        mean = round_.spool.weighted_mean(dict.fromkeys(answered, 1 / len(answered)), dtypes)
        return {**self._resting(round_.state), **mean}, {
            "mixing": mixing,
            "weights": {site: mixing[site].get(site, 0.0) for site in answered},
            "digests": digests,
            "digest": tensors_digest(mean),
        }

    def _as_held(self, step: Step, mixed: Tensors, before: Tensors, ways: Ways) -> dict[str, torch.Tensor]:
        """What the sites will hold of a mixed model, with what takes them there from the last, and what that loses.

        Args:
            step: The step that gave it.
            mixed: The model.
            before: What the step began with: what the sites hold now, and what was lost on the way there.
            ways: See `Encoding.common_ways`.
        """
        assert self._encoding is not None
        sent = {key: mixed[key] for key in self._parts.moving(step.task).travelling if key in mixed}
        lost = {key.removeprefix(ERROR): tensor for key, tensor in before.items() if key.startswith(ERROR)}
        require_finite(sent, step.name)
        made = self._encoding.encode(sent, Base(before), lost, ways)
        return {
            **made.held,
            **{f"{FRAME}{key}": frame for key, frame in made.frames.items()},
            **{f"{ERROR}{key}": error for key, error in made.errors.items()},
        }

    def _resting(self, state: Tensors) -> dict[str, torch.Tensor]:
        """What the server holds and the step did not move: a head while an encoder is pre-trained, and its controls."""
        known = {*self._parts.shared, *self._parts.controls}
        return {key: tensor for key, tensor in state.items() if key in known}

    def _sealed(self, spool: Spool, weights: Mapping[str, float], moved: Sequence[str]) -> dict[str, torch.Tensor]:
        """The weighted mean of what nobody here can read."""
        if self._cipher is None:
            return {}
        return {
            key: self._cipher.mix([(weights[site], spool.tensor(site, key)) for site in sorted(weights)])
            for key in self._parts.sealed
            if key in moved
        }


def temperature_model(moments: Iterable[dict[str, Tensor]], ridge: float) -> dict[str, Tensor]:
    """Solve for the model that tells a temperature from features, by ridge regression on the sites' sums.

    (w, b) = argmin sum_x (w . f(x) + b - T_k(x))^2 + lambda N s ||w||^2 (Yu et al., robust calibration with
    multi-domain temperature scaling, NeurIPS 2022), over the validation images of all sites, where T_k is the one
    temperature of the image's own site, N the number of images and s the mean square of a feature. The regression needs
    sums only, X^T X and X^T T, so no site's features or temperature are told apart from the others' in what is solved.
    The paper's data lie in one place and it leaves lambda open; here lambda counts in units of the features' own
    scale, so that it means the same for every encoder. The bias is not held back: features that say nothing give
    the mean temperature.

    Args:
        moments: A site's `GRAM` [F + 1, F + 1] and `MOMENT` [F + 1], the last place being the bias.
        ridge: lambda, above 0.

    Returns:
        `weight` [F] and `bias` [], float32.

    Raises:
        RefusedError: No image is behind the sums, or they have no solution.
    """
    gram, moment = None, None
    for site in moments:
        gram = site[GRAM].double() if gram is None else gram + site[GRAM].double()
        moment = site[MOMENT].double() if moment is None else moment + site[MOMENT].double()
    if gram is None or moment is None or float(gram[-1, -1]) < 1:
        raise RefusedError("no site sent moments of an image, so there is nothing to calibrate from.")
    held = torch.full((gram.shape[0],), float(ridge * gram.diagonal()[:-1].mean()), dtype=torch.float64)
    held[-1] = 0.0
    solved = torch.linalg.lstsq(gram + torch.diag(held), moment.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    if not bool(torch.isfinite(solved.float()).all()):
        raise RefusedError("the sites' moments have no finite solution: look for a site whose features are broken.")
    return {"weight": solved[:-1].float(), "bias": solved[-1].float()}
