"""The figures on the page of codecs come from their stored runs alone."""

from benchmarks.wire_codec_page import PAGE, figures


def test_the_figures_of_the_page_are_those_of_the_stored_runs():
    assert f"<!-- begin figures -->\n{figures()}\n<!-- end figures -->" in PAGE.read_text()
