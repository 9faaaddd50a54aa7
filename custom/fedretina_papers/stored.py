"""What a benchmark left on disk: its plan, a record a run, and the answers to the test images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import StateError
from fedretina.evaluation.referable import ReferralTask, referral_task
from fedretina.settings.scheme import GradingScheme
from fedretina.storage import read_json

Record = Mapping[str, Any]


def end_words(records: Iterable[Record]) -> str:
    """What bytes of stored runs leave out, to stand behind them in a sentence; empty where they leave out nothing.

    Args:
        records: Of runs, with what each phase `moved`. A run of an older version did not count its end.
    """
    lacking = ["finalise" not in (record.get("moved") or {}) for record in records]
    if not any(lacking):
        return ""
    of = "" if all(lacking) else f"in {sum(lacking)} of {len(lacking)} runs "
    return f"{of}without the model that goes down once at the end"


class Answers(NamedTuple):
    """What one run answered about a site's test images, and the truth.

    Attributes:
        probabilities: float64 [N, K].
        uncertainty: float64 [N].
        labels: int64 [N].
        patients: Patient of each image [N], hashed.
        scores: What the macro AUC ranks, float64 [N, K].
        referral: The task of referable disease; None where the site names no referable grade.
    """

    probabilities: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    labels: NDArray[np.int64]
    patients: tuple[str, ...]
    scores: NDArray[np.float64]
    referral: ReferralTask | None

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether the answered grade is not the true one [N]."""
        failed: NDArray[np.bool_] = np.not_equal(np.argmax(self.probabilities, axis=1), self.labels)
        return failed


class Benchmark(NamedTuple):
    """The plan and the runs that are there.

    Attributes:
        plan: As the runner wrote it.
        runs: Record of each run by row and seed, rows in the order of the plan; a row without runs is left out.
    """

    plan: Record
    runs: Mapping[str, Mapping[int, Record]]

    @property
    def reference(self) -> str:
        """The row with which the others are compared."""
        return str(self.plan["reference"])

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites in the order of the plan."""
        return tuple(self.plan["sites"])

    @property
    def rivals(self) -> tuple[str, ...]:
        """The rows that share a seed with the reference, without the reference itself."""
        return tuple(name for name in self.runs if name != self.reference and self.paired_seeds(name))

    @property
    def controls(self) -> tuple[str, ...]:
        """Rows of the plan that each site trains alone, and those of all images in one place; run or not."""
        return (*self.alone, *self._of_role("pooled"))

    @property
    def alone(self) -> tuple[str, ...]:
        """Rows of the plan that a site has by itself: what a federated row has to beat; run or not."""
        return self._of_role("alone")

    @property
    def together(self) -> tuple[str, ...]:
        """Federated rows that were run."""
        return tuple(name for name in self._of_role("federated") if name in self.runs)

    @property
    def apart(self) -> Mapping[str, str]:
        """Rows of the plan that stand in a table of their own alone, each with the row that it varies; run or not."""
        found: Mapping[str, str] = self.plan.get("apart") or {}  # the plan of an older version names none
        return found

    def _of_role(self, role: str) -> tuple[str, ...]:
        roles = self.plan.get("roles") or {}  # the plan of an older version names none
        return tuple(name for name in self.plan["rows"] if roles.get(name) == role)

    def trained_on(self, name: str) -> frozenset[str]:
        """Sites that took part in a row's training; none where it was not run."""
        runs = self.runs.get(name, {}).values()
        return frozenset(site for run in runs for site, one in run["sites"].items() if one.get("trained", True))

    @property
    def resplit(self) -> bool:
        """Whether every seed splits the patients anew."""
        return bool(self.plan["splits"] == "repeated")

    def title(self, name: str) -> str:
        """A row as print names it; a variant that shares its title with another row has its own name behind it."""
        first = {row: next(iter(seeds.values())) for row, seeds in self.runs.items()}
        if name not in first:
            return name
        title, itself = str(first[name]["title"]), first[name]["row"] == name
        alone = sum(str(one["title"]) == title for one in first.values()) == 1
        return title if alone or itself else f"{title} ({name})"

    def compared(self, statistics: Record) -> list[tuple[str, Record]]:
        """The stored comparisons in the order of the plan."""
        compared = statistics["comparisons"]
        return [(name, compared[name]) for name in self.plan["rows"] if name in compared]

    def paired_seeds(self, name: str, other: str = "") -> tuple[int, ...]:
        """Seeds that both a row and another have, the reference by default."""
        return tuple(sorted(set(self.runs.get(name, {})) & set(self.runs.get(other or self.reference, {}))))

    def figure(self, name: str, seed: int, site: str, key: str) -> float | None:
        """A test figure of one run at one site; None where it is undefined or the site took no part."""
        found = self.runs[name][seed]["sites"].get(site, {}).get("test", {}).get(key)
        return None if found is None else float(found)

    def some(self, site: str) -> Record:
        """What the first run that has a site says of it; empty without one."""
        for seeds in self.runs.values():
            for run in seeds.values():
                if site in run["sites"]:
                    found: Record = run["sites"][site]
                    return found
        return {}

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Sites whose images were drawn, not taken."""
        return tuple(site for site in self.sites if self.some(site).get("synthetic"))


def read_benchmark(out: Path) -> Benchmark:
    """Read a benchmark's plan and the runs that are done.

    Raises:
        StateError: There is no plan, or a record is damaged.
    """
    plan = read_json(out / "plan.json")
    runs: dict[str, dict[int, Record]] = {}
    for name in plan["rows"]:
        found = [read_json(path) for path in sorted((out / "results" / name).glob("seed-*.json"))]
        if found:
            runs[name] = {int(record["seed"]): record for record in sorted(found, key=lambda one: int(one["seed"]))}
    return Benchmark(plan, runs)


def answers_path(out: Path, name: str, seed: int, site: str) -> Path:
    """Where a run's answers about a site's images lie."""
    return out / "answers" / name / f"seed-{seed}" / f"{site}.npz"


def read_answers(out: Path, name: str, seed: int, site: str) -> Answers:
    """Read what a run answered about a site's test images.

    Raises:
        StateError: The file is missing or damaged.
    """
    path = answers_path(out, name, seed, site)
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        probabilities = arrays["probabilities"].astype(np.float64)
        labels = arrays["labels"].astype(np.int64)
        return Answers(
            probabilities=probabilities,
            uncertainty=arrays["uncertainty"].astype(np.float64),
            labels=labels,
            patients=tuple(str(patient) for patient in arrays["patients"]),
            scores=arrays["scores"].astype(np.float64),
            referral=referral(probabilities, labels, arrays["referable"].tolist(), int(arrays["ungradable"])),
        )
    except FileNotFoundError as error:
        raise StateError(
            f"{path} is missing, so the rows cannot be compared image by image: bring the answers from the machine "
            "that ran the benchmark, or leave the stored statistics as they are."
        ) from error
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise StateError(
            f"{path} cannot be read ({error}): delete it with its result and run this seed again."
        ) from error


def referral(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], referable: Sequence[int], ungradable: int
) -> ReferralTask | None:
    """Referable disease from class numbers alone; None where none is named, `ungradable` -1 where there is none."""
    grades = [f"grade {number}" for number in range(probabilities.shape[1])]
    scheme = GradingScheme(  # type: ignore[call-arg]
        grades=tuple(grades),
        ungradable=None if ungradable < 0 else grades[ungradable],
        referable=tuple(grades[number] for number in referable),
    )
    return referral_task(probabilities, labels, scheme)
