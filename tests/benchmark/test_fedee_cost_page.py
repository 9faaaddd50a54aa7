"""What the page says of FedEE's costs."""

from __future__ import annotations

import pytest

from fedretina.benchmark.fedee_cost_page import claim_words


@pytest.mark.parametrize(("ratio", "words"), [(1.04, "holds here"), (1.2, "does not hold here")])
def test_the_claim_is_worded_by_the_measurement(ratio, words):
    exits = {"inference_ratio": {"median": ratio, "low": ratio - 0.01, "high": ratio}, "multiply_adds": 101}
    text = claim_words({"methods": {"FedEE": exits, "Backbone": {"multiply_adds": 100}}})[0]
    assert words in text
    assert "add 1.00 %" in text
