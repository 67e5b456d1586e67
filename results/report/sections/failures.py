"""Outcomes of requests, which sum to the requests planned, how answers ended, and the engines' error messages."""

from collections import Counter

import msgspec

from bakeoff.results.records import Outcome
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.section import Section
from bakeoff.results.run.cells import Cell as MeasuredCell
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Table, Tone, figures, names
from bakeoff.results.text.format import share_text

MAX_MESSAGES = 8
_MAX_CHARACTERS = 400


class EndRow(msgspec.Struct, frozen=True):
    """How the answers of one engine at one load ended, over its valid trials.

    Attributes:
        shares: finish reason → share of the answers, the most frequent first.
    """

    engine: str
    colour: str
    level: str
    shares: list[tuple[str, str]]


class Message(msgspec.Struct, frozen=True):
    """A distinct error message and its count."""

    engine: str
    colour: str
    outcome: str
    text: str
    count: int


def _outcomes(run: Run) -> Table:
    """One row per engine and level, over its finished trials, INVALID ones included."""
    engine_cell = engine_cells(run)

    def row(level: Level, cell: MeasuredCell) -> list[Cell]:
        trials = run.trials_of(cell)
        counts = [int(sum(trial.load.equal("outcome", outcome).sum() for trial in trials)) for outcome in Outcome]
        planned = sum(trial.record.planned_requests for trial in trials)
        missing = max(0, planned - sum(counts))
        answered, *others = counts
        return [
            *(Cell(level.title), engine_cell(cell.engine)),
            Cell(f"{answered:,}", tone=None if answered else Tone.ZERO),
            *(Cell(f"{count:,}", tone=Tone.BAD if count else Tone.ZERO) for count in (*others, missing)),
            Cell(f"{planned:,}"),
        ]

    return Table(
        "Outcomes of requests",
        [*names("load", "engine"), *figures([each.value.replace("_", " ") for each in Outcome]),
         *figures(["no record", "planned"])],
        [row(level, cell) for level in levels_of(run) for cell in level.cells],
        lead="Every planned request has exactly one outcome, so each row sums to its planned requests. INVALID trials "
        "are included.",
    )  # fmt: skip


def end_rows(run: Run) -> list[EndRow]:
    """Finish reasons per engine and level, as the engines name them."""
    engines = engines_of(run)
    rows: list[EndRow] = []
    for level in levels_of(run):
        for cell in level.cells:
            answered = [trial.answered.values("finish_reason") for trial in run.valid_trials_of(cell)]
            reasons = Counter(reason or "(none)" for of_trial in answered for reason in of_trial)
            shares = [(reason, share_text(count, reasons.total())) for reason, count in reasons.most_common()]
            if shares:
                rows.append(EndRow(cell.engine, engine_class(engines.index(cell.engine)), level.title, shares))
    return rows


def messages(run: Run) -> list[Message]:
    """The most frequent error messages, at most :data:`MAX_MESSAGES`."""
    engines = engines_of(run)
    counts = Counter(
        (trial.record.engine, request.outcome.value, request.error or "(no message)")
        for trial in run.finished
        for request in trial.requests.take(~trial.requests.is_ok)
    )
    return [
        Message(engine, engine_class(engines.index(engine)), outcome, _cut(text), count)
        for (engine, outcome, text), count in counts.most_common(MAX_MESSAGES)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} … ({len(text):,} characters)"


SECTIONS = (
    Section(
        id="failures",
        title="Failures",
        shows="one class for each request; finish reasons; error messages",
        place=120,
        build=lambda run: {
            "outcomes": _outcomes(run),
            "end_rows": end_rows(run),
            "messages": messages(run),
        },
    ),
)
