"""What came out of the blocks: a page for the doctor, one for the researcher, README's first table, that of `analytic`.

`python -m fedretina_papers.blocks.results_pages` writes docs/does_it_help.md, docs/results.md, README's first table and
that of docs/analytic.md from what is stored.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedretina.report.text import NONE, number
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.training import LEAST_PATIENTS
from fedretina.storage import write_text
from fedretina_papers.blocks.gains import (
    FIGURE,
    Block,
    Gain,
    by_hospital,
    costs_told,
    gains,
    leads_of,
    size_told,
    stored_block,
    where_seen,
    worst,
)
from fedretina_papers.blocks.page import uncounted
from fedretina_papers.blocks.plan import LESS_IS_BETTER, BlockCase
from fedretina_papers.blocks.tables import (
    TITLES,
    Runs,
    images_held,
    lead_table,
    left_out,
    usual_passes,
)
from fedretina_papers.engine.page import page, write_page
from fedretina_papers.markdown import between, listed, signed, table
from fedretina_papers.packed import SUFFIX
from fedretina_papers.published import AVERAGE, published, published_oct

SHARED = "sums_both"
"""The row that a doctor's page speaks of: what `fedretina` gives in one message (row `analytic`) by its defaults."""
HELD = "sums_both_held"
"""The same with the default policy too, which keeps grades of few patients out of the message."""
TRAINED = "moco_fedavg"
"""On scans: clients pre-train the encoder together without labels, then a head that they share by FedAvg."""
CLOSEST = "mean"
"""Of the rows that no paper has, the one that beats every row alone by both primary figures in every cell of F1."""
BLOCKS = ("f1", "f2", "trunk", "e1", "e1_scans", "o1", "p1", "p1_photographs", "f3", "f3_scans")
_FIRST = (FIGURE, "kappa")
_BEGIN, _END = "<!-- from blocks/results_pages.py -->", "<!-- end -->"
_PHOTOGRAPHS = {
    "majority": "the commonest grade, for every image",
    "probe": "own head on the frozen encoder, nothing shared",
    "singleset": "a head trained alone",
    "singleset_slow_even": "the same at a lower rate, answering as if its grades were equally common",
    "mean_alone": "mean of two heads of its own, from sums over all stages and trained",
    "sums_both_held": "`analytic` by its defaults: mean of own and shared head, one message",
    "fedavg": "`fedavg`, a shared head, 20 rounds",
    "mean": "mean of heads from sums over all stages and of `fedprox` (of no paper; not in the product yet)",
    "pooled": "the network of `fedavg` on all images in one place",
    "pooled_exits": "the network of `fedee`, with early exits, on all images in one place",
}
"""Rows of README's first table on photographs, and on scans below."""
_SCANS = {
    "majority": "the commonest grade, for every image",
    "probe": "own head on the frozen encoder, nothing shared",
    "alone": "a head trained alone",
    "alone_moco": "the same, its encoder pre-trained without labels on all scans of its set, more than a client has",
    "alone_moco_even": "the same, answering as if its grades were equally common",
    "sums_both": "`analytic`: mean of own and shared head, one message",
    "fedavg": "`fedavg`, a shared head, 20 rounds",
    "moco_fedavg": "`fedavg`, 20 rounds, on an encoder that clients pre-trained together without labels",
    "moco_uniform": "the same, all clients weighing alike",
    "moco_scaffold": "`scaffold`, 20 rounds, on the same encoder",
    "pooled": "the network of `fedavg` on all scans in one place",
    "pooled_moco": "the same, its encoder pre-trained in one place, too",
}

_ANSWERS = {
    "majority": "the commonest grade, for every image",
    "probe": "own head on the frozen encoder, nothing shared: `own`",
    "singleset": "a head trained alone",
    "sums": "`federated`, every grade",
    "sums_both": "`both`, every grade",
    "sums_held": "`federated`, by the default policy",
    "sums_both_held": "`both`, by the default policy",
    "fedavg": "`fedavg`, a shared head, 20 rounds",
    "pooled": "the network of `fedavg` on all images in one place",
}
"""Rows of the tables of docs/analytic.md."""
_SETS = {"aptos2019": "APTOS 2019", "eyepacs": "EyePACS", "idrid": "IDRiD", "odir5k": "ODIR-5K"}
"""What the public sets of photographs are called."""
_OURS = {
    "majority": "the commonest grade, for every image",
    "probe": "own head from sums (probe)",
    "singleset_slow_even": "alone, hardest to beat by kappa",
    "mean_alone": "alone: mean of the own head from sums over all stages and SingleSet",
    "sums_stages": "heads from sums over all stages",
    "singleset": "a head trained alone, in as many passes",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "joined": "of no paper: heads from sums over all stages joined with FedAvg's",
    "joined_fedprox": "of no paper: the same joined with FedProx's",
    "mean_fedavg": "of no paper: mean of heads from sums over all stages and FedAvg",
    "mean": "of no paper: mean of heads from sums over all stages and FedProx",
    "pooled": "the network of FedAvg on all images in one place",
    "pooled_exits": "a network with early exits on all images in one place",
}
"""Rows of the table of methods of no paper, in docs/results.md."""
_PRINTED = {
    "singleset_trunk": ("table1", "singleset"),
    "singleset_trunk_eu": ("table2", "singleset_eu"),
    "singleset_trunk_tweu": ("table2", "singleset_tweu"),
    **{row: ("table1", row) for row in ("fedprox", "feddyn", "scaffold", "feddc", "moon", "fedbn")},
    **{row: ("table2", row) for row in ("eu", "tweu", "feduaa")},
}
"""Rows of the trunk to FedUAA's table and the name there, in docs/results.md."""
_BEFORE, _BEHIND = ("majority", "probe"), "pooled"
"""Controls that stand before and behind these rows."""
_STEPS = {
    "contrastive pre-training (here by FedAvg), under SCAFFOLD": (
        ("moco_scaffold", "scaffold"),
        ("oct_moco_scaffold", "oct_scaffold"),
    ),
    "SCAFFOLD in place of FedAvg (here with clients alike), pre-trained": (
        ("moco_scaffold", "moco_uniform"),
        ("oct_moco_scaffold", "oct_moco_fedavg"),
    ),
    "all scans in one place instead of FedAvg (here with clients alike)": (
        ("pooled", "fedavg_uniform"),
        ("oct_centralised", "oct_fedavg"),
    ),
}
"""What the OCT paper says each part adds: rows of O1, and names in the paper's tables."""
_BY = ("referable_auc", "kappa", "auc", "ece", "error_auroc")


def _rare(block: Block, case: int) -> float:
    """How much the default policy costs at most, over the sizes of a case."""
    return max(
        one.together - held.together
        for one, held in zip(gains(block, SHARED, case), gains(block, HELD, case), strict=True)
    )


class Shown(NamedTuple):
    """Rows of a table, at each number of images.

    Attributes:
        hospitals: How many there are.
        heads: Of its columns: images a hospital.
        rows: Title, the figures at each number of images, and what they cost: passes over the images and bytes sent.
    """

    hospitals: int
    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def _shown(block: Block, at: int, titles: Mapping[str, str], figures: Sequence[str], places: int = 2) -> Shown:
    case, sizes = block.cases[at]
    heads = [
        f"n = {size}"
        if isinstance(size, int)
        else f"{size.replace('%', ' % of the labels')}, median {images_held(runs)[1]}"
        for size, runs in sizes.items()
    ]
    rows, usual = [], min(usual_passes(block.plan, runs) for runs in sizes.values())
    for row, title in titles.items():
        cells = [" / ".join(f"{_mean(runs[row], figure):.{places}f}" for figure in figures) for runs in sizes.values()]
        every = [run for runs in sizes.values() for run in runs[row].values()]
        rows.append((title, [*cells, *costs_told(every, usual)]))
    return Shown(sum(case.hospitals.values()), [*heads, "training passes", "sent per hospital"], rows)


def readme_table(f1: Block, o1: Block) -> str:
    """README's first table: rows with their controls, at each number of images."""
    many = gains(f1, HELD)
    return page(
        "readme.md.j2",
        photographs=_shown(f1, 0, _PHOTOGRAPHS, _FIRST),
        scans=_shown(o1, len(o1.cases) - 1, _SCANS, ("auc", "balanced_accuracy")),
        defaults=[many[0], many[-1]],
        fewest=MIN_COUNT,
        uncounted=uncounted(o1.plan, o1.sets, [o1.cases[-1][0]]),
    ).strip()


def answers_table(photographs: Block, f1: Block) -> str:
    """The tables of docs/analytic.md: what heads from sums answer with, beside their controls.

    Args:
        photographs: P1 on photographs, whose sites have one camera each.
        f1: F1, where several hospitals have like cameras.
    """
    parts = []
    for title, block in (("sites of unlike cameras", photographs), ("hospitals, several of each camera", f1)):
        rows = {row.name for row in block.plan.rows}
        titles = {row: words for row, words in _ANSWERS.items() if row in rows}
        left = uncounted(block.plan, block.sets, [block.cases[0][0]])
        parts.append((title, _shown(block, 0, titles, ("auc", FIGURE), 3), [told for _, told in left]))
    means = [{row: _mean(runs[row], FIGURE) for row in (SHARED, HELD)} for runs in f1.cases[0][1].values()]
    lost = [f"{one[SHARED] - one[HELD]:.3f}" for one in means]
    return page("analytic.md.j2", parts=parts, many=parts[-1][1], lost=lost).strip()


def write_results(results: Path, docs: Path, readme: Path) -> None:
    """Write both pages and both tables.

    Args:
        results: Folder of the stored blocks.
        docs: Folder of the pages; analytic.md holds its table between two marks.
        readme: Holds its table between two marks.

    Raises:
        StateError: A block is missing or damaged.
    """
    blocks = {name: stored_block(results / f"{name}{SUFFIX}") for name in BLOCKS}
    f1, f2, e1, o1 = (blocks[name] for name in ("f1", "f2", "e1", "o1"))
    tables = {readme: readme_table(f1, o1), docs / "analytic.md": answers_table(blocks["p1_photographs"], f1)}
    for file, shown in tables.items():
        write_text(file, between(file.read_text(encoding="utf-8"), _BEGIN, _END, shown))
    by_name = ("auc", "balanced_accuracy")
    scans = [
        (case.title, {figure: (gains(o1, SHARED, at, figure), gains(o1, TRAINED, at, figure)) for figure in by_name})
        for at, (case, sizes) in enumerate(o1.cases)
        if sizes
    ]
    write_page(
        "does_it_help.md.j2",
        docs / "does_it_help.md",
        many=gains(f1, HELD),
        probe=[f"{100 * _mean(runs['probe'], FIGURE):.0f}" for runs in f1.cases[0][1].values()],
        names=_SETS,
        unlike=gains(f1, HELD, 1),
        grades=gains(f1, HELD, figure="kappa"),
        trained_grades=gains(f1, "fedavg", figure="kappa"),
        trained_unlike=_seen_with(gains(f1, "fedavg", 1, "kappa")),
        apart=_seen_with(gains(blocks["p1_photographs"], SHARED)),
        doubt=gains(f1, HELD, figure="error_auroc"),
        rare=_rare(f1, 0),
        rare_unlike=_rare(f1, 1),
        fewest=MIN_COUNT,
        enough=LEAST_PATIENTS,
        newcomer=gains(f2, HELD),
        scans=scans,
        seen=where_seen(o1, "balanced_accuracy", TRAINED)
        .replace("clients", "clinics")
        .replace("labels", "scans graded"),
        few=min(o1.sets["kermany"]["images"]["test"]),
        costs=_scan_costs([both for _, both in scans]),
        uncounted=uncounted(o1.plan, o1.sets, [case for case, sizes in o1.cases if sizes]),
        elsewhere=gains(e1, SHARED, figure="error_auroc"),
    )
    cases = [(block, case, sizes) for block in blocks.values() for case, sizes in block.cases if sizes]
    leads = [
        (block.plan, case, lead_table(block.plan, sizes), _macro_left_out(block, case)) for block, case, sizes in cases
    ]
    write_page(
        "results.md.j2",
        docs / "results.md",
        leads=leads,
        fewest=MIN_COUNT,
        ours=[(case.title, _ours(f1, at)) for at, (case, sizes) in enumerate(f1.cases) if sizes],
        ours_left=left_out(f1.cases[0][0], f1.sets, f1.plan.least),
        trunk_left=left_out(blocks["trunk"].cases[0][0], blocks["trunk"].sets, blocks["trunk"].plan.least),
        closest=leads_of(f1, CLOSEST),
        joined=leads_of(f1, "joined"),
        joined_fedprox=leads_of(f1, "joined_fedprox"),
        claimed=_claimed(blocks["trunk"]),
        steps=_steps(o1),
        scans={figure: where_seen(o1, figure) for figure in by_name},
        photographs=blocks["p1_photographs"].said(),
    )


def _seen_with(found: Sequence[Gain]) -> str:
    """With how many images a gain is told from chance, in words, and where there are such with how many it is not."""
    seen, unseen = (
        [size_told(one.size) for one in found if one.against is not None and one.against.helps is helps]
        for helps in (True, False)
    )
    if not seen:
        return "nowhere"
    return f"with {listed(seen)} photographs" + (f" and not with {listed(unseen)}" if unseen else "")


def _scan_costs(scans: Sequence[Mapping[str, tuple[Sequence[Gain], Sequence[Gain]]]]) -> dict[str, str]:
    """Passes and bytes of the ways that the doctor's page shows on scans, over all cases, sizes and figures."""
    message = [one for both in scans for first, _ in both.values() for one in first]
    trained = [one for both in scans for _, second in both.values() for one in second]
    found = {
        "alone": [one.passes[0] for one in message],
        "best": [one.passes[1] for one in message],
        "message": [one.passes[2] for one in message],
        "trained": [one.passes[2] for one in trained],
        "sent_message": [one.sent for one in message],
        "sent_trained": [one.sent for one in trained],
    }
    return {name: " or ".join(dict.fromkeys(values)) for name, values in found.items()}


def _macro_left_out(block: Block, case: BlockCase) -> str:
    """Which grades the primary figures of a case leave out, where one of these is a mean over grades; else ""."""
    macro = {"auc", "balanced_accuracy"} & set(block.plan.figures[: block.plan.primary])
    return left_out(case, block.sets, block.plan.least) if macro else ""


def _ours(block: Block, case: int) -> list[str]:
    """Rows of no paper beside their parts, and the best row alone by each figure: a table of the page of results."""
    sizes = block.cases[case][1]
    heads = [*(TITLES[figure] for figure in _BY), "training passes", "sent per hospital"]
    heads.insert(2, "worst hospital's kappa")
    usual = min(usual_passes(block.plan, runs) for runs in sizes.values())
    alone = [row.name for row in block.plan.rows if row.role == "alone" and row.kind != "majority"]
    rows: list[list[str]] = []
    shown = {"the best row alone by each figure": alone, **{words: [row] for row, words in _OURS.items()}}
    for title, names in shown.items():
        told = []
        for figure in _BY:
            told.append([_best(runs, names, figure) for runs in sizes.values()])
            if figure == "kappa":
                told.append([max(worst(runs[name], figure) for name in names) for runs in sizes.values()])
        every = [run for runs in sizes.values() for run in runs[names[0]].values()]
        costs = costs_told(every, usual) if len(names) == 1 else (NONE, NONE)
        rows.append([title, *(", ".join(number(value, 3) for value in each) for each in told), *costs])
    return table(["row", *heads], rows)


def _claimed(trunk: Block) -> list[str]:
    """FedUAA's Tables 1 and 2 as printed, beside the same methods here: macro AUC, and how much over staying alone."""
    sizes = trunk.cases[0][1]
    shown = (*_BEFORE, *_PRINTED, _BEHIND)
    ours = {row: [_mean(runs[row], "auc") for runs in sizes.values()] for row in shown}
    tables = published().tables
    paper = {row: tables[at].printed[tables[at].rows[name]][AVERAGE] for row, (at, name) in _PRINTED.items()}
    first = next(iter(_PRINTED))
    usual = min(usual_passes(trunk.plan, runs) for runs in sizes.values())
    rows = [
        [
            trunk.plan.row(row).title,
            _over(paper[row], paper[first]) if row in paper else NONE,
            *(_over(value, alone) for value, alone in zip(ours[row], ours[first], strict=True)),
            *costs_told([run for runs in sizes.values() for run in runs[row].values()], usual),
        ]
        for row in shown
    ]
    costs = ("training passes here", "sent per hospital here")
    return table(["row", "printed", *(f"here, {size} images" for size in sizes), *costs], rows)


def _over(value: float, alone: float) -> str:
    return number(value, 3) if value == alone else f"{number(value, 3)} ({signed(value - alone, 3)})"


def _steps(scans: Block) -> list[str]:
    """What the OCT paper says that its parts add, in points of accuracy, beside the same differences in O1."""
    printed = {
        ours: figures["accuracy"]
        for at in ("table3", "table5")
        for ours, title in published_oct().tables[at].rows.items()
        for figures in [published_oct().tables[at].printed[title]]
    }
    rows, every = [], [runs for _, sizes in scans.cases for runs in sizes.values()]
    usual = min(usual_passes(scans.plan, runs) for runs in every)
    for step, ((more, less), (with_it, without)) in _STEPS.items():
        costs = [costs_told([run for runs in every for run in runs[row].values()], usual) for row in (more, less)]
        ours = [
            [100 * (_mean(runs[more], "accuracy") - _mean(runs[less], "accuracy")) for runs in sizes.values()]
            for _, sizes in scans.cases
        ]
        rows.append(
            [
                step,
                signed(printed[with_it] - printed[without], 1),
                *(", ".join(signed(value, 1) for value in each) for each in ours),
                *(" and ".join(each) for each in zip(*costs, strict=True)),
            ]
        )
    of_both = ("training passes of both here", "sent per client by both here")
    return table(["step", "printed", *(case.title for case, _ in scans.cases), *of_both], rows)


def _mean(runs: Mapping[int, Mapping[str, Any]], figure: str) -> float:
    return fmean(by_hospital(runs, figure).values())


def _best(runs: Runs, names: Sequence[str], figure: str) -> float:
    means = [_mean(runs[name], figure) for name in names]
    return min(means) if figure in LESS_IS_BETTER else max(means)


def main() -> int:
    """Write both pages of this project's docs, README's table and that of `analytic`."""
    root = Path(__file__).resolve().parents[3]
    write_results(root / "benchmarks" / "results", root / "docs", root / "README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
