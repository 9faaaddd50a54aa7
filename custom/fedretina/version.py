"""The version of the package, which is also the version of its protocol and of the state it writes."""

from __future__ import annotations

import platform

__version__ = "0.2.0"


def versions() -> dict[str, str]:
    """What computed a result: this package and the libraries under it."""
    import numpy as np
    import torch

    return {
        "fedretina": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
