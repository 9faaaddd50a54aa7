"""The kinds of data that a run can take, and the refusal of a site whose data are of another kind than the job's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedretina.errors import SettingsError
from fedretina.settings.images import Modality

IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "fundus": "fundus photographs",
        "oct": "OCT scans",
        "dermoscopy": "dermoscopic pictures of skin",
        "heart_sound": "recordings of hearts",
        "activity": "windows of an accelerometer",
    }
)


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
            f"the job takes {IN_WORDS.get(asked, asked)} (images.modality {asked!r}), and this site has "
            f"{IN_WORDS[own]}: leave the site out of the job, or mend data.modality or data.scheme in its site file."
        )
