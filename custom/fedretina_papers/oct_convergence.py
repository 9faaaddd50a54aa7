"""The picture of convergence: validation accuracy by round, the rounds without labels counted too."""

from __future__ import annotations

from fedretina.report.svg import Chart
from fedretina_papers.line_chart import Series, line_chart
from fedretina_papers.oct_runs import OctResults
from fedretina_papers.oct_tables import not_in_the_paper
from fedretina_papers.published_oct import published_oct


def convergence_chart(results: OctResults) -> Chart | None:
    """Mean validation accuracy of the sites by round, a line a row; None without runs.

    Shown are the rows of Tables 3 and 5 and those that the paper has not, where they trained as many rounds with labels
    as the proposed method, or more. A line begins at the first round with labels.
    """
    paper = published_oct()
    names = [*paper.tables["table3"].rows, *paper.tables["table5"].rows, *not_in_the_paper(results)]
    courses = {name: course for name in dict.fromkeys(names) if (course := _course(results, name))}
    own = courses.get(paper.proposed)
    least = len(own[0]) if own else max((len(xs) for xs, _ in courses.values()), default=0)
    series = [
        Series(results.runs[name][0].run.title, xs, by_seed, name == paper.proposed)
        for name, (xs, by_seed) in courses.items()
        if len(xs) >= least
    ]
    return line_chart("oct_convergence", series, "round", "validation accuracy, mean of the sites")


def _course(results: OctResults, name: str) -> tuple[list[int], list[list[float]]] | None:
    """Rounds with an accuracy, from 1, and the accuracies in [0, 1] by seed; None unless all seeds went alike."""
    told = [
        [(at, note.accuracy) for at, note in enumerate(one.run.history, 1) if note.accuracy is not None]
        for one in results.runs.get(name, ())
    ]
    rounds = {tuple(at for at, _ in course) for course in told}
    if len(rounds) != 1 or not all(told):
        return None
    return list(rounds.pop()), [[value for _, value in course] for course in told]
