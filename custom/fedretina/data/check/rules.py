"""What a check of a site's data can find, how grave it is and how to mend it; and the findings of one check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
EXIT_CODES: Mapping[Severity, int] = MappingProxyType({"error": 2, "warning": 1, "note": 0})


class Code(NamedTuple):
    """One kind of finding.

    Attributes:
        severity: "error" means that training would refuse the data or be wrong, "warning" that somebody should
            look, "note" that it is as well to know.
        meaning: What it says, in a sentence.
        mend: What to do about it, in a sentence or two.
    """

    severity: Severity
    meaning: str
    mend: str


CODES: Mapping[str, Code] = MappingProxyType(
    {
        "file_name_refused": Code(
            "error",
            "The name of a file is empty, absolute or leads out of the image folder.",
            "Write the path relative to the image folder, with '/' and without '..'.",
        ),
        "file_listed_twice": Code(
            "error",
            "A file stands in more than one row.",
            "Keep one row per file; where the grades differ, ask the doctor which is right.",
        ),
        "label_outside_scheme": Code(
            "error",
            "A label is empty or no grade of the site's grading scheme.",
            "Correct the label, choose the scheme that the site grades by, or add the label to the scheme.",
        ),
        "label_none": Code(
            "note",
            "An image of train has no label, so it counts for label-free pre-training alone.",
            "Nothing where that is meant; else write its label.",
        ),
        "split_unknown": Code("error", "The split is not train, val or test.", "Write one of the three words."),
        "patient_empty": Code(
            "error",
            "A row names no patient.",
            "Write the patient's pseudonym; where none is known, repeat the name of the file.",
        ),
        "patient_in_two_splits": Code(
            "error",
            "Images of one patient are in more than one split, so the test would be no test.",
            "Put all images of a patient into one split.",
        ),
        "column_odd": Code(
            "error",
            "A cell of an optional column that the site file names (`data.columns`) holds none of the column's words, "
            "or says another thing of a patient than a row before; or the column holds too many words of your own.",
            "Write one of the words that the page on manifests lists, leave the cell empty where nothing is known, or "
            "take the column out of `data.columns`.",
        ),
        "split_empty": Code(
            "error",
            "A split has no image that can be used.",
            "Put images of other patients into it; train, val and test each need some.",
        ),
        "one_grade_in_train": Code(
            "error",
            "All training images have one grade, so there is nothing to learn.",
            "Add training images of another grade.",
        ),
        "file_missing": Code(
            "warning",
            "A listed file is not there. An error where the site file says `bad_files: refuse`, or where more than "
            "1 image in 20 is missing or unreadable; else training leaves the image out.",
            "Mount the image folder, mend the name (capital letters count), or remove the row.",
        ),
        "file_unreadable": Code(
            "warning",
            "A file is cut off, damaged or no image. An error in the same cases as a missing file.",
            "Copy it again from its source, or remove the row.",
        ),
        "several_pages": Code(
            "warning",
            "A TIFF, GIF, WebP or PNG file holds more than one picture, so nobody can tell which was graded; training "
            "leaves it out. An error in the same cases as a missing file.",
            "Export each picture as a file of its own, and list those that were graded.",
        ),
        "bit_depth_odd": Code(
            "error",
            "Most images of 16 bits use less than a quarter of their range, as pictures of 10, 12 or 14 bits do that "
            "were saved without scaling: they come out nearly black.",
            "Export them with 8 bits, or scale all by one factor to the full range of 16 bits: by 16 for 12 bits.",
        ),
        "duplicate_with_other_label": Code(
            "error",
            "Images with equal pixels have different grades.",
            "Keep one of them, with the grade that the doctor confirms.",
        ),
        "duplicate_across_splits": Code(
            "error",
            "Images with equal pixels are in different splits, so the test would be no test.",
            "Keep one of them, and look whether two pseudonyms are one patient.",
        ),
        "duplicate_in_split": Code(
            "warning",
            "Images with equal pixels are in one split, so it counts one eye twice.",
            "Keep one of them.",
        ),
        "near_duplicate": Code(
            "warning",
            "Two images look like the same photograph (resized, saved again, brightened or slightly cut) and differ "
            "in patient, grade or split.",
            "Look at the pair. Where it is one photograph keep one; where it is one eye give both the same patient.",
        ),
        "patient_spelled_twice": Code(
            "warning",
            "Names of patients differ only in capital letters or blanks, so they count as one patient.",
            "Where they are one patient, write one name; where they are two, give one of them another name.",
        ),
        "grade_missing": Code(
            "warning",
            "A grade of the scheme has no image in a split.",
            "Move patients between the splits, or take the grade out of the scheme if the site never gives it.",
        ),
        "grade_rare_in_test": Code(
            "warning",
            "A grade has fewer than 5 images in test, so its figures say little.",
            "Put more patients of this grade into test.",
        ),
        "image_small": Code(
            "warning",
            "The retina, or the OCT scan, is smaller than nine tenths of the image that the network takes, so it is "
            "enlarged.",
            "Export the images at full resolution, or ask for a run with smaller images.",
        ),
        "size_odd": Code(
            "warning",
            "The image's longer side is under a quarter or over four times that of the site's median image.",
            "See whether it is a thumbnail, or no photograph of the retina.",
        ),
        "aspect_odd": Code(
            "warning",
            "The image or its retina is more than twice as wide as high, an OCT scan more than four times, or the "
            "reverse.",
            "See whether it is a strip, a montage or a squeezed copy; keep single photographs of the retina.",
        ),
        "no_field_of_view": Code(
            "warning",
            "No retina on a dark border is found, so the image is not cropped. Harmless where images were cropped "
            "closely before.",
            "See whether it is a photograph of the retina.",
        ),
        "image_blank": Code("warning", "The image has one colour and shows nothing.", "Remove it, or export it again."),
        "image_grey": Code(
            "warning",
            "The image is grey. The network was made for colour.",
            "Export it in colour; take red-free, infrared and angiography images, and OCT scans, out.",
        ),
        "image_coloured": Code(
            "warning",
            "The OCT scan has colours, and a model for scans answers none that has.",
            "See whether it is a photograph, a map or a scan in false colours; export scans in grey.",
        ),
        "channels_swapped": Code(
            "warning",
            "The retina is bluer than red: red and blue may be exchanged.",
            "Export it again with another program, in the order red, green, blue.",
        ),
        "image_dark": Code(
            "warning", "The retina is nearly black.", "Have a doctor see whether it can be graded, else remove it."
        ),
        "image_overexposed": Code(
            "warning",
            "The retina is nearly white, or a fifth of it is.",
            "Have a doctor see whether it can be graded, else remove it.",
        ),
        "phantom_among_images": Code(
            "error",
            "An image was drawn by `fedretina data phantom` and shows no patient, while others do.",
            "Remove its row; keep drawn images in a folder of their own.",
        ),
        "phantom_site": Code(
            "warning",
            "The site file names no manifest, so the site would take part with synthetic images.",
            "Name the manifest in the site file.",
        ),
        "limited": Code(
            "note",
            "The site file sets a limit, so training uses fewer images than the manifest lists.",
            "Remove `limit` for a real run.",
        ),
        "patients_unknown": Code(
            "note",
            "Every image is a patient of its own. If patients have several images, figures will look too good.",
            "Give both eyes and all visits of a patient one pseudonym.",
        ),
        "referable_not_set": Code(
            "note",
            "The scheme does not say which grades a doctor must see, so no eye is referred for its grade, and no "
            "figures about referral can be made. An error where the site file asks for a promise (`data.promise`): "
            "none can be given.",
            "Add `referable` to the grading scheme.",
        ),
        "file_not_listed": Code(
            "note",
            "Image files lie in the image folder that no row names; they take no part.",
            "Add rows for them if they belong to the site.",
        ),
        "pixels_not_checked": Code(
            "note",
            "The images were not opened, so damage, duplicates and colours were not looked at.",
            "Check again without --quick before joining.",
        ),
    }
)


def findings_table() -> str:
    """The table of all codes in Markdown, for the page of the hospitals."""
    lines = ["| finding | how grave | what it means | how to mend it |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {code.severity} | {code.meaning} | {code.mend} |" for name, code in CODES.items()]
    return "\n".join(lines)


KEPT = 50  # cases of a finding that are kept; the total is always told


@dataclass(frozen=True)
class Finding:
    """One thing that the check found.

    Attributes:
        code: A key of `CODES`.
        severity: As in `CODES`, or graver.
        count: How many cases there are.
        where: The first of them (at most `KEPT`), each a file, a row or a patient in words.
        files: Files to look at for each case, for the page; at most `KEPT` cases.
    """

    code: str
    severity: Severity
    count: int
    where: tuple[str, ...]
    files: tuple[tuple[str, ...], ...] = ()

    @property
    def meaning(self) -> str:
        """What the code says, in plain text."""
        return CODES[self.code].meaning.replace("`", "'")

    @property
    def mend(self) -> str:
        """What to do about it, in plain text."""
        return CODES[self.code].mend.replace("`", "'")

    def record(self) -> dict[str, Any]:
        """Plain values for check.json."""
        return {
            "code": self.code,
            "severity": self.severity,
            "count": self.count,
            "where": list(self.where),
            "meaning": self.meaning,
            "mend": self.mend,
        }


class Findings:
    """Collects findings; those without a case vanish."""

    def __init__(self) -> None:
        self._found: dict[str, Finding] = {}

    def add(
        self, code: str, where: Sequence[str], files: Sequence[Sequence[str]] = (), severity: Severity | None = None
    ) -> None:
        """Note the cases of a code.

        Args:
            code: A key of `CODES`.
            where: All cases in words; none means that there is nothing to find.
            files: Files to look at for each case.
            severity: Where it is not the code's own.
        """
        if where:
            grave = severity or CODES[code].severity
            shown = tuple(tuple(group) for group in files[:KEPT])
            self._found[code] = Finding(code, grave, len(where), tuple(where[:KEPT]), shown)

    def __iter__(self) -> Iterator[Finding]:
        """Findings, the grave ones first, then in the order of `CODES`."""
        order = list(CODES)
        return iter(
            sorted(self._found.values(), key=lambda one: (SEVERITIES.index(one.severity), order.index(one.code)))
        )
