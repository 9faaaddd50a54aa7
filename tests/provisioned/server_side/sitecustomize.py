"""Runs at the start of every Python process of a test's server: taps what arrives, or makes the server a hostile one.

FEDRETINA_TEST_TAP names a folder: every frame that comes from a site is written there as TLS gave it up, and of every
message that FLARE decodes, its headers, its strings, its floats, its scalars and the digests of its tensors.
FEDRETINA_TEST_HOSTILE lets the server accept jobs with broken signatures, and send commands that ask sites for no
rights, as one could whose operator changed its code.
FAKETIME sets a site's clock, by libfaketime: its 0.9 refuses the waits of `time.sleep`, so that waits otherwise.
"""

import hashlib
import json
import os
import select
import sys
import threading
import time

_LISTS = ("strings", "floats", "tensors", "scalars", "objects")
_ARRAYS = ("ndarray", "PlainArray")
_LOCK = threading.Lock()


def _walk(node, found, depth=0):  # noqa: PLR0912 - one branch a type
    if depth > 30:
        raise RecursionError("an object of a message is too deep for the tap")
    kind = type(node).__name__
    if kind in ("Logger", "RootLogger"):  # an object's own of this process, not of the message
        return
    if isinstance(node, str):
        found["strings"].append(node)
    elif isinstance(node, bool | int | type(None)):
        pass
    elif isinstance(node, float):
        found["floats"].append(node)
    elif kind in _ARRAYS:
        found["loose_arrays"] += 1
    elif isinstance(node, bytes | bytearray | memoryview):
        found["bytes"] += len(node)
    elif isinstance(node, dict):
        arrays = {key: value for key, value in node.items() if type(value).__name__ in _ARRAYS}
        if arrays and len(arrays) == len(node):
            digest, size = hashlib.sha256(), 0
            for key in sorted(arrays):
                digest.update(f"{key}|torch.{arrays[key].dtype}|{arrays[key].shape}|".encode() + arrays[key].tobytes())
                size += arrays[key].nbytes
            probe = max(arrays.values(), key=lambda array: array.nbytes).tobytes()[:16].hex()
            found["tensors"].append(
                {"keys": sorted(arrays), "digest": digest.hexdigest(), "bytes": size, "probe": probe}
            )
            return
        if "scalars" in node and isinstance(node["scalars"], dict):
            found["scalars"].append(dict(node["scalars"]))
        for key, value in node.items():
            _walk(key, found, depth + 1)
            _walk(value, found, depth + 1)
    elif isinstance(node, list | tuple | set | frozenset):
        for value in node:
            _walk(value, found, depth + 1)
    elif hasattr(node, "__dict__"):
        found["objects"].append(kind)
        _walk(vars(node), found, depth + 1)
    else:
        found["objects"].append(kind)


def _tap(folder):
    from nvflare.fuel.f3.cellnet import cell, core_cell
    from nvflare.fuel.f3.drivers.driver_params import DriverParams
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager

    os.makedirs(folder, exist_ok=True)
    frames, decoded = (os.path.join(folder, f"{os.getpid()}.{ending}") for ending in ("frames", "jsonl"))
    receive, decode = ConnManager.process_frame, core_cell.decode_payload

    def process_frame(self, sfm_conn, frame):
        sender = str(sfm_conn.conn.get_conn_properties().get(DriverParams.PEER_CN.value))
        if sender.startswith("site-"):
            with _LOCK, open(frames, "ab") as handle:
                handle.write(bytes(frame))
        return receive(self, sfm_conn, frame)

    def decode_payload(message, *args, **kwargs):
        result = decode(message, *args, **kwargs)
        found = {"loose_arrays": 0, "bytes": 0} | {name: [] for name in _LISTS}
        try:
            _walk(message.payload, found)
        except Exception as error:  # noqa: BLE001 - the server must go on; the test sees that the tap did not
            found["error"] = repr(error)
        found["headers"] = {str(key): str(value) for key, value in (message.headers or {}).items()}
        with _LOCK, open(decoded, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(found) + "\n")
        return result

    ConnManager.process_frame = process_frame
    core_cell.decode_payload = cell.decode_payload = decode_payload


def _become_hostile():
    from nvflare.private.fed.server import job_runner, shell_cmd, sys_cmd
    from nvflare.private.fed.utils import app_deployer

    job_runner.verify_folder_signature = lambda *args, **kwargs: True
    signers = [("lead@consortium.example", "consortium", "lead")]
    app_deployer.verify_folder_signature_and_get_signers = lambda *args, **kwargs: (True, signers)
    asked = shell_cmd.new_message

    def unasked(*args, **kwargs):
        """A command without the headers at whose sight a site looks into its authorization.json."""
        message = asked(*args, **kwargs)
        message.headers = {}
        return message

    shell_cmd.new_message = sys_cmd.new_message = unasked


if os.environ.get("FAKETIME"):
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None
if any("nvflare.private.fed.app" in word for word in sys.orig_argv):
    if os.environ.get("FEDRETINA_TEST_TAP"):
        _tap(os.environ["FEDRETINA_TEST_TAP"])
    if os.environ.get("FEDRETINA_TEST_HOSTILE"):
        _become_hostile()
