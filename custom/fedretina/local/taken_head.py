"""The federated head for a site that had no part in the run: a file with the total, and a model made of it.

The total is what every site of the run was sent; it names no site. Who gets the file learns what a site of the run
learns, so it goes to members of the consortium alone; where the run was encrypted only its keys open it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedretina.data.site_data import load_site_data
from fedretina.errors import SettingsError, StateError
from fedretina.exchange.encryption import HeadCipher, cipher_for
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.local.finalise import Ending, finalise
from fedretina.local.heads_from_sums import HeadsFromSums, folded, parted, unpacked
from fedretina.local.site_state import Snapshot
from fedretina.local.trainer import LocalTrainer
from fedretina.locks import folder_lock
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan, Step
from fedretina.settings.site import SiteSettings, job_data
from fedretina.storage import read_json, read_tensors, sync, write_tensors

_KIND = "federated head"
_BEING_MADE, _BEFORE = ".fedretina.half", ".fedretina.before"


def write_head(server: Path, out: Path) -> dict[str, Any]:
    """Write the total of a run's sums, with its settings and the encoder that it pre-trained, if any, into one file.

    Args:
        server: The server's folder of the run.
        out: The file.

    Returns:
        What the file says of itself.

    Raises:
        StateError: The run's state cannot be read, or the file not be written.
        SettingsError: The run has no sums, or is not that far.
    """
    state = read_json(server / "run.json")
    experiment = _experiment(state["settings"])
    step = _step(experiment)
    if int(state["done"]) <= step.number:
        raise SettingsError(f"run {state['run']} has no total yet: {step.name} is not done.")
    tensors, _ = read_tensors(server / f"{step.name}.safetensors")
    record = {
        "kind": _KIND,
        "run": state["run"],
        "settings": state["settings"],
        "digest": state["digest"],
        "total": tensors_digest(tensors),
        "encrypted": any(not tensor.is_floating_point() for tensor in parted(tensors)[0].values()),
    }
    write_tensors(out, tensors, record)
    return record


def take_head(
    path: Path,
    site: str,
    settings: SiteSettings,
    out: Path,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Make a site's model of a total: its own standardisation and own head, its choice, its card, figures and report.

    Each call makes all of it anew, by the site's data and settings of that time. Until it is made, what an earlier call
    left in `final/` stays as it was.

    Nothing leaves the site. Its images have no part in the total, so neither federated nor own head has an advantage on
    its validation split. It needs labelled images of its own, though few: without any there is no telling how sure the
    model may be, nor whom to refer.

    Args:
        path: What `write_head` wrote.
        site: Name of the site.
        settings: The site's own settings.
        out: Folder for `final/`; made when missing.
        tell: Called after each image while the image cache is built.

    Returns:
        The site's `figures.json`.

    Raises:
        StateError: The file cannot be read, or `out` not be written.
        SettingsError: It is no such file, belongs to another version, or its total is encrypted and there are no keys.
        DataError: The site's images cannot be used; it points to none, and the run took no phantom hospitals.
        TrainingError: The site's grades do not fit the classes, or the total gives no head.
    """
    tensors, record = read_tensors(path)
    if record.get("kind") != _KIND or record.get("total") != tensors_digest(tensors):
        raise SettingsError(f"{path.name} is no file of `fedretina head write`, or is damaged: ask for it again.")
    experiment = _experiment(record["settings"]).with_weights_file(settings.weights_file)
    cipher = None
    if record["encrypted"]:
        cipher = cipher_for(experiment.exchange, settings.he_keys, private=True, sums=experiment.sums)
        if cipher is None:
            raise SettingsError(
                "this total is encrypted, and this site has no keys: ask the consortium for its file of keys, and name "
                "it as he_keys in the site file."
            )
    own = job_data(site, settings.data, experiment.phantom_images)
    data = load_site_data(
        site, own, experiment.images, experiment.seed, out / "cache", tell=tell, trains=experiment.trains
    )
    trainer = LocalTrainer(experiment, data)
    if experiment.digest(trainer.partition) != record["digest"]:
        raise SettingsError(
            f"{path.name} was written by another version of fedretina than this one: install the version of the run."
        )
    heads = HeadsFromSums(experiment, data)
    total, encoder = parted(tensors)
    kept = heads.own_part(encoder)
    answer = heads.answer(unpacked(_opened(total, trainer, cipher)), kept, encoder)
    whole = Snapshot(folded(trainer.model.start, answer), {**kept.record, "sums": dict(answer.record)})
    with folder_lock(out, 0), _made_anew(out) as folder:
        finalise(Ending(record["run"], folder, experiment, data, trainer, _step(experiment), encoder, whole))
    return read_json(out / "final" / "figures.json")


@contextmanager
def _made_anew(out: Path) -> Iterator[Path]:
    """A folder whose `final/` takes the place of that of `out` when the block ends well.

    Raises:
        StateError: `out` cannot be written.
    """
    final, half, before = out / "final", out / _BEING_MADE, out / _BEFORE
    shutil.rmtree(half, ignore_errors=True)  # of a call that was killed
    if before.exists() and not final.exists():
        before.rename(final)  # it was killed between the two renames below
    try:
        yield half
        try:
            shutil.rmtree(before, ignore_errors=True)
            if final.exists():
                final.rename(before)
            (half / "final").rename(final)
            sync(out)
        except OSError as error:
            raise StateError(f"{out} cannot be written ({error.strerror}): make room, and take it again.") from error
        shutil.rmtree(before, ignore_errors=True)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _opened(tensors: Tensors, trainer: LocalTrainer, cipher: HeadCipher | None) -> Tensors:
    if cipher is None:
        return tensors
    parts = trainer.partition
    return {key: cipher.open(key, tensors[key], parts.shapes[key], parts.dtypes[key]) for key in parts.sums}


def _experiment(settings: Mapping[str, Any]) -> Experiment:
    try:
        return Experiment.model_validate(settings)
    except ValidationError as error:
        raise SettingsError(
            "the run's settings are not of this version of fedretina: use the version that wrote them."
        ) from error


def _step(experiment: Experiment) -> Step:
    found = next((step for step in Plan.of(experiment) if step.task == "sums"), None)
    if found is None:
        raise SettingsError(f"this run trained (row {experiment.row}): a head follows from a run of sums alone.")
    return found
