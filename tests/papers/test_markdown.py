"""What stands between two marks of a page."""

import pytest

from fedretina_papers.markdown import between


def test_the_text_between_the_marks_is_another_and_all_else_stays():
    assert between("a [b]old[/b] c", "[b]", "[/b]", "new") == "a [b]\nnew\n[/b] c"


@pytest.mark.parametrize("page", ["a", "a [b] c", "a [/b] c", "[/b] a [b]", "[b] [/b] [b] [/b]", "[b] [/b] [/b]"])
def test_a_page_without_each_mark_once_is_refused(page):
    with pytest.raises(ValueError, match="once each"):
        between(page, "[b]", "[/b]", "new")
