"""The server's half of a run without any transport: orders out, updates in, a durable result per step.

The plain loop and the FLARE controller drive this one class; neither holds arithmetic of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.aggregation.admission import admit, proportions, refusal, require_finite, told
from fedretina.aggregation.lineage import Lineage, ServerModel
from fedretina.aggregation.mixing import Mixer, Round, temperature_model
from fedretina.aggregation.results import unfinished_at_end
from fedretina.aggregation.run_store import RunStore, run_head, run_results, write_results
from fedretina.aggregation.spool import StepAnswers
from fedretina.aggregation.weights import personal_weights
from fedretina.codecs.encoding import Base, Ways, encoding_of
from fedretina.errors import AWAITS, RefusedError
from fedretina.evaluation.referral_curve import curve_of_others
from fedretina.exchange.encryption import HeadCipher
from fedretina.exchange.min_count import count_outcomes
from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import ATTEMPTS, Order, Payload, Stamp, Tensors, tensors_bytes
from fedretina.networks.build import build_network
from fedretina.seeds import derive_seed, reproducible_torch
from fedretina.settings.aggregation import SamplingSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import CURVE, Plan, Step
from fedretina.settings.scalars import BY_TASK, allowed_scalars
from fedretina.storage import StoredTensors, require_name
from fedretina.told import one_line

_log = logging.getLogger(__name__)
# Where the head is personal the server has no grades of its own: what depends on their number never reaches it.
_ANY_GRADES = 2


class Coordinator:
    """Runs the steps of one run at the server.

    Begun on a folder that holds a part of the run, it goes on after the last step that is done there. A complete run
    whose `finalise` lacks the answer of a site that trained asks for that alone, and keeps what it has. Answers may
    arrive from other threads while a step closes; a lock decides whether they still count.

    Attributes:
        asked: Names of the sites that the running step asks, in alphabetical order.
        owed: Of a run that was complete when it was opened: the sites that have trained and no final figures.

    Args:
        experiment: The run's settings.
        run: Name of the run.
        folder: The server's folder of the run.
        cipher: The server's half of the keys, where a part of the model travels encrypted.

    Raises:
        SettingsError: The run encrypts, and there is no cipher.
        StateError: The folder holds another run's state, or cannot be used.
        RefusedError: The run cannot go back to the step that the settings name.
    """

    def __init__(self, experiment: Experiment, run: str, folder: Path, cipher: HeadCipher | None = None) -> None:
        self.experiment = experiment
        self.run = require_name(run, "run")
        self.plan = Plan.of(experiment)
        net = build_network(experiment.network, experiment.head_width or _ANY_GRADES, experiment.seed)
        self.partition = partition_of(experiment, net, cipher is not None)
        self._no_temperatures: Tensors = {key: net.state_dict()[key] for key in self.partition.calibrator}
        self._encoding = encoding_of(experiment, self.partition)
        self._mixer = Mixer(experiment, self.partition, cipher, self._encoding)
        self._personal = experiment.aggregation.personal
        self._allowed = {task: allowed_scalars(task, experiment.supervised) for task in BY_TASK}
        self.digest = experiment.digest(self.partition)
        self._head = run_head(run, experiment, self.partition)
        self._store = RunStore(folder, self.digest, self._head, lambda step: self.plan[step].name)
        self._go_back()
        self._lineage = Lineage(self.plan, self._store.records, experiment.ends_with)
        self._model = ServerModel(experiment, net, self.partition, self._store, self._lineage)
        self._answers = StepAnswers(folder / "spool")
        self._enrolled: tuple[str, ...] = ()
        self.asked: tuple[str, ...] = ()
        self.owed = unfinished_at_end(self.records, self.plan) if self.done == len(self.plan) else ()
        self._ended = self._store.reopen() if self.owed else None
        self._lock = threading.RLock()
        self._attempt = -1

    @property
    def done(self) -> int:
        """Number of steps that are done."""
        return self._store.done

    @property
    def folder(self) -> Path:
        """The server's folder of the run."""
        return self._store.folder

    @property
    def records(self) -> Sequence[dict[str, Any]]:
        """Records of the steps that are done."""
        return self._store.records

    @property
    def returns(self) -> tuple[Step, ...]:
        """Steps that the run can go back to, in order."""
        return tuple(self.plan[number] for number in self._store.returns if number < min(self.done, len(self.plan)))

    @property
    def step(self) -> Step:
        """The step to do next."""
        return self.plan[self.done]

    @property
    def progress(self) -> Progress:
        """How far the run is; read without the lock, so that it answers while a step is being mixed."""
        done = self.done
        return Progress(
            run=self.run,
            done=done,
            steps=len(self.plan),
            trainings=sum(number >= done for number in self.plan.learning),
            step=self.plan[done] if done < len(self.plan) else None,
            attempt=self._attempt,
            asked=() if self._attempt < 0 else self.asked,
            answered=tuple(self._answers.scalars),
            refused=dict(self._answers.refused),
        )

    def begin(self, sites: Collection[str]) -> None:
        """Begin the next step, or begin it again; answers to earlier attempts are refused from now on.

        Args:
            sites: Names of the sites that are there, whether they answer in this step or not. Who was there in an
                earlier round takes part in the run still: to a correction's mean over all sites they count.

        Raises:
            RefusedError: A name could leave its folder, since sites' own models lie in files of their names.
        """
        for site in sites:
            require_name(site, "site")
        with self._lock:
            self._attempt += 1
            earlier = (site for record in self.records for site in record.get("enrolled", ()))
            self._enrolled = tuple(sorted({*sites, *earlier}))
            self.asked = tuple(sorted(sites))
            if self._lineage.learns:
                purpose = (self.experiment.seed, self.step.phase, self.step.round)
                self.asked = tuple(sampled(sites, self.experiment.sampling, self.experiment.quorum, purpose))
            self._answers = StepAnswers(self._store.folder / "spool")
            if self._ended is not None:
                self.asked = tuple(site for site in self.asked if site in self.owed)
                self._answers.keep(self._ended, self.asked)

    def order(self, site: str) -> Order:
        """What the running step asks of a site."""
        last = self._lineage.accepted(site)
        weight = None if last is None else self.records[last].get("weights", {}).get(site)
        best, share = self._lineage.worth_keeping, self._lineage.share(site)
        return Order(self.step.task, self._stamp(), last, best, share, weight, self._curve(site))

    def _curve(self, site: str) -> tuple[int, ...]:
        """What the other sites let go of their ill patients, once a site ends with it."""
        step = self.plan.find(CURVE, 0)
        if step is None or self.step.task != "finalise":
            return ()
        return curve_of_others(self.records[step.number]["scalars"], site)

    def down(self, site: str = "") -> Tensors:
        """The tensors that go with the running step's order to a site.

        They are the same for all, and read once per step, unless the aggregation keeps a model per site; encoded, they
        are of two forms, for who had a part in the step before and for who had none. Controls go where there is
        training, and the server's own memory never goes.
        """
        return self._model.down(site, self._repeated)

    def same_for(self, site: str) -> str | None:
        """A name for what `down` gives a site in the running step, one for all that get the same; None for its own."""
        return self._model.same_for(site, self._repeated or self._encoding is None)

    def accept(self, site: str, payload: Payload, stored: StoredTensors | None = None) -> None:
        """Take one site's answer into the running step.

        Args:
            site: Its name.
            payload: The answer.
            stored: Where its tensors lie, if they came into a file.

        Raises:
            RefusedError: What is wrong with it; the answer is dropped and noted under the site's name.
            StateError: The disk is full; the answer is dropped.
        """
        with self._lock:
            try:
                require_name(site, "site")
                if site not in self.asked:
                    raise RefusedError("the site was not asked in this step.")
                if site in self._answers.scalars:
                    raise RefusedError("the site has answered this step before.")
                step = self.step
                names, keys, needed = self._allowed[step.task], self.partition.sent(step.task), self._mixer.needed(step)
                if step.task in ("prepare", "calibrate") and not payload.tensors:
                    keys = ()  # too few patients to tell of: like an answer to `curve` it counts, and tells nothing
                came, ways = self._decoded(site, payload) if self._encoding is not None else (payload, {})
                admit(came, self._stamp(), self.partition, names, keys, self.experiment.theta.largest, needed)
                self._mixer.require(came.tensors)
            except RefusedError as refusal:
                self.refuse(site, str(refusal))
                raise
            as_it_came = stored if came is payload else None
            self._answers.put(site, came, tensors_bytes(payload.tensors), ways, as_it_came)

    def _decoded(self, site: str, payload: Payload) -> tuple[Payload, Ways]:
        """An answer as if it had come in float32; of an encoded tensor nothing is unpacked before its form is known."""
        assert self._encoding is not None
        payload.stamp.require(self._stamp())
        known = set(self.partition.sent(self.step.task))
        for key in sorted(known & set(payload.tensors)):
            self._encoding.require(key, payload.tensors[key], whole=False)
        base = Base.up(self._model.state(site if self._personal else ""))
        opened = self._encoding.decode({key: payload.tensors[key] for key in payload.tensors if key in known}, base)
        return payload._replace(tensors={**payload.tensors, **opened.tensors}), opened.ways

    def refuse(self, site: str, why: str) -> None:
        """Note why a site has no part in the running step; a site's own words are cut to one line."""
        why = one_line(why)
        with self._lock:
            self._answers.refuse(site, why)
        _log.warning("%s: the answer of %s does not count: %s", self.step.name, site, why)

    def hold(self, site: str) -> None:
        """Note that a site waits for its hospital's approval; it may still answer in the running step."""
        with self._lock:
            if self._answers.refused.get(site) != AWAITS:
                _log.warning("%s: %s is %s", self.step.name, site, AWAITS)
            self._answers.refuse(site, AWAITS)

    @property
    def lacks(self) -> int:
        """How many answers the running step still lacks to its quorum, from 0."""
        return max(self.experiment.quorum - len(self._answers.scalars), 0)

    def close(self) -> dict[str, Any]:
        """Mix what was accepted and make the step durable.

        Returns:
            The step's record.

        Raises:
            QuorumError: Too few updates were accepted; the step may be begun again.
            StateError: The disk is full or not writable; the step may be begun again.
            RefusedError: What was accepted has no finite mean or solution; the step may be begun again.
        """
        with self._lock:
            return self._close()

    def forget_answers(self) -> None:
        """Erase what single sites sent for a step that is not closed: nobody needs it, since they are asked again."""
        with self._lock:
            self._answers.spool.erase()

    def _close(self) -> dict[str, Any]:
        step, answers = self.step, self._answers
        answers.require(self.experiment.quorum, step.name)
        measured = self._in_proportion()
        answers.require(self.experiment.quorum, step.name)
        record: dict[str, Any] = {
            "step": step.name,
            "task": step.task,
            **answers.record(),
            **measured,
            "bytes_down": self._model.bytes_down(self.asked if self._encoding is not None else (), self._repeated),
        }
        mixed: Tensors | None = None
        if self._lineage.learns:
            record["enrolled"] = list(self._enrolled)
            record["asked"] = list(self.asked)
            with reproducible_torch(self.experiment.training):
                mixed, said = self._mixed()
            record |= said
        if step.task == "prepare":
            record["similarity"] = self._similarity(record["scalars"])
        if step.task == "calibrate":
            mixed = self._temperatures(record["scalars"])
        if step.task == "finalise":
            record["chosen"] = self._lineage.base
            # Which site gained and which lost is counted while it is in memory; no file holds it by site.
            before = (self._ended or {}).get("verdicts", {})
            record["scalars"], record["verdicts"] = count_outcomes(record["scalars"], before)
            if not self.experiment.supervised:
                self._model.write_encoder(self.run)
            results = run_results(self._head, self.digest, self.plan, self.records, record)
            write_results(self._store.folder, results, self.experiment.report.page)
        if mixed is not None:
            require_finite(mixed, step.name)
        learned = self._lineage.learns
        self._store.commit(step.number, record, mixed, self._lineage.needed, self._lineage.oldest_return)
        answers.spool.erase()
        if mixed is not None and learned:
            self._model.learned(step.number, mixed)
        self._attempt = -1
        return record

    def _in_proportion(self) -> dict[str, dict[str, float]]:
        """Refuse accepted updates that are out of all proportion; only now are those to compare with all there.

        Returns:
            What the step's record says of it: by site, how far out of proportion the updates that count are.
        """
        most, answers = self.experiment.aggregation.proportion, self._answers
        if most is None or not self.partition.sent(self.step.task):
            return {}
        common = None if self._personal else self._model.state()

        def sent(site: str) -> Tensors:
            return self._model.state(site) if common is None else common

        with reproducible_torch(self.experiment.training):
            told_of = [site for site in answers.scalars if answers.spool.holds(site)]
            found = proportions(answers.spool, told_of, self.partition, self.step.task, sent)
        for site, one in found.items():
            if one.value > most:
                answers.withdraw(site, refusal(one, most))
                _log.warning("%s: the answer of %s does not count: %s", self.step.name, site, answers.refused[site])
        counted = told({site: one for site, one in found.items() if site in answers.scalars})
        return {"proportion": counted} if counted else {}

    def _mixed(self) -> tuple[Tensors, dict[str, Any]]:
        answers = self._answers
        before = next((record["enrolled"] for record in reversed(self.records) if "enrolled" in record), self._enrolled)
        joined, state = len(set(self._enrolled) - set(before)), self._model.state()
        round_ = Round(answers.spool, answers.scalars, self._enrolled, self.step, state, answers.ways, joined)
        if self.step.task == "sums":
            return self._mixer.totalled(round_)
        if not self._personal:
            return self._mixer.one_for_all(round_)
        number = self.step.number
        return self._mixer.one_a_site(
            round_,
            self.records[0]["similarity"],
            self._model.state,
            lambda site, own: self._store.put_for(number, site, own),
        )

    def _similarity(self, sites: Collection[str]) -> dict[str, dict[str, float]]:
        """The weights of each site's own model, for the sites that tell of their training images; none for none."""
        spool = self._answers.spool
        telling = {site: spool.read(site) for site in sites if spool.holds(site)}
        if not telling:
            _log.warning("%s: no site may tell of its training images, so all get the plain mean", self.step.name)
            return {}
        return personal_weights(telling, self.experiment.aggregation.rule)

    def _temperatures(self, sites: Collection[str]) -> Tensors:
        """The calibrator from what these sites tell; 1 for every image, which changes no answer, where none may."""
        spool = self._answers.spool
        telling = [site for site in sites if spool.holds(site)]
        if not telling:
            _log.warning("%s: no site may tell of its validation images, so no temperatures are found", self.step.name)
            return self._no_temperatures
        solved = temperature_model((spool.read(site) for site in telling), self.experiment.calibration.ridge)
        return {key: solved[key.rpartition(".")[2]] for key in self.partition.calibrator}

    @property
    def _repeated(self) -> bool:
        """Whether the step is begun again: a site that did not hold what it should would refuse it each time."""
        return self._attempt > 0

    def _stamp(self) -> Stamp:
        # An answer to a step that the run has dropped since is as old as one to an earlier attempt.
        attempt = self._attempt + ATTEMPTS * len(self._store.restarts)
        return Stamp(self.run, self.step.phase, self.step.round, attempt, self.digest)

    def _go_back(self) -> None:
        """Start again from the step that the settings name, unless that was done when the job was started before."""
        asked = self.experiment.restart
        if asked is None or asked.mark in self._store.restarts:
            return
        step, store = self.plan.named(asked.step), self._store
        if step.number > store.done:
            raise RefusedError(f"the run has not come to {step.name}: its next step is {self.plan[store.done].name}.")
        if step.number not in store.returns:
            names = ", ".join(self.plan[number].name for number in store.returns if number < len(self.plan))
            raise RefusedError(
                f"the models that {step.name} would begin with are not kept any more: the run can go back to {names}."
            )
        dropped = store.go_back(step.number, asked.mark)
        _log.warning("run %s starts again from %s; dropped: %s", self.run, step.name, ", ".join(dropped) or "nothing")


class Progress(NamedTuple):
    """The running step of a run, and which sites have answered it.

    Attributes:
        run: Name of the run.
        done: Number of steps that are done.
        steps: Number of steps in total.
        trainings: Number of training steps that are not done.
        step: The step that runs or comes next; None when the run is complete.
        attempt: Which attempt at the step runs, from 0; -1 between two steps.
        asked: Sites that the running step asks.
        answered: Sites whose answer was accepted.
        refused: Sites whose answer does not count, with the reason, a sentence that may leave a site.
    """

    run: str
    done: int
    steps: int
    trainings: int
    step: Step | None
    attempt: int
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    refused: Mapping[str, str]


def sampled(
    sites: Collection[str], settings: SamplingSettings, quorum: int, purpose: tuple[int | str, ...]
) -> list[str]:
    """Draw the sites of a round, uniformly and without replacement.

    A site's chance does not depend on the names of the others: the sites with the smallest hashes are taken, so the
    simulator, the loop and a resumed run draw the same.

    Args:
        sites: The sites that are there.
        settings: How many.
        quorum: Never fewer than this, or the round could not count.
        purpose: What the draw is for: seed, phase and round.

    Returns:
        The names in alphabetical order; at least one.
    """
    count = min(len(sites), max(1, quorum, round(settings.fraction * len(sites))))
    order = sorted(sites, key=lambda site: (derive_seed(*purpose, "sampling", site), site))
    return sorted(order[:count])
