"""What is agreed on before anybody looks: the metrics, the level of the tests, and how much of a change nobody minds.

A band belongs to a metric: ``ttft_p99=10%`` of a ratio, ``attainment=0.5pp`` of a share, ``failures=0`` for any
significant increase, ``work=10%`` for the work of the two sides. A bare number is the band of all metrics that are
compared as ratios and have none of their own.
"""

import re
from collections.abc import Container, Iterable, Sequence

import msgspec

from results.errors import NotComparable
from results.metrics import CATALOGUE, Metric, Unit, headline
from results.objectives import metric_named
from results.records import Load
from results.statistics.comparison import ALPHA, BAND, default_band, scale_of
from results.statistics.two_sample import Scale

WORK = "work"
"""The name of the band within which the sides' work must agree."""
WORK_BAND = 0.1
_OF_AN_SLO = ("goodput_per_s", "attainment")
_RATES = {Unit.PER_SECOND, Unit.TOKENS_PER_SECOND}
_FORM = re.compile(r"(?:(?P<name>\w+)=)?(?P<number>\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(?P<unit>%|pp)?")
_EXAMPLE = "write it like 5%, ttft_p99=10%, attainment=0.5pp or failures=0"


class Terms(msgspec.Struct, frozen=True):
    """What is agreed.

    Attributes:
        metrics: names in the catalogue; None for the headline of the table, see :meth:`names_at`.
        primary: the metric of which the verdict speaks; None for the rule of :mod:`results.primary`.
        alpha: share of false alarms of the primary metric, and of all guardrails together.
        band: half-width of the equivalence band of a ratio, as a share.
        bands: by metric, where it has one of its own: a share of a ratio, or of requests.
        work_band: by how much the work of the sides may differ, as a share.
    """

    metrics: tuple[str, ...] | None = None
    primary: str | None = None
    alpha: float = ALPHA
    band: float = BAND
    bands: dict[str, float] = {}
    work_band: float = WORK_BAND

    def __post_init__(self) -> None:
        for name in (*(self.metrics or ()), self.primary, *self.bands):
            if name is not None and name not in CATALOGUE:
                raise NotComparable(f"unknown metric '{name}'; known: {', '.join(CATALOGUE)}")
        if not 0 < self.alpha < 1:
            raise NotComparable(f"alpha must lie between 0 and 1, not {self.alpha}")
        for band in (self.band, *self.bands.values(), self.work_band):
            if not 0 <= band < 1:
                raise NotComparable(f"band must lie between 0 and 1, not {band}")

    def band_of(self, metric: Metric) -> float:
        """Half-width of a metric's band."""
        of_all = self.band if scale_of(metric) is Scale.RATIO else default_band(metric)
        return self.bands.get(metric.name, of_all)

    def names_at(self, load: Load, known: Container[str]) -> list[str]:
        """The metrics that are compared at one load, one that the user calls primary first.

        Without a choice of the user: the headline of the table, and what an SLO defines where there is one. In an open
        loop the schedule sets every rate, so that none of them says anything of the engine.

        Args:
            load: which.
            known: metrics that any trial there has.
        """
        names = self.metrics
        if names is None:
            names = (*headline(known), *(name for name in _OF_AN_SLO if name in known))
            if load.concurrency is None:
                names = tuple(name for name in names if CATALOGUE[name].unit not in _RATES)
        return list(dict.fromkeys([self.primary, *names] if self.primary else names))


def agreed(
    metrics: Sequence[str] | None, primary: str | None, alpha: float, band: float | str | Iterable[str] | None
) -> Terms:
    """The terms of a comparison.

    Args:
        metrics: names; None or none for those of the table.
        primary: the metric that decides; None for the rule.
        alpha: level.
        band: a share, or bands as a user writes them; None for the defaults.

    Raises:
        NotComparable: a metric is unknown, a number is out of range, or a band cannot be read.
    """
    terms = Terms(metrics=tuple(metrics) if metrics else None, primary=primary, alpha=alpha)
    if band is None:
        return terms
    if isinstance(band, int | float):
        return msgspec.structs.replace(terms, band=float(band))
    for text in [band] if isinstance(band, str) else band:
        terms = _with_band(terms, text)
    return terms


def _with_band(terms: Terms, text: str) -> Terms:
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise NotComparable(f"'{text}' is no band; {_EXAMPLE}")
    number = float(form["number"])
    if form["name"] in {None, WORK}:
        if form["unit"] == "pp":
            raise NotComparable(f"'{text}': pp are for shares such as attainment; {_EXAMPLE}")
        share = number / 100 if form["unit"] else number
        changes = {"work_band": share} if form["name"] else {"band": share}
        return msgspec.structs.replace(terms, **changes)
    metric = metric_named(form["name"])
    scale = scale_of(metric)
    wrong = "%" if scale is Scale.DIFFERENCE else "pp"
    if form["unit"] == wrong:
        right = "pp" if scale is Scale.DIFFERENCE else "%"
        raise NotComparable(f"'{text}': the band of {metric.name} is written in {right}; {_EXAMPLE}")
    share = number / 100 if form["unit"] else number
    return msgspec.structs.replace(terms, bands={**terms.bands, metric.name: share})
