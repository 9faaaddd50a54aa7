"""The sparse vector technique of FLARE's SVTPrivacy, with the site's own source of noise."""

from __future__ import annotations

from threading import Lock

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from fedretina.exchange.payload import Tensors
from fedretina.settings.site import SvtNoise

_WORDS = 624  # of 32 bits: the whole state of NumPy's generator that FLARE draws from
_LOCK = Lock()


def sparse(update: Tensors, noise: SvtNoise, source: np.random.Generator) -> dict[str, torch.Tensor]:
    """Let a part of an update's numbers pass, chosen and noised; the others become zero.

    FLARE's class draws from NumPy's global generator, which is seeded here from the site's source and put back after.
    """
    dxo_filter = SVTPrivacy(
        fraction=noise.fraction,
        epsilon=noise.epsilon,
        epsilon_release=noise.epsilon_release,
        gamma=noise.clip,
        tau=noise.threshold,
        replace=False,
    )
    # FLARE lets a single number pass without noise, so every tensor goes through as a row.
    rows = {key: tensor.reshape(-1).numpy() for key, tensor in update.items()}
    with _LOCK:
        before = np.random.get_state()
        try:
            np.random.seed(source.integers(0, 2**32, _WORDS, dtype=np.uint32))
            found = dxo_filter.process_dxo(DXO(DataKind.WEIGHT_DIFF, data=rows), Shareable(), FLContext())
        finally:
            np.random.set_state(before)
    return {
        key: torch.from_numpy(np.asarray(found.data[key], dtype=rows[key].dtype)).reshape(update[key].shape)
        for key in update
    }
