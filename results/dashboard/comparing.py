"""Two sides beside each other: the gate's sentence, and every ratio with its interval on one axis."""

from itertools import groupby
from pathlib import Path

import msgspec
from markupsafe import Markup

from results.comparing import Compared, compare_sides
from results.dashboard.rendering import served
from results.errors import NoEvidence, ResultsError
from results.gate import GateVerdict, judge
from results.metrics import CATALOGUE, HEADLINE
from results.report.charts.scales import Axis
from results.report.charts.strips import ratio_axis, ratio_strip
from results.report.compare_table import SIGNS, smallest_text, tally, title
from results.report.gate import doubt_texts, regression_texts
from results.run import load
from results.sides import SideOfRun, side_of
from results.statistics import Comparison, Judgement
from results.terms import Terms
from results.text.format import effect_text

_CLASSES = {
    Judgement.BETTER: "better",
    Judgement.WORSE: "worse",
    Judgement.SAME: "same",
    Judgement.UNCLEAR: "unclear",
}


class Row(msgspec.Struct, frozen=True):
    """One metric at one level."""

    title: str
    is_primary: bool
    ratio: str
    strip: Markup
    word: str
    class_: str
    would_show: str
    why: str


class Choice(msgspec.Struct, frozen=True):
    """A side that could be chosen: its value in the query, and what it is called."""

    value: str
    text: str


class ComparePage(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows.

    Attributes:
        name: title of the page.
        choices: sides that the runs at hand have.
        metrics: names that may be the primary one, and their titles.
        a: the side chosen as the baseline.
        b: as the candidate.
        primary: the metric asked for; empty for the rule.
        problem: why there is no comparison.
        outcome: the gate's word; empty where too few trials are valid.
        sentence: of the primary metric.
        lines: regressions beside it.
        notes: what a reader must know.
        levels: heading and rows of each load.
        tally: how many of each word, and what they hold for.
    """

    name: str
    choices: list[Choice]
    metrics: list[tuple[str, str]]
    a: str
    b: str
    primary: str
    problem: str = ""
    outcome: str = ""
    sentence: str = ""
    lines: list[str] = []
    notes: list[str] = []
    levels: list[tuple[str, list[Row]]] = []
    tally: str = ""


def compare_html(root: Path, a: str, b: str, primary: str) -> str:
    """The page.

    Args:
        root: folder of the runs.
        a: ``RUN@ENGINE``, or ``RUN``: then its first engine, or that which the other side has too.
        b: likewise.
        primary: name of the metric that decides; empty for the rule of :mod:`results.primary`.
    """
    return served("compare.html", compare_page(root, a, b, primary))


def compare_page(root: Path, a: str, b: str, primary: str) -> ComparePage:
    """What :func:`compare_html` shows."""
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
        return _filled(page, left, right, Terms(primary=primary or None))
    except ResultsError as error:
        return msgspec.structs.replace(page, problem=str(error))


def _choices(root: Path, a: str, b: str) -> list[str]:
    runs = dict.fromkeys(side.partition("@")[0] for side in (a, b))
    found: list[str] = []
    for run in runs:
        plans = load(root / run).manifest.trials
        found += [f"{run}@{engine}" for engine in dict.fromkeys(plan.engine for plan in plans)]
    return found


def _sides(a: str, b: str, choices: list[str]) -> tuple[str, str]:
    """Both sides in full: an engine that was not named is the one that the other side has too, else the first left."""
    pairs = [(x, y) for x in _meant(a, choices) for y in _meant(b, choices) if x != y]
    same = (pair for pair in pairs if pair[0].partition("@")[2] == pair[1].partition("@")[2])
    return next(same, pairs[0] if pairs else (a, b))


def _meant(side: str, choices: list[str]) -> list[str]:
    return [one for one in choices if side == one or ("@" not in side and one.startswith(f"{side}@"))]


def _side(root: Path, side: str) -> SideOfRun:
    run, _, engine = side.partition("@")
    return side_of(load(root / run), engine)


def _filled(page: ComparePage, a: SideOfRun, b: SideOfRun, terms: Terms) -> ComparePage:
    try:
        verdict = judge(a, b, terms)
    except NoEvidence as error:
        return _with_rows(page, compare_sides(a, b, terms), notes=[f"no verdict: {error}"])
    return _with_rows(_with_outcome(page, verdict), verdict.compared, notes=verdict.notes)


def _with_outcome(page: ComparePage, verdict: GateVerdict) -> ComparePage:
    return msgspec.structs.replace(
        page,
        outcome=verdict.outcome.value,
        sentence=verdict.sentence,
        lines=[*regression_texts(verdict), *doubt_texts(verdict)],
    )


def _with_rows(page: ComparePage, compared: Compared, notes: list[str]) -> ComparePage:
    axis = ratio_axis((one.ratio for one in compared.comparisons), compared.terms.band)
    levels = [
        (level, [_row(one, compared, axis) for one in members])
        for level, members in groupby(compared.comparisons, key=lambda one: one.level)
    ]
    return msgspec.structs.replace(page, notes=notes, levels=levels, tally=tally(compared))


def _row(one: Comparison, compared: Compared, axis: Axis) -> Row:
    class_ = _CLASSES[one.judgement]
    return Row(
        title=title(one),
        is_primary=one is compared.primary,
        ratio=effect_text(one),
        strip=ratio_strip(title(one), axis, one.ratio, compared.terms.band, class_),
        word=f"{SIGNS[one.judgement]} {one.judgement.value}",
        class_=class_,
        would_show=smallest_text(one),
        why=one.why,
    )
