"""What arrives over FLARE is a payload, or is refused in a sentence."""

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from fedretina.errors import RefusedError
from fedretina.exchange.payload import Order, Payload, Stamp
from fedretina.flare.wire import META, WHY, came_into, pack_order, pack_payload, unpack_order, unpack_payload, why

STAMP = Stamp("r", "train", 0, 0, "d" * 64)


def sent(array=0.0, **meta):
    meta = {"stamp": list(STAMP), "scalars": {}, **meta}
    return DXO(DataKind.WEIGHTS, data={"k": array}, meta={META: meta}).to_shareable()


def test_a_payload_survives():
    whole = Payload({"k": torch.arange(6.0).reshape(2, 3)}, {"theta": 0.5}, STAMP)
    found = unpack_payload(pack_payload(whole))
    assert torch.equal(found.tensors["k"], whole.tensors["k"])
    assert found[1:] == whole[1:]


@pytest.mark.parametrize(
    "array",
    [np.zeros(3, ">f4"), np.zeros(3, np.longdouble), np.array(["a"]), [[1.0], [1.0, 2.0]], np.array([None]), {"a": 1}],
    ids=["big-endian", "longdouble", "words", "ragged", "objects", "a record"],
)
@pytest.mark.attack(
    "a hostile site",
    "arrays of objects, or of types that torch does not hold",
    "refused before they are opened",
)
def test_arrays_that_torch_cannot_hold_are_refused(array):
    with pytest.raises(RefusedError, match="tensor 'k' is no array of numbers"):
        unpack_payload(sent(array))


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"scalars": {1: 2.0, "theta": 0.5}}, "lacks its scalars"),
        ({"scalars": None}, "lacks its scalars"),
        ({"stamp": ["r", "train", 10**5000, 0, "d"]}, "stamp is malformed"),
        ({"stamp": ["r", "train", -1, 0, "d"]}, "stamp is malformed"),
        ({"stamp": ["r", "train", 0.5, 0, "d"]}, "stamp is malformed"),
        ({"stamp": None}, "no stamp"),
    ],
)
@pytest.mark.attack(
    "a hostile site",
    "a malformed stamp or entry on the wire",
    "refused in a sentence",
)
def test_malformed_words_are_refused(meta, said):
    with pytest.raises(RefusedError, match=said):
        unpack_payload(sent(np.zeros(3, np.float32), **meta))


@pytest.mark.parametrize("array", [[1.0, 2.0], 3.0, np.zeros(3), np.float32(3)])
def test_numbers_that_came_in_no_file_are_not_looked_for_in_one(array):
    came = sent(array)
    assert came_into(came, unpack_payload(came).tensors) is None


def test_an_orders_curve_survives_and_a_malformed_one_is_refused():
    plain = Order("finalise", STAMP, 1, 1)
    for curve in ((), (0, 7, *[0] * 13, 5)):
        assert unpack_order(pack_order(plain._replace(curve=curve), {}))[0] == plain._replace(curve=curve)
    for curve in ((1, 2), (-1, *[0] * 15), (0.5, *[0] * 15), (True, *[0] * 15)):
        with pytest.raises(RefusedError, match="order's curve"):
            unpack_order(pack_order(plain._replace(curve=curve), {}))


def test_a_sites_reason_is_one_short_line():
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={WHY: "smith\n2026 ERROR forged line " * 200_000})
    assert len(why(reply)) == 500
    assert why(reply).isprintable()
