"""What a site's images are, so that a site of another kind takes no part in a job."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from fedretina.data.scheme import OCT_PRESETS, PRESETS, GradingScheme
from fedretina.errors import SettingsError

Modality = Literal["fundus", "oct"]
"""A kind of image; a new one joins here, in `IN_WORDS` and among the settings of `data.image_settings`."""

IN_WORDS: Mapping[str, str] = MappingProxyType({"fundus": "fundus photographs", "oct": "OCT scans"})


def preset_modality(scheme: GradingScheme | str | None) -> Modality | None:
    """What a grading scheme grades: a preset knows it by its name, a scheme of a site's own does not."""
    if not isinstance(scheme, str) or scheme not in PRESETS:
        return None
    return "oct" if scheme in OCT_PRESETS else "fundus"


def require_modality(own: Modality | None, asked: str) -> None:
    """Refuse a job of another modality than a site's images are of.

    Args:
        own: What the site's images are; None where the site does not know, which refuses nothing.
        asked: The job's.

    Raises:
        SettingsError: They differ. It may leave the site, so it names nothing of it but the modality.
    """
    if own is not None and own != asked:
        raise SettingsError(
            f"the job takes {IN_WORDS.get(asked, asked)} (images.modality {asked!r}), and the images of this site are "
            f"{IN_WORDS[own]}: leave the site out of the job, or mend data.modality or data.scheme in its site file."
        )
