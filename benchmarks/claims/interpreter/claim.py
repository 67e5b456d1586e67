"""The content of a claim file: its source, the range that it promises, and the cases that test it."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.server_view import ENGINE_FIGURES
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.expression import check, names_in

EVALUATED = ("perplexity_ratio", "perplexity_increase", "retention", "token_match", "kl_nats_per_token", "bytes_ratio")
"""Quantities of an evaluation."""
MEASURED = frozenset({*CATALOGUE, *ENGINE_FIGURES, "agreement"})
"""Quantities of a trial; ``agreement`` is the token match."""


class Device(StrEnum):
    """The device that a case needs."""

    ANY = "any"
    CPU = "cpu"
    GPU = "gpu"


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The publication that makes a claim.

    Attributes:
        title: of the publication.
        kind: such as ``paper`` or ``lecture``; a ``background paper`` explains the matter but states no such range.
        author: None if the publication names none.
        year: None if the publication gives none.
    """

    title: str
    kind: str
    author: str | None = None
    year: int | None = None


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claimed range; at least one bound.

    Attributes:
        at_least: lower bound.
        at_most: upper bound.
        margin: share of each bound by which the range is widened, since claims are rounded.
        ours: which bounds the source does not give, and why these were chosen; None if the source gives them all.
    """

    at_least: float | None = None
    at_most: float | None = None
    margin: float = 0.0
    ours: str | None = None

    @property
    def low(self) -> float:
        """Lower bound, margin included."""
        return -float("inf") if self.at_least is None else self.at_least - abs(self.at_least) * self.margin

    @property
    def high(self) -> float:
        """Upper bound, margin included."""
        return float("inf") if self.at_most is None else self.at_most + abs(self.at_most) * self.margin


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trials of one engine at one load of one run.

    Attributes:
        run: an experiment of the catalogue, or a published run.
        engine: label.
        load: label of the level.
    """

    run: str
    engine: str
    load: str

    @property
    def text(self) -> str:
        """``ladder: 2-paged-static at c=16``."""
        return f"{self.run}: {self.engine} at {self.load}"


class Contrasted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A quantity of one side, or its ratio to that of another.

    Attributes:
        metric: expression over metrics of a trial.
        of: numerator.
        over: denominator; None for the quantity of `of` alone.
    """

    metric: str
    of: Side
    over: Side | None = None

    @property
    def sides(self) -> list[Side]:
        """One or two sides."""
        return [self.of] if self.over is None else [self.of, self.over]


class Arithmetic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure recomputed by a formula.

    Attributes:
        expression: decides; see :mod:`benchmarks.claims.interpreter.expression`.
        inputs: names in the expressions.
        beside: label → another expression, shown next to the first.
    """

    expression: str
    inputs: dict[str, float] = {}
    beside: dict[str, str] = {}


class Evaluated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quality of a checkpoint, quantised or with a quantised KV cache, beside the plain one.

    Attributes:
        quantity: one of :data:`EVALUATED`.
        model: known name or path.
        method: of ``bakeoff models quantize``; None for the plain weights.
        kv_cache_dtype: of the KV cache; None for plain.
        max_tokens: of the built-in text.
        calibration_tokens: for methods that calibrate.
    """

    quantity: str
    model: str
    method: str | None = None
    kv_cache_dtype: str | None = None
    max_tokens: int = 4096
    calibration_tokens: int = 4096


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One test of a claim: exactly one procedure.

    Attributes:
        title: the conditions tested.
        as_claimed: whether these are the conditions of the claim.
        device: where it can run.
        absent: what this tool lacks to test it on any machine.
        experiment: measured here.
        published: read from a published run.
        arithmetic: computed.
        evaluation: quality of a checkpoint.
    """

    title: str
    as_claimed: bool = True
    device: Device = Device.ANY
    absent: str | None = None
    experiment: Contrasted | None = None
    published: Contrasted | None = None
    arithmetic: Arithmetic | None = None
    evaluation: Evaluated | None = None

    @property
    def procedure(self) -> str:
        """Name of the procedure."""
        return _procedures(self)[0]

    @property
    def is_ratio(self) -> bool:
        """Whether 1 means no effect."""
        contrasted = self.experiment or self.published
        return contrasted is not None and contrasted.over is not None


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One claim.

    Attributes:
        sentence: the claim in our words.
        quantity: what is compared with the range.
        conditions: of the claim.
        expected: range of the quantity.
        source: of the claim.
        cases: tests, the most important first.
        note: for readers, on the claim itself.
    """

    sentence: str
    quantity: str
    conditions: str
    expected: Expected
    source: list[Source]
    cases: list[Case]
    note: str | None = None


def checked(claim: Claim, where: str) -> Claim:
    """The claim, if it is consistent.

    Raises:
        BadClaim: it contradicts itself; the message names file and key.
    """
    problem = next(_problems(claim), None)
    if problem:
        raise BadClaim(f"{where}: {problem}")
    return claim


def _problems(claim: Claim) -> Iterator[str]:
    bounds = claim.expected
    if bounds.at_least is None and bounds.at_most is None:
        yield "expected needs at_least, at_most or both"
    if bounds.low > bounds.high:
        yield "expected.at_least is above expected.at_most"
    if bounds.margin < 0:
        yield "expected.margin must not be negative"
    if not claim.source:
        yield "source is empty; give at least one [[source]]"
    if not claim.cases:
        yield "cases is empty; give at least one [[cases]]"
    titles = [case.title for case in claim.cases]
    if len(set(titles)) < len(titles):
        yield "two cases have the same title"
    for number, case in enumerate(claim.cases):
        yield from (f"cases[{number}]{problem}" for problem in _case_problems(case))


def _case_problems(case: Case) -> Iterator[str]:
    procedures = _procedures(case)
    if len(procedures) != 1:
        names = "absent, experiment, published, arithmetic, evaluation"
        yield f" has {', '.join(procedures) or 'no procedure'}; give exactly one of {names}"
        return
    if contrasted := case.experiment or case.published:
        if problem := check(contrasted.metric, {}):
            yield f".{procedures[0]}.metric: {problem}"
        elif unknown := sorted(names_in(contrasted.metric) - MEASURED):
            yield f".{procedures[0]}.metric: no metric is called '{unknown[0]}'"
    elif case.arithmetic is not None:
        for key, text in _formulas(case.arithmetic).items():
            if problem := check(text, case.arithmetic.inputs, are_inputs_complete=True):
                yield f".arithmetic.{key}: {problem}"
    elif case.evaluation is not None and case.evaluation.quantity not in EVALUATED:
        yield f".evaluation.quantity: '{case.evaluation.quantity}' is none of {', '.join(EVALUATED)}"


def _formulas(arithmetic: Arithmetic) -> Mapping[str, str]:
    return {
        "expression": arithmetic.expression,
        **{f"beside.{name}": text for name, text in arithmetic.beside.items()},
    }


def _procedures(case: Case) -> list[str]:
    names = ("absent", "experiment", "published", "arithmetic", "evaluation")
    return [name for name in names if getattr(case, name) is not None]
