"""Names of modalities and grading schemes for options; kept here so that help needs no import of the schemes."""

from __future__ import annotations

FUNDUS_SCHEMES = ["icdr5", "icdr5_ungradable", "normal_3stages"]
OCT_SCHEMES = ["oct3", "oct4", "octdl7", "octid", "duke3"]
SCHEMES_OF = {
    "fundus": FUNDUS_SCHEMES,
    "oct": OCT_SCHEMES,
    "dermoscopy": ["isic8"],
    "heart_sound": ["heart2"],
    "activity": ["activity8"],
}
MODALITIES = list(SCHEMES_OF)
SCHEMES = [name for names in SCHEMES_OF.values() for name in names]
