"""A round's accepted updates on disk, so that the server's memory does not grow with the number of sites."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch

from fedretina.exchange.payload import Tensors
from fedretina.storage import TensorFile, open_tensors, read_tensors, require_name, write_tensors

Adapt = Callable[[str, str, slice, torch.Tensor], torch.Tensor]
"""Changes some of a site's numbers before they are mixed: site, key, their places in the tensor laid flat, float64."""

_BLOCK = 2**21  # numbers of all sites that stand side by side at once: 17 MB in float64
_STRETCH = 2**18  # numbers of one site that are mixed at once
THREADS = min(4, os.cpu_count() or 1)
"""How many of them are mixed at the same time."""


class Spool:
    """Updates of one round, one file per site.

    A spool begins empty: what an interrupted round left behind is erased, since its sites are asked again.

    Args:
        folder: Where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.erase()
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, site: str, tensors: Tensors) -> None:
        """Store one site's tensors."""
        write_tensors(self._path(site), tensors, {"site": site}, durable=False)

    def read(self, site: str) -> dict[str, torch.Tensor]:
        """All tensors of one site; for small ones."""
        return read_tensors(self._path(site))[0]

    def discard(self, site: str) -> None:
        """Forget one site's tensors."""
        self._path(site).unlink(missing_ok=True)

    def tensor(self, site: str, key: str) -> torch.Tensor:
        """One tensor of one site; see `opened` for many."""
        with self.opened(site) as tensor:
            return tensor(key)

    @contextmanager
    def opened(self, site: str) -> Iterator[Callable[[str], torch.Tensor]]:
        """Read one site's tensors by key.

        One site at a time: a file that is open keeps all its pages in memory (7 GB at 64 sites).
        """
        with open_tensors(self._path(site)) as (handle, _):
            yield handle.get_tensor

    def blocks(self, key: str, sites: Sequence[str]) -> Iterator[torch.Tensor]:
        """The sites' values of one tensor side by side, flat, in stretches that fit into memory.

        Args:
            key: The tensor.
            sites: In the order of the rows.

        Yields:
            [sites, numbers]; together all numbers of the tensor, in order.
        """
        with self._files(sites) as files:
            size = math.prod(files[0].shape(key))
            numbers = max(1, _BLOCK // len(sites))
            for begin in range(0, size, numbers):
                rows = torch.empty(len(sites), min(numbers, size - begin), dtype=files[0].dtype(key))
                for file, row in zip(files, rows, strict=True):
                    file.read_into(key, begin, row)
                yield rows

    def weighted_mean(
        self, weights: Mapping[str, float], like: Mapping[str, torch.dtype], adapt: Adapt | None = None
    ) -> dict[str, torch.Tensor]:
        """Mix the sites' tensors, tensor by tensor: sum_i w_i x_i.

        Sites are walked in the order of their names and summed in float64, so that the order in which they
        answered changes no bit. Whole-number tensors (the official code's leaked counters) are mixed in
        floating point and truncated, as that code does.

        Args:
            weights: By site; every site must have been put.
            like: Type of the result by key; the keys decide what is mixed.
            adapt: Changes a site's numbers first; None takes each as it is.

        Returns:
            By key, one tensor each; memory in use is one model and some megabytes, whatever the number of sites.
        """
        sites = sorted(weights)
        if not like or not sites:  # who sends nothing has no file
            return {}
        with self._files(sites) as files, ThreadPoolExecutor(THREADS) as threads:
            mixed = {key: torch.empty(files[0].shape(key), dtype=like[key]) for key in sorted(like)}

            def mix(key: str, begin: int) -> None:
                # Of a size that stays in the processor's cache from its reading to the sum. NumPy, since torch would
                # start threads of its own in each of these.
                out = mixed[key].view(-1)[begin : begin + _STRETCH]
                values = torch.empty(len(out), dtype=files[0].dtype(key))
                total, share = np.empty(len(out)), np.empty(len(out))
                for at, (site, file) in enumerate(zip(sites, files, strict=True)):
                    file.read_into(key, begin, values)
                    into = share if at else total
                    if adapt is None:
                        plain = (values.float() if values.dtype is torch.bfloat16 else values).numpy()
                        np.multiply(plain, weights[site], out=into, dtype=np.float64)
                    else:
                        changed = adapt(site, key, slice(begin, begin + len(out)), values.to(torch.float64))
                        np.multiply(changed.numpy(), weights[site], out=into)
                    if at:
                        total += share
                out.copy_(torch.from_numpy(total))

            stretches = [(key, at) for key, tensor in mixed.items() for at in range(0, tensor.numel(), _STRETCH)]
            for done in [threads.submit(mix, *stretch) for stretch in stretches]:
                done.result()
        return mixed

    @contextmanager
    def _files(self, sites: Sequence[str]) -> Iterator[list[TensorFile]]:
        with ExitStack() as held:
            files = []
            for site in sites:
                files.append(TensorFile(self._path(site)))
                held.callback(files[-1].close)
            yield files

    def erase(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, site: str) -> Path:
        return self._folder / f"{require_name(site, 'site')}.safetensors"
