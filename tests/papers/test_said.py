"""Figures in a block's prose are those of its own tables."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from fedretina_papers.blocks.gains import stored_block
from fedretina_papers.blocks.said import Said

ROOT = Path(__file__).parents[2]
SIZES = ("15", "30", "60", "120", "all")
PROBE, SUMS, LONGER, MOCO = (
    "ImageNet; own head (probe)",
    "ImageNet; federated head",
    "Pre-trained together, longer; federated head",
    "Pre-trained together; federated head",
)
FIGURES = pytest.mark.parametrize(("figure", "by"), [("", "referable AUC"), ("kappa", "quadratic kappa")])


@pytest.fixture(scope="module")
def said():
    return stored_block(ROOT / "benchmarks" / "results" / "p1_photographs.jsonl.gz").said()


@pytest.fixture(scope="module")
def tables():
    """The page's tables of each size: by the first two titles their titles and lines."""
    page = (ROOT / "docs" / "p1_photographs.md").read_text().split("\n## Tuning")[0]
    found = {}
    for size, section in zip(SIZES, page.split("\n### ")[1:], strict=True):
        for one in section.split("\n\n"):
            rows = [line.strip("| ").split(" | ") for line in one.splitlines() if line.startswith("| ")]
            if rows:
                found[size, *rows[0][:2]] = rows
    return found


def cells(tables, heads, first, title):
    """What stands under a title in the line of each size that begins so."""
    found = []
    for size in SIZES:
        head, *rows = tables[size, *heads]
        (row,) = [one for one in rows if one[: len(first)] == list(first)]
        found.append(row[head.index(title)])
    return found


def listed(words):
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def in_words(p):
    """At which sizes p is small, from the cells of a table."""
    values = dict(zip(SIZES, p, strict=True))
    seen = {size: one for size, one in values.items() if float(one.strip("< ")) < 0.05}
    if seen:
        return f"seen with {listed(list(seen))} (p {listed(list(seen.values()))})"
    least = min(p, key=float)
    return f"nowhere seen (p {'1' if least == '1.000' else f'{least} or more'})"


@FIGURES
def test_a_mean_is_that_of_the_table(said, tables, figure, by):
    shown = cells(tables, ("row", "who"), (PROBE, "alone"), by)
    words = '{{ mean("probe"' + (f', "{figure}"' if figure else "") + ") }}"
    assert said.fill(f"It has {words}.") == f"It has {listed([one.strip('*').split(' (')[0] for one in shown])}."


@FIGURES
def test_a_difference_and_its_p_are_those_of_the_table_that_has_both_rows(said, tables, figure, by):
    pairs, reference = (("row", "against"), (LONGER, MOCO, by)), ((f"against {SUMS}", "by"), (LONGER, by))
    for other, (heads, first) in (("moco_sums", pairs), ("sums", reference)):
        assert said.gap("longer_sums", other, figure) == listed(cells(tables, heads, first, "difference"))
        assert said.told("longer_sums", other, figure) == in_words(cells(tables, heads, first, "p, Holm"))


@FIGURES
def test_a_lead_and_its_p_are_those_over_the_row_alone_that_is_least_beaten(said, tables, figure, by):
    p = cells(tables, ("row", "by"), (SUMS, by), "beats every row alone: p, Holm")
    assert said.lead("sums", figure) == listed(cells(tables, ("row", "by"), (SUMS, by), "difference"))
    assert said.beats("sums", figure) == in_words(p)


def test_paragraphs_without_figures_stay_and_what_is_not_there_is_refused(said):
    assert said.fill("As it is: {no figure}.") == "As it is: {no figure}."
    with pytest.raises(UndefinedError):
        said.fill("{{ nothing }}")
    with pytest.raises(KeyError):
        said.fill('{{ gap("longer_sums", "probe") }}')  # no table tests them
    assert Said({}).fill('{{ mean("probe") }}') == "(not run in all draws yet)"
