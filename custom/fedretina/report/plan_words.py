"""A plan in plain words, for who decides at a hospital: who asks, what is trained, what leaves, what the site gets.

Everything is worked out from the experiment file that would run and from this site's own settings, manifest and
ledgers; nothing is taken from what the job says of itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedretina.data.manifest import SPLITS, read_manifest
from fedretina.errors import FedretinaError
from fedretina.exchange.noise import Spent, cost, spent
from fedretina.exchange.partition import Partition, partition_of
from fedretina.networks.build import build_on_meta
from fedretina.plurals import counted
from fedretina.report.card import NOT_A_DEVICE
from fedretina.report.text import size
from fedretina.rows import row
from fedretina.settings.codec import EncodingSettings
from fedretina.settings.columns import GROUP_SUMS
from fedretina.settings.exchange import Kind
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.settings.policy import PolicySettings, SvtNoise
from fedretina.settings.scalars import COUNTS, CURVE, Task, allowed_scalars, held_back
from fedretina.settings.site import SiteSettings, site_scheme

if TYPE_CHECKING:  # the record is made of plain values
    from fedretina.kit.waiting_plans import WaitingPlan

_WORDS: Mapping[Kind, str] = {
    Kind.ENCODER: "weights of the image network",
    Kind.NORM: "scales and shifts of its normalisation",
    Kind.STATISTIC: "means and variances of its activations, which describe your images",
    Kind.COUNTER: "counters",
    Kind.HEAD: "the classifier, which knows your grades",
    Kind.EXIT: "early classifiers, which know your grades",
    Kind.PROJECTOR: "layers that only pre-training has",
    Kind.CONTROL: "control variates, the direction of your training",
    Kind.CALIBRATION: "sums over the features of your validation images",
    Kind.SUMS: "sums over the features of your training images, by grade",
}
_TASKS: Mapping[Task, str] = {
    "prepare": "once, before training",
    "pretrain": "in each round without labels",
    "train": "in each round of training",
    "sums": "once",
    "validate": "once, after training",
    "tune": "once, after training",
    "calibrate": "once, after training",
    "curve": "once, before the end",
    "finalise": "once, at the end",
}


def plan_words(
    plan: WaitingPlan, settings: SiteSettings, ledgers: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Say a plan in plain words.

    Args:
        plan: The plan that waits.
        settings: The site's own settings.
        ledgers: Lines of all ledgers of the site.

    Returns:
        What is said of what, in the order in which to read it.

    Raises:
        SettingsError: The plan's network cannot be built here.
    """
    experiment, asked = plan.experiment, plan.asked
    who = asked.submitter or "nobody that a certificate names: the job is not signed"
    beside = ", ".join(filter(None, (plan.organisation, plan.role)))
    steps = Plan.of(experiment)
    net = build_on_meta(experiment.network, experiment.head_width or 2)
    parts = partition_of(experiment, net, experiment.sums is not None and settings.he_keys is not None)
    said = [
        ("Run", f"{asked.run}, plan {asked.number}"),
        ("Who asks", f"{who}{f' ({beside})' if beside else ''}, since {_moment(plan.since)}"),
        ("What is trained", _trained(experiment)),
        ("On which images", _images(experiment, settings)),
        ("Rounds", _rounds(experiment)),
    ]
    if experiment.restart is not None:
        said.append(
            ("Goes back", f"to {experiment.restart.step}: what comes after it is done, and leaves, a second time")
        )
    return [
        *said,
        *_leaving(experiment, parts, settings),
        ("Figures that leave", _figures(experiment, settings.own_policy)),
        ("Counts that leave", _counts(experiment, settings)),
        ("Noise", _noise(steps, parts, settings.own_policy, ledgers)),
        ("What stays", "every image, file name, patient and label, and all of the model that is not named above"),
        ("What you get", _gets(experiment)),
    ]


def _trained(experiment: Experiment) -> str:
    method = row(experiment.row)
    start = {"none": "begins with random weights", "file": "begins with the weights in your weights_file"}
    begins = start.get(experiment.network.weights.source, "begins with weights that came with the software")
    return f"{experiment.network.encoder} by {method.title} ({method.paper}), called {experiment.name!r}; {begins}"


def _images(experiment: Experiment, settings: SiteSettings) -> str:
    kind = f"{experiment.images.modality} images"
    if settings.data.manifest is None:
        return f"{kind}: synthetic ones, since this site points to no data of its own"
    try:
        manifest = read_manifest(settings.data.manifest, site_scheme(settings.data), settings.data.columns)
    except FedretinaError as error:
        return f"{kind}; your list of images cannot be read now: {error}"
    words = {"train": "to train on", "val": "to choose by", "test": "to measure on, once"}
    found = []
    for split in SPLITS:
        records = manifest.of(split)
        patients = counted(len({record.patient for record in records}), "patient")
        most = settings.data.most(split)
        limit = f" (at most {most} of them, by your limit)" if most is not None and most < len(records) else ""
        found.append(f"{counted(len(records), 'image')} of {patients} {words[split]}{limit}")
    unlabelled = manifest.unlabelled()
    if unlabelled and any(phase.contrastive is not None for phase in experiment.phases):
        found.append(f"{counted(len(unlabelled), 'image')} without a label for training without labels")
    return f"{kind}: {'; '.join(found)}"


def _rounds(experiment: Experiment) -> str:
    found = []
    for phase in experiment.phases:
        what = (
            "without labels" if phase.contrastive is not None else "sums" if phase.sums is not None else "with labels"
        )
        training = experiment.phase(phase.name).training
        assert training is not None  # `phase` fills it
        epochs = sum(stretch.epochs for stretch in training.stretches or ()) or training.epochs
        found.append(f"{counted(phase.rounds, 'round')} of {phase.name} ({what}, {counted(epochs, 'epoch')} each)")
    return f"{'; '.join(found)}. A round that too few sites answer is done again, and counts again."


def _leaving(experiment: Experiment, parts: Partition, settings: SiteSettings) -> list[tuple[str, str]]:
    times = Counter(step.task for step in Plan.of(experiment))
    policy, found = settings.own_policy, []
    for task, often in times.items():
        bytes_: dict[Kind, int] = {}
        for key in parts.sent(task):
            bytes_[parts.kinds[key]] = bytes_.get(parts.kinds[key], 0) + parts.sizes[key][1]
        if not bytes_:
            continue
        kinds = []
        for kind, held in bytes_.items():
            sealed = any(parts.kinds[key] is kind for key in parts.sealed)
            ways = " (encrypted: the server cannot read it)" if sealed else ""
            if sealed and policy.changes_tensors and kind is not Kind.SUMS:  # their noise is added before
                ways += " (YOUR POLICY CHANGES NUMBERS, which encrypted ones do not allow: the order would be refused)"
            ways += "" if kind in policy.kinds else " (YOUR POLICY FORBIDS THIS: the answer would be refused)"
            kinds.append(f"{kind.value}: {_WORDS[kind]}, {size(held)}{ways}")
        less = isinstance(experiment.exchange.codec, EncodingSettings)
        most = (
            f"{'at most ' if less else ''}{size(sum(bytes_.values()))} each time, {size(often * sum(bytes_.values()))}"
        )
        in_bits = f" before they are packed in fewer bits ({experiment.exchange.codec.name})" if less else " in all"
        if less and policy.changes_tensors:
            in_bits += ". YOUR POLICY CHANGES NUMBERS, which packed ones do not allow: the order would be refused"
        found.append((f"Leaves {_TASKS[task]}, {counted(often, 'time')}", f"{'; '.join(kinds)}. {most}{in_bits}."))
    return found or [("Leaves", "no tensor of the model")]


def _may_go(experiment: Experiment, policy: PolicySettings, task: Task) -> list[str]:
    names = allowed_scalars(task, experiment.supervised)
    return sorted(set(names) - held_back(names, policy.hold_back))


def _figures(experiment: Experiment, policy: PolicySettings) -> str:
    by_task = []
    for task in dict.fromkeys(step.task for step in Plan.of(experiment)):
        counts = COUNTS.keys() | GROUP_SUMS.keys() | CURVE.keys()
        names = [name for name in _may_go(experiment, policy, task) if name not in counts]
        alone = [name for name in names if not name.endswith(("_low", "_high"))]
        shown = [f"{name.replace('_', ' ')}{' with its interval' if f'{name}_low' in names else ''}" for name in alone]
        if shown:
            by_task.append(f"{_TASKS[task]}: {', '.join(shown)}")
    rounded = f". Each is cut to {policy.scalar_digits} digits" if policy.scalar_digits is not None else ""
    held = f". You hold back {', '.join(sorted(policy.hold_back))}, and what says the same" if policy.hold_back else ""
    return f"{'; '.join(by_task) or 'none'}{rounded}{held}"


def _counts(experiment: Experiment, settings: SiteSettings) -> str:
    policy, found = settings.own_policy, []
    names = [name for step in Plan.of(experiment) for name in _may_go(experiment, policy, step.task)]
    if any(name in COUNTS for name in names):
        found.append("answers on your test images by grade and by how sure they were, once, at the end")
    if policy.subgroups and any(name in GROUP_SUMS for name in names):
        columns = " and ".join(sorted(policy.subgroups))
        found.append(f"patients with and without referable disease, found and missed, by {columns}, once, at the end")
    if policy.referral_curve and any(name in CURVE for name in names):
        found.append("ill validation patients by the chance of disease that the model gives them, once, before the end")
    return f"{'; '.join(found)}; each of at least {settings.data.min_count} patients" if found else "none"


def _noise(steps: Plan, parts: Partition, policy: PolicySettings, ledgers: Sequence[Mapping[str, Any]]) -> str:
    noised = [(task, policy.sums_noise if task == "sums" else policy.noise) for task in (step.task for step in steps)]
    prices = [cost(noise) for task, noise in noised if noise is not None and parts.sent(task)]
    chosen = policy.sums_noise or policy.noise
    before = spent(ledgers)
    delta = 1e-5 if chosen is None or isinstance(chosen, SvtNoise) else chosen.delta
    past = f"epsilon {before.total(delta):.3g} spent so far" if before != Spent() else "nothing spent so far"
    if not prices:
        return f"none by your policy; {past}"
    after = before
    for price in prices:
        after = after.plus(price)
    assert chosen is not None
    most = "without a bound" if chosen.max_epsilon is None else f"your bound is {chosen.max_epsilon:.3g}"
    return f"{past}; {after.total(delta):.3g} after this run ({counted(len(prices), 'noised answer')}); {most}"


def _gets(experiment: Experiment) -> str:
    if not experiment.supervised:
        return "an image network, pre-trained on the images of all sites: no model that grades"
    own = "" if experiment.verdict == "off" else ", compared with a model of your own, of which the better is kept"
    model = "a model with a head for your own grades, its card, its figures on your test patients and a report"
    return f"{model}{own}. {NOT_A_DEVICE}"


def _moment(when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M} UTC"
