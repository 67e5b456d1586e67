"""The comparison page: the gate's verdict, and every ratio with its interval on one axis."""

from pathlib import Path

import msgspec

from bakeoff.results.compare.comparison import EngineComparison, compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import GateVerdict, Outcome, effect_clause, judge
from bakeoff.results.compare.sides import Side, side_of
from bakeoff.results.dashboard.pages import served
from bakeoff.results.errors import NoEvidence, ResultsError
from bakeoff.results.metrics import CATALOGUE, HEADLINE
from bakeoff.results.report.compare_table import noise_lines, tally
from bakeoff.results.report.comparisons import comparison_tables
from bakeoff.results.report.gate import doubt_texts, regression_texts
from bakeoff.results.run.run import load
from bakeoff.results.show.table import Table
from bakeoff.results.statistics import COMPARE_ALPHA, DETECT, Judgement

_OUTCOME_CLASSES = {
    Outcome.NO_REGRESSION: "no-regression",
    Outcome.REGRESSION: "regression",
    Outcome.CANNOT_TELL: "open",
    Outcome.NO_EVIDENCE: "open",
}


class Choice(msgspec.Struct, frozen=True):
    """An option for a side: value in the query string, and text."""

    value: str
    text: str


class ComparePage(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the page.

    Attributes:
        name: title of the page.
        choices: sides available in the chosen runs.
        metrics: names and titles of possible primary metrics.
        a: side chosen as the baseline.
        b: side chosen as the candidate.
        primary: name of the primary metric; empty for the default.
        problem: why there is no comparison.
        headline: the gate's outcome, or that the candidate is better; empty if too few trials are valid.
        class_: of the headline.
        sentence: result of the primary metric, behind the headline.
        lines: regressions and doubts.
        notes: caveats.
        tables: of the comparison.
        tally: count of each judgement, and their confidence level.
    """

    name: str
    choices: list[Choice]
    metrics: list[tuple[str, str]]
    a: str
    b: str
    primary: str
    problem: str = ""
    headline: str = ""
    class_: str = ""
    sentence: str = ""
    lines: list[str] = []
    notes: list[str] = []
    tables: list[Table] = []
    tally: str = ""


def compare_html(root: Path, a: str, b: str, primary: str) -> str:
    """Render the page.

    Args:
        root: folder of the runs.
        a: ``RUN@ENGINE``, or ``RUN`` for the engine that the other side has too, else its first engine.
        b: as ``a``.
        primary: name of the primary metric; empty for the rule of :mod:`bakeoff.results.compare.primary`.
    """
    return served("compare.html", compare_page(root, a, b, primary))


def compare_page(root: Path, a: str, b: str, primary: str) -> ComparePage:
    """Build the content of the page, with the arguments of :func:`compare_html`."""
    try:
        choices = _choices(root, a, b)
    except ResultsError as error:
        return ComparePage(name="Compare", choices=[], metrics=[], a=a, b=b, primary=primary, problem=str(error))
    a, b = _sides(a, b, choices)
    page = ComparePage(
        name=f"{b} against {a}",
        choices=[Choice(value, value.replace("@", " · ")) for value in choices],
        metrics=[(name, CATALOGUE[name].title) for name in HEADLINE],
        a=a,
        b=b,
        primary=primary,
    )
    try:
        left, right = (_side(root, side) for side in (a, b))
        config = ComparisonConfig(primary=primary or None, alpha=COMPARE_ALPHA, detect=DETECT)
        return _filled(page, left, right, config)
    except ResultsError as error:
        return msgspec.structs.replace(page, problem=str(error))


def _choices(root: Path, a: str, b: str) -> list[str]:
    runs = dict.fromkeys(side.partition("@")[0] for side in (a, b))
    choices: list[str] = []
    for run in runs:
        plans = load(root / run).manifest.trials
        choices += [f"{run}@{engine}" for engine in dict.fromkeys(plan.engine for plan in plans)]
    return choices


def _sides(a: str, b: str, choices: list[str]) -> tuple[str, str]:
    """Complete both sides: an unnamed engine is the one that the other side has too, else the first one left."""
    pairs = [(x, y) for x in _matching(a, choices) for y in _matching(b, choices) if x != y]
    matching = (pair for pair in pairs if pair[0].partition("@")[2] == pair[1].partition("@")[2])
    return next(matching, pairs[0] if pairs else (a, b))


def _matching(side: str, choices: list[str]) -> list[str]:
    return [choice for choice in choices if side == choice or ("@" not in side and choice.startswith(f"{side}@"))]


def _side(root: Path, side: str) -> Side:
    run, _, engine = side.partition("@")
    return side_of(load(root / run), engine)


def _filled(page: ComparePage, a: Side, b: Side, config: ComparisonConfig) -> ComparePage:
    try:
        verdict = judge(a, b, config)
    except NoEvidence as error:
        return _with_tables(page, compare_sides(a, b, config), notes=[f"no verdict: {error}"])
    return _with_tables(_with_outcome(page, verdict), verdict.compared, notes=verdict.notes)


def _with_outcome(page: ComparePage, verdict: GateVerdict) -> ComparePage:
    headline, class_, sentence = _headline(verdict)
    return msgspec.structs.replace(
        page,
        headline=headline,
        class_=class_,
        sentence=sentence,
        lines=[*regression_texts(verdict), *doubt_texts(verdict)],
    )


def _headline(verdict: GateVerdict) -> tuple[str, str, str]:
    """The headline, its class and the sentence behind it.

    A gate asks only whether B is worse; a reader also wants to know whether it is better.
    """
    compared = verdict.compared
    if verdict.outcome is Outcome.NO_REGRESSION and compared.primary.judgement is Judgement.BETTER:
        return f"{compared.b} is better", "better", effect_clause(compared, compared.primary)
    return verdict.outcome.value.capitalize(), _OUTCOME_CLASSES[verdict.outcome], verdict.sentence


def _with_tables(page: ComparePage, compared: EngineComparison, notes: list[str]) -> ComparePage:
    tables, notes = comparison_tables(compared), [*notes, *noise_lines(compared)]
    return msgspec.structs.replace(page, notes=notes, tables=tables, tally=tally(compared))
