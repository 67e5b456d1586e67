"""How trials of one server depend on their order: it still warmed up in the first, or is slower in each than before.

Intervals take the differences between repeats for noise. A server at an address stays up through all of them, so a
difference may have a reason, which the interval would hold without a word. An engine that the harness starts is started
for each repeat.
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Trial, key_of

_PACES = ("output_tokens_per_s", "tpot_p50_s", "ttft_p50_s")
_MIN_TRIALS = 3
_MIN_DIFFERENCE, _AGREEMENT = 0.1, 0.25
"""The first trial differs if it is so far from the mean of the later ones, as a share of it, and these lie within this
share of the difference."""
_MIN_STEP = 0.05
"""Trials rise or fall if each differs from the one before by so much. With a noise of 3 % between trials, 0.3 % of
three repeats look like either by chance."""


class Course(msgspec.Struct, frozen=True):
    """A metric that depends on the order of trials.

    Attributes:
        engine, load: of the trials.
        metric: name in the catalogue.
        values: of the VALID trials, in order.
        is_first: whether only the first differs; otherwise all rise or fall.
    """

    engine: str
    load: str
    metric: str
    values: tuple[float, ...]
    is_first: bool


def courses(trials: Iterable[Trial]) -> list[Course]:
    """The metrics that depend on the order of trials, at most one for each server and load.

    Args:
        trials: finished ones of a run, in any order.
    """
    stayed_up: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in sorted(trials, key=lambda each: each.record.order):
        if trial.record.verdict is Verdict.VALID and trial.record.start_s is None:
            stayed_up.setdefault(key_of(trial.record), []).append(trial)
    found = (next(_of_server(engine, load, own), None) for (engine, _, load), own in stayed_up.items())
    return [course for course in found if course is not None]


def _of_server(engine: str, load: str, trials: list[Trial]) -> Iterator[Course]:
    for metric in _PACES:
        values = [value for trial in trials if (value := trial.metrics[metric].value) is not None]
        if len(values) < max(_MIN_TRIALS, len(trials)):
            continue
        first, *later = values
        mean = float(np.mean(later))
        difference = abs(first - mean)
        steps = np.diff(values) / values[:-1]
        if difference > _MIN_DIFFERENCE * mean and np.ptp(later) < _AGREEMENT * difference:
            yield Course(engine, load, metric, tuple(values), is_first=True)
        elif (steps > _MIN_STEP).all() or (steps < -_MIN_STEP).all():
            yield Course(engine, load, metric, tuple(values), is_first=False)


def course_note(course: Course) -> str:
    """``b, c=4: TPOT p50 of the first trial is 22 % above the later ones, …``."""
    first, *later = course.values
    name = f"{course.engine}, {course.load}: {CATALOGUE[course.metric].title}"
    change = first / float(np.mean(later)) - 1
    if course.is_first:
        side = "above" if change > 0 else "below"
        return (
            f"{name} of the first trial is {100 * abs(change):.0f} % {side} the later ones, which agree: the "
            "server may have been warming up; measure again now that it is warm"
        )
    rises = "rises" if course.values[-1] > first else "falls"
    return (
        f"{name} {rises} from trial to trial, by {100 * abs(course.values[-1] / first - 1):.0f} % in all: its interval "
        "holds this change, not noise"
    )
