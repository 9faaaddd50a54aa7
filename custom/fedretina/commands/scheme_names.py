"""Names of the grading schemes for options; kept here so that help needs no import of the schemes."""

from __future__ import annotations

OCT_SCHEMES = ["oct3", "oct4", "octdl7", "octid", "duke3"]
SCHEMES = ["icdr5", "icdr5_ungradable", "normal_3stages", *OCT_SCHEMES]
