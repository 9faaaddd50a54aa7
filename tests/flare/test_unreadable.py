"""Answers that cannot be unpacked, on FLARE's way into the server's process of a job; no connection."""

import os
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils import fobs

from fedretina.flare.unreadable import UNREADABLE, go_on_without_what_cannot_be_read

NO_MESSAGE = b"\0no message of FLARE's"


@pytest.fixture
def arrives(monkeypatch):
    """Lets bytes arrive from a process of a job at a site; gives what the server's is asked to do."""
    monkeypatch.setattr(cells, "decode_payload", cells.decode_payload)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("the server's process would have ended"))
    go_on_without_what_cannot_be_read()
    go_on_without_what_cannot_be_read()
    asked = []

    def arrive(content, encoding=Encoding.FOBS, topic=ServerCommandNames.SUBMIT_UPDATE):
        cell = SimpleNamespace(decode_pass_through_channels=(), decode_pass_through_topics=())
        job = SimpleNamespace(get_fqcn=lambda: "server.JOB")
        cell.get_fobs_context = lambda props: {**props, fobs.FOBSContextKey.CELL: job}
        headers = {MessageHeaderKey.ORIGIN: "site-1.JOB", StreamHeaderKey.PAYLOAD_ENCODING: encoding}
        headers |= {StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND, StreamHeaderKey.TOPIC: topic}
        adapter = cells.Adapter(lambda message: asked.append(message.payload), SimpleNamespace(fqcn="server.JOB"), cell)
        adapter.call(SimpleNamespace(headers=headers, result=lambda: content))
        return asked

    return arrive


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (NO_MESSAGE, Encoding.FOBS),
        (b"", Encoding.FOBS),
        (fobs.dumps(["no", "answer"]), Encoding.FOBS),
        (NO_MESSAGE, Encoding.BYTES),
        (NO_MESSAGE, None),
    ],
)
def test_what_cannot_be_unpacked_comes_as_an_error_reply_of_its_sender(arrives, content, encoding, caplog):
    (came,) = arrives(content, encoding)
    assert came.get_return_code() == UNREADABLE
    peer = came.get_peer_context()
    assert (peer.get_identity_name(), peer.get_job_id()) == ("site-1", "JOB")
    assert "an answer of site-1.JOB could not be unpacked" in caplog.text


def test_an_answer_that_can_be_unpacked_comes_as_it_is(arrives):
    assert arrives(fobs.dumps(Shareable({"theta": 0.5}))) == [Shareable({"theta": 0.5})]


def test_another_message_that_cannot_be_unpacked_is_left_to_flare(arrives):
    with pytest.raises(Exception, match="expect main"):
        arrives(NO_MESSAGE, topic=ServerCommandNames.GET_TASK)
