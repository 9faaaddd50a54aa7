"""Arrays over FLARE's own connections, from an honest peer and from hostile ones; two cells, loopback, no job."""

import errno
import json
import shutil
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.np.np_downloader import ArrayDownloadable
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import ProduceRC
from nvflare.fuel.utils import fobs

from fedretina.aggregation.spool import Spool
from fedretina.errors import RefusedError
from fedretina.exchange.encryption import SITE_FILE, cipher_for, new_keys, sealed_bytes
from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import Payload, Stamp, tensors_digest
from fedretina.flare import handover, plain_bytes
from fedretina.flare.array_table import Form, PlainArray, Table
from fedretina.flare.handover import Handover
from fedretina.flare.many_sites import Places
from fedretina.flare.plain_bytes import Leaving, in_one_buffer, plain, register
from fedretina.flare.wire import came_into, pack_payload, unpack_payload
from fedretina.networks.build import build_on_meta
from ports import free_port

STAMP = Stamp("r", "train", 0, 0, "d" * 64)
TB = 10**12


@pytest.fixture(scope="module")
def wire():
    """A server and a site; gives a function that sends from the site and returns what the server unpacked."""
    url = f"tcp://localhost:{free_port()}"
    came = []

    def take(message):
        came.append(message.payload)
        return make_reply(ReturnCode.OK)

    server, site = Cell("server", url, False, {}), Cell("site-1", url, False, {})
    server.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic="*", cb=take)
    server.start()
    site.start()
    register().largest = 64 * 2**20

    def send(payload, timeout=60.0):
        message = new_cell_message({}, payload)
        reply = site.send_request(
            channel=CellChannel.SERVER_COMMAND, topic="submit", target="server", request=message, timeout=timeout
        )
        assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
        return came.pop()

    yield send
    register().largest = plain_bytes._LARGEST
    for cell in (site, server):
        cell.stop()


@pytest.fixture
def server():
    """The server of a run, in whose process FLARE would end where decoding raises."""
    found = register()
    before = found.largest
    found.be_server(before)
    yield found
    found.be_site()
    found.largest = before


def tensors():
    draws = torch.Generator().manual_seed(1)
    return {
        "frame": torch.arange(7, dtype=torch.uint8),  # of an odd length, so that what follows would lie askew
        "large": torch.randn(5_000_000, generator=draws),
        "counter": torch.tensor(3),
        "none": torch.empty(0, 4),
        "turned": torch.randn(3, 5, generator=draws).T,
        "half": torch.randn(9, generator=draws).half(),
        "truth": torch.tensor([True, False]),
        "double": torch.randn(11, generator=draws).double(),
    }


@pytest.mark.parametrize("shared", [False, True])
def test_tensors_arrive_bit_for_bit_in_their_types_and_shapes(wire, shared):
    sent = Payload(tensors(), {"theta": 0.5}, STAMP)
    message = pack_payload(sent, plainly=True)
    if shared:
        message["DXO"]["data"] = in_one_buffer(message["DXO"]["data"])
    came = wire(message)
    assert all(type(array) is PlainArray for array in came["DXO"]["data"].values())
    found = unpack_payload(came)
    assert tensors_digest(found.tensors) == tensors_digest(sent.tensors)
    assert found[1:] == sent[1:]
    for tensor in found.tensors.values():
        assert tensor.data_ptr() % max(1, tensor.element_size()) == 0
        tensor.zero_()  # what came may be written to, and nothing else lies there
    assert not any(tensor.any() for tensor in found.tensors.values())


def test_arrays_in_one_buffer_are_sent_without_a_copy_and_cannot_be_changed():
    arrays = in_one_buffer({key: tensor.numpy() for key, tensor in tensors().items()})
    leaving = Leaving([plain(array) for array in arrays.values()])
    assert len(leaving._runs) == 1
    chunk = leaving.produce(None, "site-1")[1]
    assert len(chunk) == plain_bytes._CHUNK
    assert np.shares_memory(np.frombuffer(chunk, np.uint8), arrays["double"])
    with pytest.raises(ValueError, match="read-only"):
        arrays["large"] *= 2
    apart = Leaving([plain(array.copy()) for array in arrays.values()])
    assert len(apart._runs) > 1
    for one, other in zip(chunks(leaving), chunks(apart), strict=True):
        assert bytes(one) == bytes(other)


def chunks(leaving):
    state = None
    while True:
        code, chunk, state = leaving.produce(state, "site-1")
        if code == ProduceRC.EOF:
            return
        yield chunk


def refused(wire):
    with pytest.raises(RefusedError) as found:
        unpack_payload(wire(pack_payload(Payload({"k": torch.zeros(1000)}, {}, STAMP), plainly=True)))
    return str(found.value)


@pytest.mark.attack(
    "a hostile site",
    "a message that claims a terabyte of tensors",
    "refused in a sentence before a byte is fetched or room is made for it",
)
def test_a_claim_beyond_the_runs_size_is_refused_before_anything_is_fetched(wire, monkeypatch):
    fetched = []
    monkeypatch.setattr(Table, "words", lambda self: [["<f4", [TB // 4]]])
    monkeypatch.setattr(Leaving, "produce", lambda *_: fetched.append(1) or (ProduceRC.EOF, None, {}))
    assert refused(wire) == f"its tensors are said to have {TB} bytes; those of this run have at most {64 * 2**20}."
    assert fetched == []


@pytest.mark.parametrize(
    ("produce", "said"),
    [
        (lambda *_: (ProduceRC.OK, bytes(4001), {"at": 4001}), "it sent more than the 4000 bytes"),
        (lambda *_: (ProduceRC.OK, bytes(4000), {"at": 9}), "did not come in the order"),
        (lambda *_: (ProduceRC.OK, [bytes(4000)], {"at": 4000}), "did not come in the order"),
        (lambda *_: (ProduceRC.OK, b"", {"at": 0}), "did not come in the order"),
        (lambda *_: (ProduceRC.EOF, None, {}), "it sent 0 of the 4000 bytes"),
        (lambda *_: (ProduceRC.ERROR, None, {}), "could not be fetched"),
        (lambda *_: (ProduceRC.OK, bytes(4000), None), "could not be taken (TypeError)"),
    ],
    ids=["more", "elsewhere", "list", "nothing", "less", "fault", "no place"],
)
@pytest.mark.attack(
    "a hostile site",
    "more or fewer bytes of tensors than it claimed, or in another order",
    "refused in a sentence; the server's process goes on",
)
def test_what_is_not_as_it_was_claimed_is_refused(wire, server, monkeypatch, produce, said):
    monkeypatch.setattr(Leaving, "produce", produce)
    assert said in refused(wire)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda words: "{", "does not say where"),
        (lambda words: "[" * 100_000, "does not say where"),
        (lambda words: json.dumps({**words, "ref": 7}), "cannot be fetched"),
        (lambda words: json.dumps({**words, "from": "site-2"}), "with another than its sender"),
        (lambda words: json.dumps({**words, "arrays": [["|O", [1]]]}), "type or shape that does not travel"),
        (lambda words: json.dumps({**words, "arrays": [["<f4", [-1]]]}), "type or shape that does not travel"),
        (lambda words: json.dumps({**words, "arrays": [["<f4", [2.5]]]}), "type or shape that does not travel"),
        (lambda words: json.dumps({**words, "arrays": [[["<f4"], [2]]]}), "does not say where"),
        (lambda words: json.dumps({**words, "arrays": [["<f4", [0, 2**39, 2**39]]]}), "type or shape"),
        (lambda words: json.dumps({**words, "arrays": []}), "more than the 0 bytes"),
        (lambda words: json.dumps({**words, "arrays": {}}), "does not say what its arrays are"),
    ],
)
@pytest.mark.attack(
    "a hostile site",
    "malformed words about where its tensors are, of what type and shape, or another's name for them",
    "refused in a sentence; the server's process goes on",
)
def test_malformed_words_about_arrays_are_refused(wire, monkeypatch, change, said):
    kept = plain_bytes.Datum
    monkeypatch.setattr(plain_bytes, "Datum", lambda kind, text, dot: kept(kind, change(json.loads(text)), dot=dot))
    assert said in refused(wire)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(
            "server",
            marks=pytest.mark.attack(
                "a hostile site",
                "tensors in FLARE's own zip files, of which 60 kB unpack to 60 MB",
                "refused in a sentence before they are fetched or unpacked; the server's process goes on",
            ),
        ),
        pytest.param(
            "site",
            marks=pytest.mark.attack(
                "a hostile server",
                "an order's tensors in FLARE's own zip files, which fill a site's memory as they are unpacked",
                "refused in a sentence before they are fetched or unpacked",
            ),
        ),
    ],
)
def test_no_zip_files_are_unpacked(wire, end, request, monkeypatch):
    fetched = []
    if end == "server":
        request.getfixturevalue("server")
    monkeypatch.setattr(ArrayDownloadable, "produce_item", lambda *_: fetched.append(1) or b"")
    large = Shareable({"d": {"k": np.zeros(15_000_000, np.float32)}})  # compressed by who sends it, or not
    assert "FLARE's own form" in str(wire(large)["d"]["k"])
    assert fetched == []
    small = wire(Shareable({"d": {"k": np.zeros(3, np.float32)}}))["d"]["k"]
    assert isinstance(small, RefusedError)
    assert torch.equal(
        unpack_payload(wire(pack_payload(Payload({"k": torch.ones(3)}, {}, STAMP), True))).tensors["k"], torch.ones(3)
    )


def test_what_nobody_was_asked_for_is_not_taken(wire, server):
    server.be_server(0)
    assert "those of this run have at most 0" in refused(wire)


@pytest.mark.attack(
    "a hostile site",
    "many answers at once whose tensors never come, so that all threads wait for them",
    "more than three of one site are refused in a sentence; another site's answer is taken meanwhile",
)
def test_one_sender_cannot_hold_all_threads(wire, server, monkeypatch):
    held, produce = threading.Event(), Leaving.produce

    def slow(self, state, requester):
        held.wait(30.0)
        return produce(self, state, requester)

    monkeypatch.setattr(Leaving, "produce", slow)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(wire(pack_payload(Payload({"k": torch.ones(3)}, {}, STAMP), True)))
        )
        for _ in range(plain_bytes._AT_ONCE + 1)
    ]
    for thread in threads:
        thread.start()
    try:
        late = time.monotonic() + 60.0
        while not found and time.monotonic() < late:
            threads[0].join(0.05)
        assert len(found) == 1
        with pytest.raises(RefusedError, match="more than 3 messages at once"):
            unpack_payload(found[0])
    finally:  # else they wait for chunks from cells that the module's end has stopped, and pytest waits for them
        held.set()
        for thread in threads:
            thread.join()
    assert [unpack_payload(one).tensors["k"].tolist() for one in found[1:]] == 3 * [[1.0, 1.0, 1.0]]
    assert register()._fetching == {}


@pytest.mark.attack(
    "a hostile site",
    "many answers at once whose tensors never come, each in the name of another process of the site",
    "they count as one site's, both for the three at once and for its turn among the large messages",
)
def test_processes_of_one_site_count_as_the_site(server, monkeypatch):
    monkeypatch.setattr(server, "places", Places(2, patience_s=60.0))
    held, inside, said = threading.Event(), [], []

    def never(consumer, from_fqcn, **way):
        inside.append(from_fqcn)
        held.wait(30.0)

    monkeypatch.setattr(plain_bytes, "download_object", never)

    def fetch(origin):
        words = json.dumps({"from": origin, "ref": "R", "arrays": [["<f4", [5_000_000]]]})
        message = Message({MessageHeaderKey.ORIGIN: origin}, None)
        with pytest.raises(RefusedError) as found:
            server._fetch(words, {fobs.FOBSContextKey.CELL: object(), fobs.FOBSContextKey.MESSAGE: message})
        said.append(str(found.value))

    threads = [threading.Thread(target=fetch, args=(f"site-1.job.{number}",), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20.0
    while len(inside) + len(said) < len(threads) and time.monotonic() < until:
        threads[0].join(0.05)
    assert (len(inside), len(said), set(server.places._heard)) == (3, 3, {"site-1"})
    assert all("more than 3 messages at once" in one for one in said)
    leaving = Leaving([np.zeros(20 * 2**20, np.uint8)], places=server.places)
    leaving.produce(None, "site-1.job.7")  # an order that it fetches beside takes no other place
    assert set(server.places._heard) == {"site-1"}
    held.set()
    for thread in threads:
        thread.join()
    assert server._fetching == {}


@pytest.mark.parametrize("lost", ["descriptors", "folder"])
def test_an_answer_arrives_though_its_file_cannot_be_opened_again(wire, tmp_path, monkeypatch, lost):
    register().arrivals = Handover(tmp_path / "arrivals")
    real = np.memmap

    def none_left(*args, **kwargs):
        raise OSError(errno.EMFILE, "Too many open files")

    def erased(*args, **kwargs):
        shutil.rmtree(tmp_path / "arrivals")
        return real(*args, **kwargs)

    monkeypatch.setattr(handover.np, "memmap", none_left if lost == "descriptors" else erased)
    try:
        found = unpack_payload(wire(pack_payload(Payload(tensors(), {}, STAMP), plainly=True)))
        assert tensors_digest(found.tensors) == tensors_digest(tensors())
    finally:
        register().arrivals = None


def test_an_array_without_a_connection_is_its_own_message_and_a_malformed_one_is_refused():
    register()
    sent = pack_payload(Payload(tensors(), {}, STAMP), plainly=True)
    found = unpack_payload(fobs.loads(fobs.dumps(sent)))
    assert tensors_digest(found.tensors) == tensors_digest(tensors())
    for words in (["|O", [1], b"x"], ["<f4", [3], b"xy"], ["<f4", [3], 5], 0, "x"):
        assert isinstance(register().recompose(words), RefusedError)


def test_a_peer_of_an_older_version_is_sent_flares_own_form():
    told, context, peer = FLContext(), FLContext(), FLContext()
    assert not plain_bytes.understood(context)
    context.set_peer_context(peer)
    assert not plain_bytes.understood(context)
    plain_bytes.speak(told)
    peer.set_public_props(told.get_all_public_props())  # as FLARE builds a peer's context
    assert plain_bytes.understood(context)
    peer.set_public_props({plain_bytes._SPEAKS: plain_bytes.FORMAT + 1})
    assert not plain_bytes.understood(context)
    own = pack_payload(Payload(tensors(), {}, STAMP))
    assert {type(array) for array in own["DXO"]["data"].values()} == {np.ndarray}


def test_what_cannot_travel_plainly_stays_as_it_is():
    odd = np.zeros(2, ">f4")
    assert plain(odd) is odd
    assert in_one_buffer({"odd": odd})["odd"] is odd


def test_the_largest_message_of_a_run_follows_from_its_network(tiny):
    experiment = tiny()
    parts = partition_of(experiment, build_on_meta(experiment.network, experiment.head_width or 2))
    own = sum(parts.sizes[key][1] for key in parts.sendable)
    assert own <= parts.most_bytes(parts.sendable) <= own + 4096 * len(parts.sendable)
    assert sealed_bytes(5000) > 2 * 5000 * 8


def test_a_message_of_sealed_sums_is_within_the_largest_and_one_for_plain_sums_would_not_do(tiny, tmp_path):
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    experiment = tiny(row="analytic", phases=[{"name": "sums", "sums": {}}])
    net = build_on_meta(experiment.network, experiment.head_width or 2)
    plainly, sealed = (partition_of(experiment, net, encrypted) for encrypted in (False, True))
    new_keys(tmp_path)
    cipher = cipher_for(experiment.exchange, tmp_path / SITE_FILE, private=True, sums=experiment.sums)
    own = sum(cipher.seal(torch.zeros(sealed.sizes[key][0])).numel() for key in sealed.sums)
    for ways in ("sendable", "receivable"):
        assert plainly.most_bytes(getattr(plainly, ways)) < own <= sealed.most_bytes(getattr(sealed, ways))


def test_places_are_those_of_the_largest_numbers_first():
    table = Table([Form(np.dtype("u1"), (3,)), Form(np.dtype("<f8"), (2,)), Form(np.dtype("<f4"), (1,))])
    assert (table.begins, table.size) == ([20, 0, 16], 23)
    assert Table.read(json.loads(json.dumps(table.words()))).begins == table.begins


def test_messages_at_the_same_time_do_not_mix(wire):
    found = {}

    def send(number):
        found[number] = wire(Shareable({"d": {"k": plain(np.full(3_000_000, number, np.float32))}}))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = sorted(float(message["d"]["k"].max()) for message in found.values())
    assert numbers == [1.0, 2.0, 3.0]
    assert all(message["d"]["k"].min() == message["d"]["k"].max() for message in found.values())


def test_an_answer_that_takes_longer_than_flare_waits_is_sent_once(wire, server, monkeypatch):
    """FLARE's wait is over once while its chunks are fetched, and once when it has let go of them before the reply."""
    asked, looked, gone = [], threading.Event(), threading.Event()
    produce, release, passing, views = Leaving.produce, Leaving.release, Leaving.passing.fget, Table.views

    def until_flares_wait_is_over():
        looked.clear()
        looked.wait(60.0)

    def slow(self, state, requester):
        asked.append(state)
        if len(asked) == 3:
            until_flares_wait_is_over()
        return produce(self, state, requester)

    def look(self):
        found = passing(self) or not asked  # a busy machine may be late to begin
        looked.set()
        return found

    def answer_late(self, buffer):
        gone.wait(60.0)
        until_flares_wait_is_over()
        return views(self, buffer)

    monkeypatch.setattr(server, "_offered", [])  # what went before may be waited for still
    monkeypatch.setattr(Leaving, "produce", slow)
    monkeypatch.setattr(Leaving, "passing", property(look))
    monkeypatch.setattr(Leaving, "release", lambda self: (release(self), gone.set()))
    monkeypatch.setattr(Table, "views", answer_late)
    large = Payload({"k": torch.arange(10_000_000, dtype=torch.float32)}, {}, STAMP)
    try:
        found = unpack_payload(wire(pack_payload(large, True), timeout=2.0))  # three chunks and the end
    finally:
        gone.set()
        looked.set()
    assert torch.equal(found.tensors["k"], large.tensors["k"])
    assert asked == [None, {"at": 2**24}, {"at": 2**25}, {"at": 40_000_000}]


def test_an_answer_is_waited_for_while_its_chunks_are_asked_for_and_as_long_as_a_reply_takes(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(plain_bytes, "time", SimpleNamespace(monotonic=lambda: clock.now))
    leaving = Leaving([np.zeros(20 * 2**20, np.uint8)])
    assert not leaving.passing  # nobody has asked: the message may be lost
    _, _, state = leaving.produce(None, "server")
    assert leaving.passing
    clock.now += plain_bytes._REQUEST_S
    assert not leaving.passing  # the server is gone
    _, _, state = leaving.produce(state, "server")
    assert leaving.passing
    leaving.produce(state, "server")
    leaving.release()
    assert leaving.passing  # it has all of it, and its reply is on its way
    clock.now += plain_bytes._REPLY_S
    assert not leaving.passing  # or lost
    cut = Leaving([np.zeros(20 * 2**20, np.uint8)])
    cut.produce(None, "server")
    cut.release()  # before the end: a refusal is on its way, or nothing
    assert cut.passing
    clock.now += plain_bytes._REPLY_S
    assert not cut.passing


def test_of_what_was_sent_nothing_is_kept(wire, server, monkeypatch):
    monkeypatch.setattr(server, "_offered", [])
    monkeypatch.setattr(plain_bytes, "_REPLY_S", 0.0)
    for _ in range(3):
        wire(pack_payload(Payload({"k": torch.ones(3)}, {}, STAMP), True))
        (leaving,) = server._offered
        late = time.monotonic() + 60.0
        while leaving.held and time.monotonic() < late:
            time.sleep(0.01)
        assert (leaving.held, leaving._runs) == (False, [])


@pytest.mark.parametrize("fails", [False, True])
def test_a_large_answer_takes_a_place_and_gives_it_back_however_it_ends(wire, server, monkeypatch, fails):
    monkeypatch.setattr(server, "places", Places(2, patience_s=60.0))  # the site, in this process, takes the other
    seen, take = [], Places.take
    monkeypatch.setattr(Places, "take", lambda self, site: (seen.append(site), take(self, site)))
    large = Payload({"k": torch.arange(6_000_000, dtype=torch.float32)}, {}, STAMP)
    if fails:
        monkeypatch.setattr(Leaving, "produce", lambda self, state, requester: (ProduceRC.ERROR, None, {}))
    found = [wire(pack_payload(large, True)) for _ in range(2)]
    assert seen.count("site-1") == 2
    assert "site-1" not in server.places._heard
    if fails:
        with pytest.raises(RefusedError):
            unpack_payload(found[0])
    else:
        assert all(torch.equal(unpack_payload(one).tensors["k"], large.tensors["k"]) for one in found)
    seen.clear()
    wire(pack_payload(Payload({"k": torch.ones(9)}, {}, STAMP), True))
    assert not seen


def test_a_site_holds_a_place_until_it_has_all_of_an_order():
    places = Places(1, patience_s=60.0)
    leaving = Leaving([np.zeros(20 * 2**20, np.uint8)], places=places)
    state, held = None, []
    while True:
        rc, _, state = leaving.produce(state, "site-1")
        held.append(set(places._heard))
        if rc == ProduceRC.EOF:
            break
    assert held == [{"site-1"}, {"site-1"}, set()]
    leaving = Leaving([np.zeros(2**20 - 1, np.uint8)], places=places)
    leaving.produce(None, "site-1")
    assert not places._heard


@pytest.mark.parametrize("way", ["handed over", "elsewhere", "gone", "a name of its own", "as it comes"])
def test_tensors_arrive_the_same_whether_a_file_is_handed_over_or_not(wire, tmp_path, monkeypatch, way):
    held, words, pulled = Handover(tmp_path / "held"), {}, []
    kept, produce = plain_bytes.Datum, Leaving.produce
    changed = {"elsewhere": {"here": "x"}, "gone": {"file": f"1-{32 * '0'}"}, "a name of its own": {"file": 7}}

    def said(kind, text, dot):
        words.update(json.loads(text) | changed.get(way, {}))
        return kept(kind, json.dumps(words), dot=dot)

    def counted(self, state, requester):
        found = produce(self, state, requester)
        pulled.append(found[0] == ProduceRC.OK)
        return found

    monkeypatch.setattr(plain_bytes, "Datum", said)
    monkeypatch.setattr(Leaving, "produce", counted)
    monkeypatch.setattr(register(), "handover", None if way == "as it comes" else held)
    monkeypatch.setattr(register(), "arrivals", held)
    sent = Payload(tensors(), {"theta": 0.5}, STAMP)
    packed = pack_payload(sent, plainly=True)  # the sender's file goes with it
    came = wire(packed)
    found = unpack_payload(came)
    assert tensors_digest(found.tensors) == tensors_digest(sent.tensors)
    spool = Spool(tmp_path / "spool")
    spool.put("a", found.tensors, came_into(came, found.tensors))
    assert tensors_digest(spool.read("a")) == tensors_digest(sent.tensors)
    (spooled,) = (tmp_path / "spool").iterdir()
    assert spooled.stat().st_nlink == 2  # the file that came, and no copy of it
    spool.erase()
    assert ("file" in words) == (way != "as it comes")
    assert any(pulled) == (way != "handed over")
    files = len(list((tmp_path / "held").iterdir()))
    assert files >= 1  # what came lies there, and is erased with the last tensor of it
    found.tensors["large"].zero_()
    del found, came
    assert len(list((tmp_path / "held").iterdir())) < files or way == "handed over"


@pytest.mark.attack(
    "a hostile site",
    "a claim of a terabyte with the name of a file that it would hand over",
    "refused in a sentence; the file is not looked at",
)
def test_a_file_is_held_to_the_same_size(wire, tmp_path, monkeypatch):
    held = Handover(tmp_path / "held")
    monkeypatch.setattr(register(), "handover", held)
    monkeypatch.setattr(Handover, "take", lambda *_: pytest.fail("the file is opened"))
    monkeypatch.setattr(register(), "largest", 10**6)
    with pytest.raises(RefusedError, match="those of this run have at most 1000000"):
        unpack_payload(wire(pack_payload(Payload(tensors(), {}, STAMP), plainly=True)))
