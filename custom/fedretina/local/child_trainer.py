"""A site whose work is done in a process of its own, one an order: its death costs one answer and nothing else.

A process of a job that dies takes the whole job with it, whatever the quorum (FLARE 2.9). Training is what runs out of
memory or crashes in native code, so it may be put into a child: the kernel is told to choose the child when memory is
short, and the parent turns its death into an error like any other. Order and answer go through files in the site's own
folder, its last word through a pipe; the bits are those of a site in the same process.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict

from fedretina import errors
from fedretina.data.site_data import load_site_data
from fedretina.errors import FedretinaError, StoppedError, TrainingError
from fedretina.exchange.encryption import cipher_for
from fedretina.exchange.noise import noise_key
from fedretina.exchange.payload import Order, Payload, Stamp, Tensors
from fedretina.local.gpu import take_gpu
from fedretina.local.heads_from_sums import SiteNoise
from fedretina.local.site import Site
from fedretina.settings.experiment import Experiment
from fedretina.settings.gpu import GpuSettings
from fedretina.settings.policy import SumsNoise
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import read_tensors, write_tensors

_log = logging.getLogger(__name__)
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_LOOK_S = 0.05
_READ_S = 5.0


class ChildTrainer:
    """Answers the server's orders like `Site`, each in a new child process.

    The child dies with this process (on Linux, by the kernel), and holds the folder's lock until it is dead.

    Args:
        recipe: What the child builds its site from.
        lock: Descriptor of the lock on the site's folder, which the child inherits; None where nobody holds one.
    """

    def __init__(self, recipe: SiteRecipe, lock: int | None = None) -> None:
        self._recipe = recipe
        self._lock = lock
        self._box = recipe.folder / "child"

    def handle(self, order: Order, tensors: Tensors, stop: Callable[[], bool] = lambda: False) -> Payload:
        """Do what the server asks and say what may leave; see `Site.handle`.

        Args:
            order: The server's order.
            tensors: The aggregate that came with it.
            stop: Asked 20 times per second; True ends the child.

        Raises:
            StoppedError: `stop` said so.
            TrainingError: The child died; nothing of its work is kept.
            FedretinaError: What the site itself raises.
        """
        asked, answered = self._box / "order.safetensors", self._box / "answer.safetensors"
        shutil.rmtree(self._box, ignore_errors=True)
        header = {"recipe": self._recipe.model_dump_json(), "order": order._asdict()}
        try:
            write_tensors(asked, tensors, header, durable=False)
            record = self._run([str(os.getpid()), str(asked), str(answered)], order, stop)
            if "error" in record:
                raise _raised(record)
            found, _ = read_tensors(answered)
        finally:
            shutil.rmtree(self._box, ignore_errors=True)
        return Payload(found, record["scalars"], Stamp(*record["stamp"]), record["release"])

    def _run(self, arguments: list[str], order: Order, stop: Callable[[], bool]) -> dict[str, Any]:
        path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
        try:
            # Started by this thread, which waits for it: the kernel's signal comes when the starting thread ends.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedretina.local.trainer_process", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=() if self._lock is None else (self._lock,),
            )
        except OSError as error:
            raise TrainingError(f"the trainer could not be started: {os.strerror(error.errno or 0)}.") from error
        told: list[bytes] = []
        readers = [
            threading.Thread(target=_relay, args=(process.stderr,), daemon=True),
            threading.Thread(target=lambda pipe: told.append(pipe.read()), args=(process.stdout,), daemon=True),
        ]
        for reader in readers:
            reader.start()
        code: int | None = None
        try:
            while code is None:
                if stop():
                    raise StoppedError(f"the run was aborted in {order.stamp.phase} round {order.stamp.round}.")
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_LOOK_S)
        finally:
            process.kill()
            process.wait()
            for reader in readers:
                reader.join(_READ_S)
        if code != 0 or not any(told):
            raise TrainingError(_how_it_ended(code))
        return dict(json.loads(told[0]))


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"the trainer ended with code {code} and no answer: the site's own log says more."
    number = -code
    hint = ", perhaps out of memory" if number in (signal.SIGKILL, signal.SIGABRT) else ""
    return f"the trainer was killed by signal {number}{hint}; nothing of this round is kept."


def _raised(record: Mapping[str, Any]) -> FedretinaError:
    kind = getattr(errors, str(record["error"]), None)
    if isinstance(kind, type) and issubclass(kind, FedretinaError):
        error = kind(record["says"]).telling(str(record["tells"]))
        for note in record.get("notes", ()):
            error.add_note(note)
        return error
    _log.warning("the trainer failed:\n%s", record["says"])
    sentence = f"the site's trainer failed with {record['error']}."
    return TrainingError(sentence).telling(sentence)


def _relay(lines: IO[bytes]) -> None:
    """Pass on what the child says; never as an error, since FLARE may send those to the server."""
    for line in lines:
        level, _, said = line.decode(errors="replace").rstrip().partition(" ")
        if level in ("INFO", "WARNING"):
            _log.log(getattr(logging, level), "trainer: %s", said)
        elif level or said:
            _log.warning("trainer: %s", f"{level} {said}".rstrip())


class SiteRecipe(BaseModel):
    """Everything that a site is made of; it never leaves the machine.

    Attributes:
        experiment: The run's settings, with this machine's own path to a weights file.
        site: Name of the site.
        data: Where its data are.
        folder: Its own folder of the run.
        cache: Folder of the image cache where the data settings name none.
        he_keys: The site's own file of keys, where the job encrypts.
        sums_noise: The site's noise on sums, if any.
        small_grades: Whether encrypted sums hold grades of few patients too.
        noise_key: File of the site's secret for its noise.
        gpu: The card that the process which builds the site takes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    experiment: Experiment
    site: str
    data: SiteDataSettings
    folder: Path
    cache: Path
    he_keys: Path | None = None
    sums_noise: SumsNoise | None = None
    small_grades: bool = False
    noise_key: Path | None = None
    gpu: GpuSettings = GpuSettings()

    def build(self) -> Site:
        """Open the data and build the site.

        Raises:
            FedretinaError: The data or the settings cannot be used.
        """
        experiment = self.experiment
        take_gpu(self.gpu, experiment.training)
        data = load_site_data(
            self.site,
            self.data,
            experiment.images,
            experiment.seed,
            self.cache,
            experiment.supervised,
            trains=experiment.trains,
        )
        cipher = cipher_for(experiment.exchange, self.he_keys, private=True, sums=experiment.sums)
        noise = None
        if self.sums_noise is not None and self.noise_key is not None and experiment.sums is not None:
            noise = SiteNoise(self.sums_noise, noise_key(self.noise_key))
        return Site(experiment, data, self.folder, cipher, noise, self.small_grades)
