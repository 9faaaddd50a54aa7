"""What the project demands of a reader of a public set, as one call."""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from pathlib import Path

from fedretina.data.import_plan import Plan, plan_import
from fedretina.data.manifest import require_inside
from fedretina.data.readers import reader
from fedretina.data.readers.survey import ImportSettings, PublicSet, Survey
from fedretina.errors import FedretinaError
from fedretina.settings.images import modality_settings

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WORDS = ("title", "layout", "grades", "patients", "splits", "rules")


def check_reader(public_set: PublicSet, root: Path, settings: ImportSettings | None = None) -> None:
    """Check a reader over a folder in the layout of its set; returns when it holds all that is demanded.

    It looks whether the reader describes itself; names images by paths that stay inside their folder, each with a label
    of the scheme and a patient; gives the same answer twice; says nothing of a path or of a patient in its warnings and
    reasons; and refuses an empty folder with a sentence. Once the reader is found by its name (`fedretina data import
    NAME`), the whole import is planned too, and no patient may be in two splits.

    Args:
        public_set: The set, as its file ends with it.
        root: A folder in its layout: a small one that a test writes will do. Its names and patients should not be words
            that occur in the reader's sentences.
        settings: How it is imported; the defaults where None.

    Raises:
        AssertionError: Something that is demanded does not hold; it says what.
        DataError: The reader refuses the folder.
        SettingsError: The reader refuses the settings.
    """
    settings = settings or ImportSettings()
    _describes_itself(public_set)
    with tempfile.TemporaryDirectory() as folder:
        surveys = []
        for turn in ("one", "two"):
            out = Path(folder) / turn
            out.mkdir()
            # Keyed names of two folders are alike only under one key.
            if settings.salt is None and (public_set.keyed or settings.hash_patients):
                settings = settings.model_copy(update={"salt": Path(folder) / "salt"})
            surveys.append(public_set.survey(root, settings, out))
            _holds_together(surveys[-1], root)
        first, second = surveys
        demand(first.photographs == second.photographs, "it gives other images, or another order, the second time.")
        demand(
            (first.scheme, first.left_out, first.warnings) == (second.scheme, second.left_out, second.warnings),
            "it gives another scheme, other reasons or other warnings the second time.",
        )
        empty = Path(folder) / "empty"
        empty.mkdir()
        _refuses(public_set, empty, settings, Path(folder))
        if _is_known(public_set):
            plans = [plan_import(public_set.name, root, Path(folder) / turn, settings) for turn in ("one", "two")]
            demand(plans[0].rows == plans[1].rows, "its import gives other rows the second time.")
            _splits_by_patient(plans[0])


def demand(holds: bool, sentence: str) -> None:
    """Raise AssertionError with a sentence where something does not hold; unlike `assert`, under -O too."""
    if not holds:
        raise AssertionError(sentence)


def _describes_itself(public_set: PublicSet) -> None:
    demand(_NAME.fullmatch(public_set.name) is not None, f"its name {public_set.name!r} is not of a-z, 0-9 and '_'.")
    empty = [word for word in _WORDS if not getattr(public_set, word).strip()]
    demand(not empty, f"it says nothing of {empty}: write a sentence for the documentation.")
    said = public_set.modality
    try:
        _ = said is None or modality_settings(said)
    except FedretinaError as error:
        raise AssertionError(f"it names a modality that nobody knows: {error}") from error
    strangers = [option for option in public_set.options if option not in ImportSettings.model_fields]
    demand(not strangers, f"its options {strangers} are no settings of an import.")


def _holds_together(survey: Survey, root: Path) -> None:
    """Files inside their folder and there, labels in the scheme, a patient each, and sentences that tell neither."""
    images = root if survey.images is None else survey.images
    demand(bool(survey.photographs), "it finds no image.")
    labelled = [photograph for photograph in survey.photographs if photograph.label]
    scheme = survey.grading()
    demand(scheme is not None or not labelled, "images have labels, and it gives no scheme.")
    for photograph in survey.photographs:
        require_inside(photograph.file)
        demand((images / photograph.file).is_file(), f"{photograph.file!r} is no file below its folder of images.")
        demand(
            bool(photograph.patient.strip()), f"{photograph.file!r} has no patient: where none is known, name itself."
        )
        part = photograph.part
        demand(part in (None, "train", "val", "test"), f"the part of {photograph.file!r} is {part!r}.")
        if scheme is not None and photograph.label:
            scheme.index(photograph.label)  # raises with what is allowed
    sentences = [*survey.warnings, *(row.reason for row in survey.left_out)]
    for sentence in sentences:
        told = [str(place) for place in (root, images) if str(place) in sentence]
        demand(not told, f"a sentence for the site's record names a path: {sentence!r}.")
        words = set(re.findall(r"[\w./-]+", sentence))
        names = {name for photograph in survey.photographs for name in (photograph.file, photograph.patient)}
        named = sorted(words & {name for name in names if not name.isdigit()})
        demand(not named, f"a sentence for the site's record names {named[:3]}: count them, and name none.")


def _refuses(public_set: PublicSet, empty: Path, settings: ImportSettings, out: Path) -> None:
    try:
        public_set.survey(empty, settings, out)
    except FedretinaError as error:
        demand(str(error).endswith((".", ")", "?")) and len(str(error)) > 20, f"it says no sentence: {str(error)!r}.")
        return
    except Exception as error:
        raise AssertionError(f"it fails on an empty folder with {type(error).__name__}: raise DataError.") from error
    raise AssertionError("it reads an empty folder: raise DataError that says what is missing and how to mend it.")


def _is_known(public_set: PublicSet) -> bool:
    try:
        return reader(public_set.name) is public_set
    except FedretinaError:
        return False


def _splits_by_patient(plan: Plan) -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for row in plan.rows:
        homes[row.patient].add(row.split)
    torn = sum(len(splits) > 1 for splits in homes.values())
    demand(not torn, f"{torn} patients are in more than one split.")
