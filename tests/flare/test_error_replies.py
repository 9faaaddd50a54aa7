"""An error's sentence on its way out of a site: written down first, alone, or not at all."""

import json

import pytest
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply

from fedretina.cli.site import _table
from fedretina.errors import RefusedError
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.payload import Stamp
from fedretina.flare.whitelist_filter import WhitelistFilter
from fedretina.flare.wire import WHY, why
from fedretina.settings.site import SiteSettings

STAMP = Stamp("spring", "train", 3, 1, "d")
WORDS = "the loss became nan in train-0003."


@pytest.fixture
def let_go(tmp_path, monkeypatch):
    """Sends a reply through a site's filter, which has let the order in."""
    guard = WhitelistFilter("answer", scope=True)
    monkeypatch.setattr(guard, "_settings", SiteSettings(state_root=tmp_path / "runs"))
    monkeypatch.setattr("fedretina.flare.whitelist_filter.require_known_filters", lambda fl_ctx: None)

    def send(reply, stamp=STAMP):
        fl_ctx = FLContext()
        fl_ctx.set_prop(ReservedKey.IDENTITY_NAME, "north", private=False, sticky=False)
        fl_ctx.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.OUT, private=True, sticky=False)
        fl_ctx.set_prop("fedretina_stamp", stamp, private=True, sticky=False)
        return guard.process(reply, fl_ctx)

    return send


@pytest.fixture
def reply():
    made = make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={WHY: WORDS})
    made.set_header("more", "of a file")
    return made


@pytest.mark.attack(
    "a hostile server",
    "learn more from a site's errors than its ledger shows",
    "each sentence stands there before it goes",
)
def test_a_sentence_stands_in_the_ledger_and_goes_alone(let_go, reply, tmp_path):
    left = let_go(reply)
    assert why(left) == WORDS
    assert "of a file" not in json.dumps(left)
    path = tmp_path / "runs" / "spring" / "north" / "ledger.jsonl"
    (line,) = Ledger(path).lines()
    assert (line["run"], line["phase"], line["round"], line["attempt"], line["words"]) == (*STAMP[:4], WORDS)
    assert "train 3 (attempt 1): an error: " + WORDS in _table("north", [line])


def test_where_the_ledger_cannot_be_written_flares_code_goes_alone(let_go, reply, tmp_path):
    (tmp_path / "runs").write_text("no folder")
    left = let_go(reply)
    assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert why(left) == "the site answered EXECUTION_EXCEPTION."
    assert WORDS not in json.dumps(left)


def test_a_sentence_that_answers_no_order_or_carries_data_is_refused(let_go, reply):
    with pytest.raises(RefusedError, match="answers no order"):
        let_go(reply, None)
    reply["DXO"] = {"more": 1}
    with pytest.raises(RefusedError, match="one sentence and no data"):
        let_go(reply)
