"""Orders and payloads as FLARE carries them: a DXO of NumPy weights with one plain entry of meta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from torch.utils.dlpack import from_dlpack

from fedretina.errors import RefusedError
from fedretina.exchange.payload import Order, Payload, Stamp, Tensors
from fedretina.flare.plain_bytes import in_one_buffer, leaving, lying
from fedretina.settings.scalars import CURVE, Task
from fedretina.storage import Place, StoredTensors
from fedretina.told import one_line

Arrays = Mapping[str, np.ndarray]
META = "fedretina"
QUESTION = "question"
"""Entry of an order that brings no tensors and asks only whether the hospital has approved the plan by now."""
ENTRIES = frozenset({"stamp", "task", "accepted", "best", "share", "weight", "curve", "scalars", QUESTION})
"""What may stand under `META`; the whitelist filter refuses anything else."""
_MANY = 2**31  # rounds and attempts of a run
WAITS = "FEDRETINA_WAITS"
"""Return code of a site whose hospital has not approved the plan; no sentence goes with it."""
APPROVED = "FEDRETINA_APPROVED"
"""Return code that answers a question: the order may come."""
_MEANS = {
    ReturnCode.TASK_DATA_FILTER_ERROR: "the site's filter did not let the order in",
    ReturnCode.TASK_RESULT_FILTER_ERROR: "the site's filter let nothing of the answer go",
    ReturnCode.UNSAFE_JOB: "the site takes the job for unsafe",
}
WHY = "fedretina_why"
"""Header of an error reply: a sentence that names no path, file or patient."""


def pack_order(order: Order, tensors: Tensors | Arrays, plainly: bool = False) -> Shareable:
    """Turn an order and the tensors that go with it into a task's data.

    Args:
        order: The order.
        tensors: What goes with it, or the arrays of `for_all`.
        plainly: Whether the receiver takes plain bytes; FLARE's own form else.
    """
    meta = {"task": order.task, "accepted": order.accepted, "best": order.best}
    own = {"share": order.share, "weight": order.weight, **({"curve": list(order.curve)} if order.curve else {})}
    return _dxo(tensors, {"stamp": list(order.stamp), **meta, **own}, plainly)


def for_all(tensors: Tensors) -> Arrays:
    """The arrays of tensors that go with the orders of many sites, put together once for all of them."""
    return in_one_buffer({key: tensor.detach().cpu().numpy() for key, tensor in tensors.items()})


def pack_question(order: Order) -> Shareable:
    """Ask whether the hospital has approved by now: an order's stamp without its tensors."""
    found = pack_order(order, {})
    found["DXO"]["meta"][META][QUESTION] = True
    return found


def is_question(shareable: Shareable) -> bool:
    """Whether an order asks only that.

    Raises:
        RefusedError: The data is no order of this package.
    """
    return bool(_read(shareable)[1].get(QUESTION))


def unpack_order(shareable: Shareable) -> tuple[Order, dict[str, torch.Tensor]]:
    """Read an order and its tensors from a task's data.

    Raises:
        RefusedError: The data is no order of this package.
    """
    tensors, meta = _read(shareable)
    try:
        places = meta["accepted"], meta["best"]
        order = Order(cast(Task, meta["task"]), _stamp(meta), *places, meta["share"], meta["weight"], _curve(meta))
    except KeyError as error:
        raise RefusedError(f"the order lacks {error}: server and site must run the same fedretina.") from error
    return order, tensors


def pack_payload(payload: Payload, plainly: bool = False) -> Shareable:
    """Turn a site's answer into a task's result; see `pack_order`."""
    return _dxo(payload.tensors, {"stamp": list(payload.stamp), "scalars": dict(payload.scalars)}, plainly)


def unpack_payload(shareable: Shareable) -> Payload:
    """Read a site's answer from a task's result.

    Raises:
        RefusedError: The result is no answer of this package.
    """
    tensors, meta = _read(shareable)
    scalars = meta.get("scalars")
    if not isinstance(scalars, dict) or not all(isinstance(name, str) for name in scalars):
        raise RefusedError("the answer lacks its scalars: server and site must run the same fedretina.")
    return Payload(tensors, scalars, _stamp(meta))


def came_into(shareable: Shareable, tensors: Tensors) -> StoredTensors | None:
    """The file that an answer's tensors came into, if they came into one.

    Args:
        shareable: The answer.
        tensors: As `unpack_payload` reads them.
    """
    found = lying({str(key): array for key, array in from_shareable(shareable).data.items()})
    if found is None:
        return None
    path, begins = found
    places = {key: Place(tensor.dtype, tuple(tensor.shape), begins[key]) for key, tensor in tensors.items()}
    return StoredTensors(path, places)


def pack_error(sentence: str) -> Shareable:
    """Turn an error into a reply.

    Args:
        sentence: What may leave of it (`told.told`).
    """
    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={WHY: one_line(sentence)})


def why(shareable: Shareable) -> str:
    """The sentence of an error reply as one line, or what FLARE's return code means when there is none."""
    code = str(shareable.get_return_code())
    means = f"{_MEANS[code]} ({code}): its own log says why." if code in _MEANS else f"the site answered {code}."
    return one_line(str(shareable.get_header(WHY) or means))


def _dxo(tensors: Tensors | Arrays, meta: Mapping[str, Any], plainly: bool) -> Shareable:
    arrays = {key: one.detach().cpu().numpy() if isinstance(one, torch.Tensor) else one for key, one in tensors.items()}
    if plainly:
        arrays = leaving(arrays)
    return cast(Shareable, DXO(DataKind.WEIGHTS, data=arrays, meta={META: dict(meta)}).to_shareable())


def _read(shareable: Shareable) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        dxo = from_shareable(shareable)
    except ValueError as error:
        raise RefusedError("the message carries no data: server and site must run the same fedretina.") from error
    meta = dxo.get_meta_prop(META)
    if dxo.data_kind != DataKind.WEIGHTS or not isinstance(meta, dict) or not isinstance(dxo.data, dict):
        raise RefusedError("the message was not written by fedretina: use the jobs of this package.")
    tensors = {}
    for key, value in dxo.data.items():
        tensors[str(key)] = _tensor(str(key), value)
    return tensors, meta


def _tensor(key: str, value: Any) -> torch.Tensor:
    if isinstance(value, RefusedError):  # stands for an array whose bytes were not taken
        raise value
    try:
        array = np.asarray(value)
        if array.dtype.kind in "fiub":
            # Arrays that FLARE hands out may be read-only views of its buffers. They are read where they lie, since
            # nobody writes to what came; `from_numpy` would warn of them.
            return from_dlpack(array)
    except (ValueError, TypeError, BufferError, RuntimeError) as error:  # no type of torch's, or unequal lengths
        raise RefusedError(f"tensor {key[:100]!r} is no array of numbers that can be read here.") from error
    raise RefusedError(f"tensor {key[:100]!r} is no array of numbers.")


def _curve(meta: Mapping[str, Any]) -> tuple[int, ...]:
    found = meta.get("curve", ())
    if not isinstance(found, list | tuple) or len(found) not in (0, len(CURVE)):
        raise RefusedError("the order's curve is malformed: server and site must run the same fedretina.")
    if not all(type(count) is int and count >= 0 for count in found):
        raise RefusedError("the order's curve holds what are no counts: server and site must run the same fedretina.")
    return tuple(found)


def _stamp(meta: Mapping[str, Any]) -> Stamp:
    found = meta.get("stamp")
    kinds = (str, str, int, int, str)
    if not isinstance(found, list | tuple) or len(found) != len(kinds):
        raise RefusedError("the message carries no stamp: server and site must run the same fedretina.")
    if not all(isinstance(value, kind) for value, kind in zip(found, kinds, strict=True)):
        raise RefusedError("the message's stamp is malformed: server and site must run the same fedretina.")
    if any(isinstance(value, int) and not 0 <= value < _MANY for value in found):
        raise RefusedError("the message's stamp is malformed: server and site must run the same fedretina.")
    return Stamp(*found)
