"""Multi-domain temperature scaling from sums: the sites' moments of features in, one temperature model out."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedretina.errors import RefusedError
from fedretina.exchange.partition import GRAM, MOMENT


def temperature_model(moments: Iterable[dict[str, Tensor]], ridge: float) -> dict[str, Tensor]:
    """Solve for the model that tells a temperature from features, by ridge regression.

    (w, b) = argmin sum_x (w . f(x) + b - T_k(x))^2 + lambda N s ||w||^2 (Yu et al., robust calibration with
    multi-domain temperature scaling, NeurIPS 2022), over the validation images of all sites, where T_k is the one
    temperature of the image's own site, N the number of images and s the mean square of a feature. The regression needs
    sums only, X^T X and X^T T, so no site's features or temperature are told apart from the others' in what is solved.
    The paper's data lie in one place and it leaves lambda open; here lambda counts in units of the features' own
    scale, so that it means the same for every encoder. The bias is not held back: features that say nothing give
    the mean temperature.

    Args:
        moments: A site's `GRAM` [F + 1, F + 1] and `MOMENT` [F + 1], the last place being the bias.
        ridge: lambda, above 0.

    Returns:
        `weight` [F] and `bias` [], float32.

    Raises:
        RefusedError: No image is behind the sums, or they have no solution.
    """
    gram, moment = None, None
    for site in moments:
        gram = site[GRAM].double() if gram is None else gram + site[GRAM].double()
        moment = site[MOMENT].double() if moment is None else moment + site[MOMENT].double()
    if gram is None or moment is None or float(gram[-1, -1]) < 1:
        raise RefusedError("no site sent moments of an image, so there is nothing to calibrate from.")
    held = torch.full((gram.shape[0],), float(ridge * gram.diagonal()[:-1].mean()), dtype=torch.float64)
    held[-1] = 0.0
    solved = torch.linalg.lstsq(gram + torch.diag(held), moment.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    if not bool(torch.isfinite(solved.float()).all()):
        raise RefusedError("the sites' moments have no finite solution: look for a site whose features are broken.")
    return {"weight": solved[:-1].float(), "bias": solved[-1].float()}
