"""`fedretina predict`: a site's model answers a folder of photographs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from fedretina.cli.shared import DEVICE, counted, fail, progress
from fedretina.errors import DataError, FedretinaError
from fedretina.plurals import counted as counts
from fedretina.prediction.phrases import LANGUAGES, Language, Phrases

if TYPE_CHECKING:
    from fedretina.data.dicom_file import DicomFrame
    from fedretina.dicom.eye_answers import Written
    from fedretina.prediction.eyes import Joining
    from fedretina.prediction.photographs import PhotographFolder
    from fedretina.prediction.predictor import Predictor
    from fedretina.prediction.worklist import Patient
    from fedretina.prediction.worklist_page import Pictures

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_MODEL = click.Path(file_okay=False, path_type=Path)  # where none is, reading it says why
_MAPS_AT_ONCE = 32  # photographs whose answers are taken apart together; one by one they cost several times as much


class _Page(NamedTuple):
    """What is wanted of the page: how many photographs it shows, what lies beside it, and its language."""

    most: int
    originals: bool
    maps: bool
    language: Language


@click.command()
@click.argument("images", type=_FOLDER)
@click.option("--model", required=True, type=_MODEL, help="A site's folder of a finished run, such as RUN/SITE/final.")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where the results go.")
@click.option(
    "--patients",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV with the columns file, patient and, where known, eye. Files are named relative to IMAGES.",
)
@click.option(
    "--patient-pattern",
    metavar="REGEX",
    help="Regular expression, searched for in a file's name, with a group (?P<patient>...) and, where the name tells "
    "it, (?P<eye>...).",
)
@click.option(
    "--thumbnails",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="How many photographs the page shows, from the top of the list; about 9 kB each, and a whole copy beside it.",
)
@click.option(
    "--originals/--no-originals",
    default=True,
    show_default=True,
    help="Whether the photographs that the page shows are copied beside it, to be enlarged to their own pixels.",
)
@click.option(
    "--maps/--no-maps",
    default=True,
    show_default=True,
    help="Whether the page can show, for each of these photographs, which parts of it the answer rests on.",
)
@click.option(
    "--dicom",
    is_flag=True,
    help="Also answer DICOM files in kind, in OUT/dicom: for each eye of each study a structured report, a page, and a "
    "FHIR bundle. It takes the extra dicom.",
)
@click.option(
    "--language",
    type=click.Choice(LANGUAGES),
    default="en",
    show_default=True,
    help="Of the page; the tables are the same in all.",
)
@DEVICE
@click.option("--replace", is_flag=True, help="Write over an older list in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def predict(
    images: Path,
    model: Path,
    out: Path,
    patients: Path | None,
    patient_pattern: str | None,
    thumbnails: int,
    originals: bool,
    maps: bool,
    dicom: bool,
    language: Language,
    device: Literal["auto", "cpu", "cuda"],
    replace: bool,
    as_json: bool,
) -> None:
    """Answer all photographs under IMAGES with a site's own model, and say which patients a doctor must see.

    Before each answer the model's gate looks at the photograph: one of another kind is refused, one that cannot be read
    is referred as ungradable, and one unlike this site's photographs is referred with that mark. One that is merely
    unusual for the site is referred too, with its grade, as unusual for this site.

    Writes to --out, what a doctor must see first on top: images.csv, a row per photograph; patients.csv, a row per
    patient; worklist.html, a page for reading that needs no network, with the photographs in worklist_pictures; and
    list.json, by which `fedretina report --decisions` knows the list again. They hold patients' data and stay in the
    hospital.

    On the page a doctor enlarges photographs, asks what another threshold would refer and miss, and decides; decisions
    are kept in the browser and saved as CSV. It says on top when the list speaks for another camera or population.

    DICOM files are found by what is in them, whatever they are called: ophthalmic photographs (modality OP) for a model
    of fundus photographs, OCT (OPT) for one of OCT scans, each frame of a volume for itself. Their headers say whose
    they are. It takes the extra `dicom`.

    A photograph that cannot be read is listed and referred. The two eyes of a patient are joined where the names leave
    no doubt (10_left and 10_right, 10_OD and 10_OS, 10-L and 10-R); otherwise give --patients or --patient-pattern.

    Research software, not a medical device: a doctor decides, whatever it says.
    """
    from fedretina.dicom.eye_answers import require_highdicom

    if patients is not None and patient_pattern is not None:
        fail("--patients and --patient-pattern both say whose photograph it is: give one of them.")
    try:
        if dicom:
            require_highdicom()  # before hours of answers
        record, lines = _predict(
            images,
            model,
            out,
            patients,
            patient_pattern,
            _Page(thumbnails, originals, maps, language),
            device,
            replace,
            dicom,
        )
    except FedretinaError as error:
        fail(str(error))
    click.echo(json.dumps(record, indent=1, sort_keys=True) if as_json else "\n".join(lines))


def _predict(
    images: Path,
    model: Path,
    out: Path,
    patients: Path | None,
    pattern: str | None,
    wanted: _Page,
    device: Literal["auto", "cpu", "cuda"],
    replace: bool,
    in_kind: bool,
) -> tuple[dict[str, Any], list[str]]:
    from fedretina.dicom.eye_answers import FOLDER, AnsweringModel, clear_answers, write_answers
    from fedretina.prediction.decisions import LIST_FILE, list_record
    from fedretina.prediction.drift import drift
    from fedretina.prediction.photographs import FULL_FOLDER, clear_copies
    from fedretina.prediction.worklist import stops, work_list, write_images, write_patients
    from fedretina.prediction.worklist_page import drift_words, summary_words, worklist_page
    from fedretina.report.card_words import drawn_note, verdict_words
    from fedretina.report.render import write_page
    from fedretina.storage import write_json

    predictor = _of_a_run(model, device)
    photographs = predictor.find(images)
    files = photographs.files
    if not files:
        raise DataError(_nothing(images, predictor, photographs))
    joining = _joined(photographs, patients, pattern)
    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)  # it will hold patients' images
    except OSError as error:
        raise DataError(f"{out} cannot be made ({error}): choose a folder that you may write to.") from error
    paths = {name: out / name for name in ("images.csv", "patients.csv", "worklist.html", LIST_FILE)}
    older = [name for name, path in paths.items() if path.exists()]
    if older and not replace:
        raise DataError(
            f"{out} holds an older list already ({', '.join(older)}): name another folder, or give --replace to have "
            "it written over."
        )
    with progress("photographs") as tell:
        rows = counted(predictor.predict(images, files, photographs.frames), len(files), tell)
        found = work_list(rows, joining.owners, predictor.scheme, predictor.ordered)
    ordered = [one.row.file for patient in found for one in patient.photographs]
    english = Phrases()
    notes = [*predictor.notes, *joining.how, *_not_looked_at(photographs, predictor, english)]
    if len(ordered) > wanted.most:
        notes.append(english("said.shown", shown=wanted.most, all=len(ordered)))
    clear_copies(out / FULL_FOLDER)
    clear_answers(out / FOLDER)
    sources = {file: photographs.frames.get(file, images / file) for file in files}
    write_images(paths["images.csv"], found, predictor.scheme)
    write_patients(paths["patients.csv"], found, predictor.scheme)
    pictures = _pictures(sources, found, out, wanted, predictor)  # which may fill the disk; the tables are there then
    told = drift(predictor.card, found)
    listed = list_record(paths["images.csv"], predictor.card)
    write_json(paths[LIST_FILE], listed)
    page = worklist_page(
        predictor.card,
        predictor.scheme,
        found,
        pictures,
        notes,
        told,
        listed["list"],
        wanted.language,
        predictor.ordered,
    )
    write_page(paths["worklist.html"], page)
    # Last: whatever comes between, the list is there.
    kinds = write_answers(out / FOLDER, found, photographs.dicom, AnsweringModel.of(predictor)) if in_kind else None
    record = {
        "notice": predictor.card["notice"],
        "synthetic_model": predictor.card["synthetic"],
        "model": predictor.card.get("model"),
        "verdict": verdict_words(predictor.card),
        "model_digest": predictor.card["model_digest"],
        "threshold": predictor.threshold,
        "photographs": len(files),
        "patients": len(found),
        "referred": sum(patient.referral.refer for patient in found),
        "without_answer": sum(one.row.grade is None for patient in found for one in patient.photographs),
        "stopped": dict(Counter(why for patient in found for why in stops(patient))),
        "left_out": dict(photographs.left_out),
        "left_out_dicom": dict(photographs.other_dicom),
        "drift": drift_words(told, english) if told.found else [],
        "joining": list(joining.how),
        "dicom": None if kinds is None else _in_kind(kinds, out / FOLDER),
        "written": {name: str(path) for name, path in paths.items()},
    }
    warning = [english("drift.found"), *drift_words(told, english)] if told.found else []
    lines = [*warning, *summary_words(found, english), *notes, *(f"{name}: {path}" for name, path in paths.items())]
    lines += [*_said_in_kind(kinds, out / FOLDER), *verdict_words(predictor.card), *drawn_note(predictor.card)]
    if predictor.card["synthetic"]:
        lines.append("This model learned from drawn images. What it says of real ones means nothing.")
    return record, [*lines, predictor.card["notice"]]


def _of_a_run(model: Path, device: Literal["auto", "cpu", "cuda"]) -> Predictor:
    """The model, whose card has the counts of patients that a work list tells of."""
    from fedretina.export.card import NOT_TOLD
    from fedretina.prediction.predictor import Predictor

    found = Predictor.load(model, device)
    if found.card["run"] == NOT_TOLD:
        raise DataError(
            f"{model} is an export, which tells nothing of the patients that a work list is held against: name "
            "RUN/SITE/final of the finished run, or ask the export by fedretina.load (docs/export.md)."
        )
    return found


def _in_kind(kinds: Written, folder: Path) -> dict[str, Any]:
    return {"answers": kinds.answers, "without": len(kinds.without), "folder": str(folder)}


def _said_in_kind(kinds: Written | None, folder: Path) -> list[str]:
    if kinds is None:
        return []
    told = [f"{folder}: {counts(kinds.answers, 'eye')} answered in kind."]
    if kinds.without:
        left = counts(len(kinds.without), "DICOM picture")
        told.append(
            f"{left} not answered in kind: the file names no study or instance, or its header cannot be read or holds "
            "what no report may say."
        )
    return told


def _pictures(
    sources: Mapping[str, Path | DicomFrame],
    patients: Sequence[Patient],
    out: Path,
    wanted: _Page,
    predictor: Predictor,
) -> Pictures:
    """Small copies, whole copies, and what answers rest on, of the first photographs of the list."""
    import numpy as np
    import torch

    from fedretina.prediction.photographs import FULL_FOLDER, full_copy, seen_copy, thumbnail
    from fedretina.prediction.worklist_page import Pictures

    small, full, seen, maps = {}, {}, {}, {}
    asked: list[tuple[str, int]] = []
    rows = [photograph.row for patient in patients for photograph in patient.photographs]
    for number, row in enumerate(rows[: wanted.most], 1):
        file = row.file
        shown = thumbnail(sources[file])
        if shown is None:
            continue
        small[file] = shown
        if wanted.originals or wanted.maps:
            (out / FULL_FOLDER).mkdir(mode=0o700, exist_ok=True)
        if wanted.originals:
            name = full_copy(sources[file], out / FULL_FOLDER, number)
            if name is not None:
                full[file] = f"{FULL_FOLDER}/{name}"
        if wanted.maps and row.grade is not None:
            asked.append((file, number))
    prepared = predictor.pipeline()
    for begin in range(0, len(asked), _MAPS_AT_ONCE):
        some = [(file, number, prepared(sources[file])) for file, number in asked[begin : begin + _MAPS_AT_ONCE]]
        found = predictor.evidence(torch.from_numpy(np.stack([pixels for _, _, pixels in some])))
        for (file, number, pixels), rests in zip(some, found, strict=True):
            if rests is not None:
                maps[file] = rests
                seen[file] = f"{FULL_FOLDER}/{seen_copy(pixels, out / FULL_FOLDER, number)}"
    return Pictures(small, full, FULL_FOLDER, seen, maps)


def _joined(photographs: PhotographFolder, patients: Path | None, pattern: str | None) -> Joining:
    from fedretina.prediction.eyes import by_header, by_list, by_pattern

    if patients is None and pattern is None:
        return by_header(photographs.files, photographs.dicom)
    # Whoever names a volume means all its frames.
    files = [photographs.dicom[file].file if file in photographs.dicom else file for file in photographs.files]
    return by_list(files, patients) if patients is not None else by_pattern(files, pattern or "")


def _nothing(images: Path, predictor: Predictor, photographs: PhotographFolder) -> str:
    from fedretina.prediction.photographs import OF_SIGNALS, SUFFIXES

    kind, endings = ("recording", OF_SIGNALS) if predictor.of_signals else ("photograph", SUFFIXES)
    modality = predictor.operating.settings.images.dicom
    instead = ", ".join(
        listed for listed in (_listed(photographs.left_out), _listed(photographs.other_dicom, "DICOM ")) if listed
    )
    return (
        f"{images} holds no {kind}: it looks for names that end in {', '.join(sorted(endings))}"
        + (f", and for DICOM files of modality {modality}" if modality else "")
        + (f", and found {instead}." if instead else ".")
    )


def _not_looked_at(photographs: PhotographFolder, predictor: Predictor, say: Phrases) -> list[str]:
    found = [say("said.left_out", which=_listed(photographs.left_out))] if photographs.left_out else []
    if photographs.other_dicom:
        modality = predictor.operating.settings.images.dicom
        found.append(say("said.left_out_dicom", modality=modality, which=_listed(photographs.other_dicom)))
    return found


def _listed(left_out: Mapping[str, int], mark: str = "") -> str:
    return ", ".join(f"{count} {mark}{kind}" for kind, count in left_out.items())
