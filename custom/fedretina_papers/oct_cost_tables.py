"""The OCT paper's tables of costs from our runs: 6 (communication), 7 (number of sites) and 9 (encoders)."""

from __future__ import annotations

from fedretina.report.text import NONE, number
from fedretina_papers.faced_table import Column, faced, notes, our_encoder, over_seeds
from fedretina_papers.markdown import NOT_RUN, listed, table
from fedretina_papers.oct_runs import OctFigures, OctResults
from fedretina_papers.oct_tables import ACCURACY, MULTIPLY_ADDS, PARAMETERS, PRECISION, RECALL
from fedretina_papers.published_oct import published_oct, recomputed

_UP = Column("GB up", lambda one: one.moved.up, None, 2, 1e-9)
_BOTH = Column("GB up and down", lambda one: one.moved.both, None, 2, 1e-9)


def communication_table(results: OctResults) -> list[str]:
    """Table 6: what moved, and the printed totals beside what they should be by the paper's own terms."""
    paper = published_oct().tables["table6"]
    columns = (
        Column("MB up, a site and round", _upload, "megabytes", 2, 1e-6),
        Column("rounds", lambda one: len(one.run.history), "rounds", 0, 1, 0),
        Column("sites", lambda one: one.sites, "uploads", 0, 1, 0),
        _UP,
        Column("GB down", lambda one: one.moved.down, None, 2, 1e-9),
        ACCURACY,
    )
    rows = []
    for name, said in paper.rows.items():
        printed = paper.printed[said]
        moved = over_seeds(results.values(name, lambda one: one.moved.both / 1e9), 2)
        rows.append(
            [
                said,
                number(printed["gigabytes"], 1),
                *(number(one, 2) for one in recomputed(printed)),
                moved if name in results.runs else NOT_RUN,
                f"{number(printed['reduction'], 1)} %",
                _reduction(results, name),
            ]
        )
    head = ["row", "printed (GB)", "its own formula", "with controls", "up and down", "ours, measured"]
    return [
        "Measured over the whole run, every phase and site, in bytes of tensors. SCAFFOLD sends a control variate "
        "beside each weight, and a row with pre-training has its rounds too.",
        "",
        *faced(results, paper, columns, our_encoder(results)),
        "The paper's totals, recomputed from its own sizes, rounds and uploads, in GB. A reduction is what is saved "
        "against the first row; below 0 more is moved:",
        "",
        *table([*head, "reduction, printed", "reduction, ours"], rows),
        *notes(paper),
    ]


def sites_table(results: OctResults) -> list[str]:
    """Table 7: the proposed method over more sites."""
    paper = published_oct().tables["table7"]
    columns = (
        ACCURACY,
        PRECISION,
        RECALL,
        Column("MB up a round, all sites", _upload_of_all, "megabytes", 2, 1e-6),
        _UP._replace(printed="gigabytes"),
        _BOTH,
        Column("minutes a round", _minutes, "minutes", 2),
        Column("training images", lambda one: one.run.training_images, None, 0),
    )

    def total(name: str) -> str:
        printed = paper.printed[paper.rows[name]]
        return number(printed["megabytes"] * printed["rounds"] / 1000, 2)

    more = {"paper's GB, recomputed": total, "our sites": lambda name: _sites(results, name)}
    return [
        "Ours run the sites one after the other on one machine, so that a round takes longer the more sites there are; "
        "the paper's had a machine each.",
        "",
        *faced(results, paper, columns, more),
        *notes(paper),
    ]


def encoder_table(results: OctResults) -> list[str]:
    """Table 9: encoders under the proposed method."""
    paper, proposed = published_oct().tables["table9"], published_oct().proposed
    runs = results.runs.get(proposed)
    ours = {proposed: f"ours: {runs[0].run.title}"} if runs else {}
    columns = (
        PARAMETERS,
        MULTIPLY_ADDS,
        ACCURACY,
        Column("ms an image", lambda one: one.run.inference_s, "milliseconds", 1, 1e3, 0),
        Column("peak memory of a training step (GB)", lambda one: one.run.memory_bytes, "memory", 2, 1e-9),
        _BOTH._replace(printed="gigabytes"),
        Column("rounds", lambda one: len(one.run.history), None, 0),
    )
    return [
        "Ours count each network with its own head and size of images. Accuracies and bytes compare only between runs "
        "of as many rounds. Time and memory were measured after the runs, one network at a time; the time holds what "
        "else the machine did.",
        "",
        *faced(results, paper._replace(rows={**paper.rows, **ours}), columns, our_encoder(results)),
        *notes(paper),
    ]


def _upload(figures: OctFigures) -> float | None:
    """Mean bytes that a site sends in a round; phases may differ in what travels."""
    rounds = len(figures.run.history) * figures.sites
    return figures.moved.up / rounds if rounds else None


def _upload_of_all(figures: OctFigures) -> float | None:
    one = _upload(figures)
    return None if one is None else one * figures.sites


def _sites(results: OctResults, name: str) -> str:
    counts = sorted({one.sites for one in results.runs.get(name, ())})
    return listed([str(one) for one in counts]) if counts else NONE


def _minutes(figures: OctFigures) -> float | None:
    rounds = len(figures.run.history)
    return None if figures.run.seconds is None or not rounds else figures.run.seconds / rounds / 60


def _reduction(results: OctResults, name: str) -> str:
    """Bytes saved against the first row, FedAvg, both ways, in per cent; negative where more moves."""
    first = next(iter(published_oct().tables["table6"].rows))
    ours, theirs = (results.values(one, lambda figures: figures.moved.both) for one in (name, first))
    if not ours or not theirs or not sum(theirs):
        return NONE
    return f"{number(100 * (1 - (sum(ours) / len(ours)) / (sum(theirs) / len(theirs))), 1)} %"
