"""Trials of one server that differ by their order."""

import msgspec
import pytest

from bakeoff.results import Run
from bakeoff.results.metrics.values import Value
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.course import course_note, courses

WARMING_UP, SLOWING_DOWN = (0.030, 0.0201, 0.020, 0.0202), (0.0223, 0.0265, 0.0309)


def trials(run: Run, *tpot_s: float, start_s: float | None = None) -> list[Trial]:
    (trial,) = run.finished
    return [
        msgspec.structs.replace(
            trial,
            record=msgspec.structs.replace(trial.record, order=place, start_s=start_s),
            metrics={**trial.metrics, "tpot_p50_s": Value(value)},
        )
        for place, value in enumerate(tpot_s)
    ]


@pytest.mark.parametrize(
    ("tpot_s", "words"),
    [
        (WARMING_UP, "TPOT p50 of the first trial is 49 % above the later ones"),
        (SLOWING_DOWN, "TPOT p50 rises from trial to trial, by 39 % in all"),
    ],
)
def test_a_server_that_stays_up_has_a_history(one_trial: Run, tpot_s: tuple[float, ...], words: str):
    made = trials(one_trial, *tpot_s)
    (course,) = courses(reversed(made))
    assert words in course_note(course)
    assert not courses(trials(one_trial, *tpot_s, start_s=3.0))  # a start for each
    assert not courses(made[:2])


def test_noise_is_no_history(one_trial: Run):
    assert not courses(trials(one_trial, 0.0200, 0.0206, 0.0195, 0.0203))
    assert not courses(trials(one_trial, 0.0230, 0.0200, 0.0225))  # the later ones do not agree
