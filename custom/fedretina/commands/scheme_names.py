"""Names of modalities and grading schemes for options, from the one list of schemes."""

from __future__ import annotations

from fedretina.data.scheme_presets import PRESETS
from fedretina.data.scheme_presets import SCHEMES as _SCHEMES

MODALITIES = list(dict.fromkeys(scheme.modality for scheme in _SCHEMES.values()))
SCHEMES_OF = {kind: [name for name, scheme in _SCHEMES.items() if scheme.modality == kind] for kind in MODALITIES}
SCHEMES = list(PRESETS)
