"""Takes pictures that an archive sends (C-STORE), answers them, and sends the answers on."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedretina.data.dicom_file import warnings_held_back
from fedretina.dicom.earlier import Answered, keep, with_earlier
from fedretina.dicom.eye_answers import AnsweringModel, write_answers
from fedretina.errors import DataError, SettingsError, StateError, require_package
from fedretina.locks import folder_lock
from fedretina.plurals import counted
from fedretina.prediction.eyes import by_header
from fedretina.prediction.predictor import Answering
from fedretina.prediction.worklist import work_list
from fedretina.storage import read_json, sync, write_bytes

_log = logging.getLogger(__name__)

TAKEN: Mapping[str, str] = MappingProxyType(
    {
        "1.2.840.10008.5.1.4.1.1.77.1.5.1": "OP",  # Ophthalmic Photography 8 Bit Image Storage
        "1.2.840.10008.5.1.4.1.1.77.1.5.2": "OP",  # Ophthalmic Photography 16 Bit Image Storage
        "1.2.840.10008.5.1.4.1.1.77.1.5.4": "OPT",  # Ophthalmic Tomography Image Storage
    }
)
"""SOP classes of pictures that are taken, and the modality of the models that answer them."""
_SENT: Mapping[str, str] = MappingProxyType(
    {
        "1.2.840.10008.5.1.4.1.1.88.33": "reports",  # Comprehensive SR Storage
        "1.2.840.10008.5.1.4.1.1.104.1": "pages",  # Encapsulated PDF Storage
    }
)
_UID = re.compile(r"[0-9][0-9.]{0,63}")
# Status of C-STORE: PS3.4, B.2.3.
_SUCCESS, _NO_ROOM, _NO_FIT, _NOT_UNDERSTOOD = 0x0000, 0xA700, 0xA900, 0xC000
_STORED_WARNED = 0xB
_LOOK_S = 0.2
_RETRY_S = (5.0, 300.0)
_TIDY_S = 60.0
_BROKEN_OFF_S = 600.0  # pynetdicom gives a silent end up after 60 s
_DAY_S = 86400.0
_ARRIVING, _WAITING, _ANSWERED, _FAILED, _EARLIER = "arriving", "waiting", "answers", "failed", "earlier"


class Peer(NamedTuple):
    """Another end: its application entity title, address and port."""

    title: str
    host: str
    port: int

    @classmethod
    def named(cls, text: str) -> Peer:
        """Read AET@HOST:PORT.

        Raises:
            SettingsError: It is not written so.
        """
        found = re.fullmatch(r"([^@\\]{1,16})@([^@:]+):([0-9]{1,5})", text)
        if found is None or not 0 < int(found[3]) < 2**16:
            raise SettingsError(f"{text!r} names no end that answers can be sent to: write AET@HOST:PORT.")
        return cls(found[1].strip(), found[2], int(found[3]))


class _OwnThread(ssl.SSLContext):
    """A server's context whose handshakes happen as the first bytes are read, in the thread of that association.

    pynetdicom wraps a connection in the thread that takes all of them: there, one that stays silent would shut out all
    others.
    """

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:
        """As that of `ssl.SSLContext`, without the handshake."""
        return super().wrap_socket(*args, **{**more, "do_handshake_on_connect": False})


class Tls(NamedTuple):
    """Files (PEM) by which both ends know one another: each shows a certificate of the same authority.

    Attributes:
        certificate: Own certificate, with those between it and the authority.
        key: Its key, without a password.
        authority: Certificates of those whose signature counts; the system's own count for nothing here.
    """

    certificate: Path
    key: Path
    authority: Path

    def context(self, server: bool) -> ssl.SSLContext:
        """What one end of a connection works with: TLS 1.2 or newer, and no other end without a certificate.

        A client also asks that the certificate is that of the host it called.

        Raises:
            SettingsError: A file cannot be read, or they do not belong together.
        """
        context = _OwnThread(ssl.PROTOCOL_TLS_SERVER) if server else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key, lambda: "")  # it would ask on the terminal
        except OSError as error:  # of which ssl.SSLError is one
            raise SettingsError(
                f"TLS cannot work with {self.certificate}, {self.key} and {self.authority} "
                f"({error.strerror or error}): give PEM files, the key that of the certificate and without a password."
            ) from error
        return context


class Receiver:
    """A storage provider (C-STORE SCP) with a queue on disk, and the sender of its answers.

    A picture counts as taken, and its sender is told so, once it lies durably in the queue: whatever kills this process
    after that, it is answered after the next start. A study is answered when nothing of it has come for a while, its
    answers are sent on, and only then are its pictures removed here. What was answered is kept without its pixels, and
    answered again together with pictures of the study that come later, so that no later answer for an eye knows less
    than one before. Answers have UIDs that follow from the pictures and the model, so one that is sent again is the
    same instance. Nothing of a header is logged.

    Args:
        model: What answers.
        folder: The queue; one process holds it.
        title: Own application entity title.
        callers: Titles of those who may send; all others are refused.
        to: Where answers go.
        quiet_s: How long nothing of a study must have come before it is answered, in seconds.
        most_bytes: Most that may wait; a sender is told to try again later beyond it. So much may also be put aside.
        keep_days: How long studies that could not be answered are kept, and what was answered of others, in days.
        tls: Speak TLS, here and where answers go; None for plain DICOM.
        fhir: Folder into which bundles go, for who takes them from there; None for nowhere.
    """

    def __init__(
        self,
        model: Answering,
        folder: Path,
        title: str,
        callers: tuple[str, ...],
        to: Peer,
        quiet_s: float = 10.0,
        most_bytes: int = 20_000_000_000,
        keep_days: float = 30.0,
        tls: Tls | None = None,
        fhir: Path | None = None,
    ) -> None:
        if not callers:
            raise SettingsError("nobody may send to this receiver: name the archive's application entity title.")
        self._model, self._folder, self._title, self._callers, self._to = model, folder, title, callers, to
        self._quiet_s, self._most, self._keep_s, self._fhir = quiet_s, most_bytes, keep_days * _DAY_S, fhir
        self._listens = None if tls is None else tls.context(server=True)
        self._calls = None if tls is None else tls.context(server=False)
        modality = model.operating.settings.images.dicom
        self._kinds = [kind for kind, of in TAKEN.items() if of == modality]
        if not self._kinds:
            raise SettingsError("this model is for no kind of picture that DICOM has: use `fedretina predict`.")
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._later: dict[str, tuple[float, float]] = {}

    def stop(self) -> None:
        """End after what is being done: the association that is open, the study that is being answered."""
        self._stop.set()

    def serve(self, host: str, port: int) -> None:
        """Take and answer until `stop`.

        Raises:
            StateError: The queue is held by another process or cannot be written.
            SettingsError: pynetdicom or highdicom is not installed, or the port cannot be had.
        """
        entity = self._entity()
        from pynetdicom import evt

        with folder_lock(self._folder, 0.0):
            shutil.rmtree(self._folder / _ARRIVING, ignore_errors=True)  # of a process that was killed
            for name in (_ARRIVING, _WAITING, _ANSWERED, _FAILED, _EARLIER):
                (self._folder / name).mkdir(mode=0o700, exist_ok=True)
            with _arriving_in(self._folder / _ARRIVING):
                self._serve(entity, host, port, [(evt.EVT_C_STORE, self.take)])

    def _serve(self, entity: Any, host: str, port: int, handlers: Any) -> None:
        try:
            server = entity.start_server((host, port), False, self._listens, handlers)
        except OSError as error:
            raise SettingsError(f"port {port} cannot be had ({error.strerror}): name another.") from error
        spoken = "in plain DICOM" if self._listens is None else "by TLS"
        _log.info("%s takes pictures %s; %s wait", self._title, spoken, counted(self._bytes(_WAITING)[1], "picture"))
        tidied = 0.0
        try:
            while not self._stop.wait(_LOOK_S):
                if time.monotonic() - tidied >= _TIDY_S or not tidied:
                    self._tidy()
                    tidied = time.monotonic()
                for study in self._due():
                    self._do(study)
        finally:
            server.shutdown()

    def take(self, event: Any) -> int:
        """Put a picture that has come into the queue (the handler of EVT_C_STORE).

        Returns:
            The status of C-STORE: success once the picture is durable.
        """
        from pydicom import dcmread

        came: Path = event.dataset_path
        try:
            with warnings_held_back():
                header = dcmread(came, stop_before_pixels=True, specific_tags=["StudyInstanceUID"])
                instance, study = str(event.request.AffectedSOPInstanceUID), str(header.StudyInstanceUID)
        except Exception:  # noqa: BLE001 - whatever a damaged message makes pydicom raise, the sender hears of it
            _log.warning("a picture was refused: its header cannot be read, or names no study.")
            return _NOT_UNDERSTOOD
        if event.request.AffectedSOPClassUID not in self._kinds or not (
            _UID.fullmatch(instance) and _UID.fullmatch(study)
        ):
            _log.warning("an instance was refused: it is none of the kinds of pictures that are taken.")
            return _NO_FIT
        # A study's name here is a digest: its UID belongs into no path that a log may show.
        folder = self._folder / _WAITING / hashlib.sha256(study.encode()).hexdigest()[:32]
        with self._lock:  # as long as a picture is put there its study is not removed
            try:
                if self._bytes(_WAITING)[0] + came.stat().st_size > self._most:
                    _log.warning("a picture was refused: as many wait as may.")
                    return _NO_ROOM
                sync(came)
                folder.mkdir(mode=0o700, exist_ok=True)
                os.replace(came, folder / f"{hashlib.sha256(instance.encode()).hexdigest()[:32]}.dcm")
                for place in (folder, folder.parent):
                    sync(place)
            except OSError:
                _log.exception("a picture was refused: the queue cannot be written.")
                return _NO_ROOM
        return _SUCCESS

    def _entity(self) -> Any:
        """This end, with the kinds of pictures it takes."""
        require_package(
            "pynetdicom", 'a receiver needs pynetdicom, which is not installed: run `pip install "pynetdicom>=3,<4"`.'
        )
        from pydicom.pixels import get_decoder
        from pynetdicom import AE, ALL_TRANSFER_SYNTAXES, sop_class

        def is_read(syntax: Any) -> bool:
            try:
                return bool(get_decoder(syntax).is_available)
            except NotImplementedError:
                return False

        logging.getLogger("pynetdicom").setLevel(logging.CRITICAL)  # its log shows headers
        entity = AE(ae_title=self._title)
        entity.add_supported_context(sop_class.Verification)
        # What cannot be decompressed here is not offered: the sender then sends it in another form.
        for kind in self._kinds:
            entity.add_supported_context(kind, list(filter(is_read, ALL_TRANSFER_SYNTAXES)))
        entity.require_calling_aet = list(self._callers)
        entity.require_called_aet = True
        return entity

    def _bytes(self, below: str) -> tuple[int, int]:
        """What lies in a folder of the queue: bytes, and pictures."""
        files = [path.stat().st_size for path in (self._folder / below).rglob("*.dcm")]
        return sum(files), len(files)

    def _tidy(self) -> None:
        """Remove what was put aside or kept too long ago, the oldest of too many, and what never came to its end."""
        for path in (self._folder / _ARRIVING).iterdir():
            with suppress(FileNotFoundError):  # it has come to its end just now
                if time.time() - path.stat().st_mtime > _BROKEN_OFF_S:
                    path.unlink()
        self._remove_old(_EARLIER)
        removed = self._remove_old(_FAILED)
        if removed:
            _log.warning(
                "%s removed from %s: what is put aside is kept for %g days, and as much of it as may wait",
                counted(removed, "study was", "studies were"),
                _FAILED,
                self._keep_s / _DAY_S,
            )

    def _remove_old(self, below: str) -> int:
        """Remove studies of a folder of the queue that lie there too long, or the oldest of too many; how many."""
        total, removed = 0, 0
        for study in sorted((self._folder / below).iterdir(), key=lambda path: path.stat().st_mtime, reverse=True):
            total += self._bytes(f"{below}/{study.name}")[0]
            if time.time() - study.stat().st_mtime > self._keep_s or total > self._most:
                shutil.rmtree(study, ignore_errors=True)
                removed += not study.exists()
        return removed

    def _due(self) -> list[Path]:
        """Studies of which nothing has come for a while, and whose answers were not tried too lately."""
        now, found = time.time(), []
        for folder in sorted((self._folder / _WAITING).iterdir()):
            newest = max((path.stat().st_mtime for path in folder.glob("*.dcm")), default=0.0)
            if now - newest >= self._quiet_s and now >= self._later.get(folder.name, (0.0, 0.0))[0]:
                found.append(folder)
        return found

    def _do(self, study: Path) -> None:
        """Answer one study and send the answers; what was done goes, what cannot be answered is put aside."""
        pictures = {path: path.stat().st_mtime_ns for path in study.glob("*.dcm")}
        if not pictures:  # the process was killed between its last picture and its folder
            self._finish(study, pictures, pictures.keys())
            return
        answers, earlier = self._folder / _ANSWERED / study.name, self._folder / _EARLIER / study.name
        _log.info("a study is being answered: %s", counted(len(pictures), "picture"))
        try:
            answered, without = self._answer(study, answers, earlier)
        except StateError:  # a full disk is no fault of the study
            self._put_off(study, "answers could not be written: make room in the queue")
            return
        except Exception as error:  # noqa: BLE001 - of whatever kind: it must not end the receiver, now and at each start
            # Its kind alone: what it was raised from may quote a header.
            kind = type(error.__cause__ or error).__name__
            _log.error(
                "a study cannot be answered (%s), and is put aside in %s for %g days: look at it yourself.",
                kind,
                _FAILED,
                self._keep_s / _DAY_S,
            )
            shutil.rmtree(answers, ignore_errors=True)
            self._finish(study, pictures, aside=pictures.keys())
            self._tidy()
            return
        if why := self._send(answers):
            self._put_off(study, f"answers could not be sent to {self._to.title}: {why}")
            return
        try:
            self._hand_over(answers)
        except StateError:
            self._put_off(study, "bundles could not be written: make room where they go")
            return
        try:
            keep(answered, without, earlier, self._model)
        except StateError:
            self._put_off(study, "what was answered could not be kept: make room in the queue")
            return
        shutil.rmtree(answers, ignore_errors=True)
        aside = {answered.pictures[name].frame.path for name in without} & pictures.keys()
        if aside:
            _log.error(
                "%s of a study cannot be answered, and put aside in %s for %g days: look at it yourself.",
                counted(len(aside), "picture"),
                _FAILED,
                self._keep_s / _DAY_S,
            )
        self._finish(study, pictures, aside)
        _log.info("a study was answered, and the answers were sent: %s", counted(len(pictures), "picture"))

    def _finish(self, study: Path, pictures: Mapping[Path, int], aside: Set[Path]) -> None:
        """Take pictures that were tried out of the queue, some of them put aside beside those that are there already.

        One that came anew meanwhile stays, and is answered anew.

        Args:
            study: Its folder among those that wait.
            pictures: When each had come, in nanoseconds.
            aside: Those that were not answered.
        """
        failed = self._folder / _FAILED / study.name
        try:
            with self._lock:
                for path, at in pictures.items():
                    if path.stat().st_mtime_ns != at:
                        continue
                    if path in aside:
                        failed.mkdir(mode=0o700, exist_ok=True)
                        os.replace(path, failed / path.name)
                        os.utime(failed)  # from now on it is kept
                    else:
                        path.unlink()
                if not any(study.iterdir()):
                    study.rmdir()
        except OSError:
            self._put_off(study, "pictures could not be taken out of the queue: make room, or mend its rights")
            return
        self._later.pop(study.name, None)

    def _put_off(self, study: Path, why: str) -> None:
        """Try a study again after a while, twice as long each time."""
        wait = min(_RETRY_S[1], 2 * self._later.get(study.name, (0.0, _RETRY_S[0] / 2))[1])
        self._later[study.name] = (time.time() + wait, wait)
        _log.warning("%s; tried again in %.0f s", why, wait)

    def _answer(self, study: Path, answers: Path, earlier: Path) -> tuple[Answered, Set[str]]:
        """The way of `fedretina predict --dicom`: the same gate, list and files; with pictures that came before.

        Returns:
            What was answered, and names of those of the pictures that wait to which there is no answer in kind.
        """
        found = self._model.find(study)
        now = Answered(tuple(self._model.predict(study, found.files, found.frames)), found.dicom)
        answered = with_earlier(now, earlier, self._model)
        owners = by_header([row.file for row in answered.rows], answered.pictures).owners
        patients = work_list(answered.rows, owners, self._model.scheme, self._model.ordered)
        if not now.rows:
            raise DataError("the study has no picture that this model is for")
        written = write_answers(answers, patients, answered.pictures, AnsweringModel.of(self._model))
        if not written.answers:
            raise DataError("no picture of the study can be answered in kind")
        return answered, set(written.without) & now.pictures.keys()

    def _send(self, answers: Path) -> str:
        """Send all reports and pages of a study; why the other end has not taken each, "" where it has."""
        from pynetdicom import AE

        entity = AE(ae_title=self._title)
        for kind in _SENT:
            entity.add_requested_context(kind)
        tls = None if self._calls is None else (self._calls, self._to.host)
        association = entity.associate(self._to.host, self._to.port, ae_title=self._to.title, tls_args=tls)
        try:
            return self._closed(association) or _delivered(association, answers)
        finally:
            if association.is_established:
                association.release()

    def _closed(self, association: Any) -> str:
        """Why the other end may not be sent to, "" where it waits for reports and pages."""
        if association.is_rejected:
            return f"it refuses the call: it must know the titles {self._to.title} and {self._title}"
        refused = {context.abstract_syntax for context in association.rejected_contexts}
        if refused:
            return f"it takes no {' or '.join(words for kind, words in _SENT.items() if kind in refused)}"
        if not association.is_established:
            return "nobody answers" if self._calls is None else "nobody answers by TLS"
        return ""

    def _hand_over(self, answers: Path) -> None:
        """Put the FHIR bundles of a study where an integration engine takes them from, each under its own identifier.

        Raises:
            StateError: The disk is full, or the folder not writable.
        """
        for path in sorted(answers.glob("*.json")) if self._fhir is not None else ():
            assert self._fhir is not None
            name = read_json(path)["identifier"]["value"].rpartition(":")[2]
            write_bytes(self._fhir / f"{name}.json", path.read_bytes(), 0o640)


def _delivered(association: Any, answers: Path) -> str:
    """Send each report and page; why the other end has not taken one, "" where it has all."""
    from pydicom import dcmread

    try:
        for path in sorted(answers.glob("*.dcm")):
            with warnings_held_back():
                status = association.send_c_store(dcmread(path))
            if "Status" not in status:
                return "it did not answer to one"
            # A warning (0xB000 and up) says that it is stored, with something altered.
            if status.Status != _SUCCESS and status.Status >> 12 != _STORED_WARNED:
                return f"it refused one (status 0x{status.Status:04X})"
    except RuntimeError:
        return "it has gone"
    except ValueError:  # without its words, which may quote a header
        return "one cannot be written in a form that it takes"
    return ""


@contextmanager
def _arriving_in(folder: Path) -> Iterator[None]:
    """Have what is sent written to files in a folder as it comes, so that no large volume stands in the memory.

    Both settings hold for the whole process: pynetdicom and tempfile know no other.
    """
    from pynetdicom import _config

    before = _config.STORE_RECV_CHUNKED_DATASET, tempfile.tempdir
    _config.STORE_RECV_CHUNKED_DATASET, tempfile.tempdir = True, str(folder)
    try:
        yield
    finally:
        _config.STORE_RECV_CHUNKED_DATASET, tempfile.tempdir = before
