"""`fedretina receive`: pictures that an archive sends are answered, and the answers sent on."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from typing import Literal

import click

from fedretina.cli.shared import DEVICE, fail, json_lines
from fedretina.errors import FedretinaError, SettingsError

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DATE = "%Y-%m-%dT%H:%M:%S%z"


class LogLine(logging.Formatter):
    """A line of the log as JSON: when, how serious, and what."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = self.formatTime(record, _DATE)
        return json.dumps({"time": at, "level": record.levelname.lower(), "said": record.getMessage()})


@click.command()
@click.option("--model", required=True, type=_FOLDER, help="A site's folder of a finished run, such as RUN/SITE/final.")
@click.option("--queue", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where pictures wait.")
@click.option("--aet", default="FEDRETINA", show_default=True, help="Own application entity title.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=11112, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option(
    "--from",
    "callers",
    required=True,
    multiple=True,
    metavar="AET",
    help="Title of an archive or camera that may send; may be given again. All others are refused.",
)
@click.option("--send-to", required=True, metavar="AET@HOST:PORT", help="Where reports and pages are sent.")
@click.option(
    "--quiet",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds without a further picture after which a study is answered.",
)
@click.option(
    "--most",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Gigabytes of pictures that may wait; beyond them senders are told to try again.",
)
@click.option(
    "--keep-failed",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Days for which studies that cannot be answered are kept, and answers without their pixels, with which later "
    "pictures of a study are answered; the oldest go earlier beyond --most.",
)
@click.option(
    "--fhir-to",
    type=_FOLDER,
    help="Folder for the FHIR bundles of answers that were sent, for an integration engine that takes them from there.",
)
@click.option("--tls-cert", type=_FILE, help="Own certificate (PEM). With it all is TLS, and both ends must show one.")
@click.option("--tls-key", type=_FILE, help="The certificate's key (PEM), without a password.")
@click.option("--tls-ca", type=_FILE, help="Certificates (PEM) of the authority whose signature counts.")
@DEVICE
def receive(
    model: Path,
    queue: Path,
    aet: str,
    bind: str,
    port: int,
    callers: tuple[str, ...],
    send_to: str,
    quiet: float,
    most: float,
    keep_failed: float,
    fhir_to: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    device: Literal["auto", "cpu", "cuda"],
) -> None:
    """Take ophthalmic DICOM pictures by C-STORE, answer them with a site's own model, and send the answers on.

    It does what `fedretina predict --dicom` does, for each study once nothing of it has come for --quiet seconds: the
    same gate, the same report and page. A picture is confirmed once it lies durably in --queue; after a kill or a power
    cut it is answered when this runs again. Answers that cannot be sent are tried again. A picture that comes after the
    answers of its study is answered together with those before. Studies that cannot be answered are put aside in
    QUEUE/failed for --keep-failed days.

    Without --tls-cert, --tls-key and --tls-ca it speaks plain DICOM: keep it on the hospital's own network, or on the
    archive's machine. It takes the extra `dicom`, and runs until SIGTERM or Ctrl-C. On the error stream it says when it
    begins with a study, when its answers have been sent, and what it refuses; under `--json-lines` as JSON.

    Research software, not a medical device: a doctor decides, whatever it says.
    """
    from fedretina.dicom.eye_answers import require_highdicom
    from fedretina.dicom.receiver import Peer, Receiver, Tls
    from fedretina.prediction.predictor import Predictor

    told = logging.StreamHandler(sys.stderr)
    told.setFormatter(LogLine() if json_lines() else logging.Formatter("%(asctime)s %(levelname)s %(message)s", _DATE))
    logging.basicConfig(handlers=[told], level=logging.INFO)
    try:
        require_highdicom()
        tls = None
        if tls_cert and tls_key and tls_ca:
            tls = Tls(tls_cert, tls_key, tls_ca)
        elif tls_cert or tls_key or tls_ca:
            raise SettingsError("TLS needs all of --tls-cert, --tls-key and --tls-ca: give the others too.")
        receiver = Receiver(
            Predictor.load(model, device),
            queue,
            aet,
            callers,
            Peer.named(send_to),
            quiet,
            round(most * 1e9),
            keep_failed,
            tls,
            fhir_to,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: receiver.stop())
        receiver.serve(bind, port)
    except FedretinaError as error:
        fail(str(error))
