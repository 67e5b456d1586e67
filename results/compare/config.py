"""Configuration of a comparison, fixed before any data is seen: metrics, significance level and equivalence bands.

Bands are given per metric: ``ttft_p99=10%`` for a ratio, ``attainment=0.5pp`` for a share, ``failures=0`` for any
significant increase, ``work=10%`` for the work of both sides. A bare number sets the band of every metric that is
compared as a ratio and has no band of its own.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from bakeoff.results.errors import NotComparable
from bakeoff.results.metric import Metric, Role, Unit
from bakeoff.results.metrics import CATALOGUE, COMPARED, headline
from bakeoff.results.metrics.catalogue import names_of, unknown_metric
from bakeoff.results.metrics.objectives import metric_named
from bakeoff.results.records import Load
from bakeoff.results.statistics.comparison import ALPHA, BAND, default_band, scale_of
from bakeoff.results.statistics.two_sample import Scale

WORK = "work"
"""Name of the band within which the work of both sides must agree."""
WORK_BAND = 0.1
START_NOISE = 0.02
"""Standard deviation between starts or runs of one server that a gate assumes where nothing shows it."""
_MIN_ALPHA = 1e-6  # far below it quantiles of Student's t lose their digits
_RATES = {Unit.PER_SECOND, Unit.PER_HOUR, Unit.TOKENS_PER_SECOND}
_FORM = re.compile(r"(?:(?P<name>\w+)=)?(?P<number>\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(?P<unit>%|pp)?")
_EXAMPLE = "write it like 5%, ttft_p99=10%, attainment=0.5pp or failures=0"


class ComparisonConfig(msgspec.Struct, frozen=True):
    """Configuration of a comparison.

    Attributes:
        metrics: names in the catalogue; None for the default, see :meth:`names_at`.
        primary: name of the primary metric; None for the rule of :mod:`bakeoff.results.compare.primary`.
        alpha: false-alarm rate of the primary metric, and of all guardrails together.
        band: half-width of the equivalence band of ratios, as a fraction.
        bands: half-width by metric, for metrics with their own band: a fraction of a ratio, or of requests.
        work_band: allowed relative difference between the work of both sides.
        detect: change of a ratio that a gate is to rule out, as a fraction; None for the band.
        only_common: whether a gate judges a candidate that lacks load levels or guardrails of the baseline.
        unseen_sd: standard deviation between starts or runs of one server, as a fraction, under which a verdict is to
            hold where the trials do not show it; None to judge by what they show.
    """

    metrics: tuple[str, ...] | None = None
    primary: str | None = None
    alpha: float = ALPHA
    band: float = BAND
    bands: dict[str, float] = {}
    work_band: float = WORK_BAND
    detect: float | None = None
    only_common: bool = False
    unseen_sd: float | None = None

    def __post_init__(self) -> None:
        for name in (*(self.metrics or ()), self.primary, *self.bands):
            known = COMPARED if name in self.bands else CATALOGUE
            if name is not None and name not in known:
                raise NotComparable(unknown_metric(name, known))
        if not 0 < self.alpha < 1:
            raise NotComparable(f"alpha must lie between 0 and 1, not {self.alpha}")
        if self.detect is not None and not 0 < self.detect < 1:
            raise NotComparable(f"detect must lie between 0 and 1, such as 10%, not {self.detect}")
        if self.unseen_sd is not None and not 0 <= self.unseen_sd < 1:
            raise NotComparable(f"the noise between starts must lie between 0 and 1, such as 2%, not {self.unseen_sd}")
        for band in (self.band, *self.bands.values(), self.work_band):
            if not 0 <= band < 1:
                raise NotComparable(f"band must lie between 0 and 1, not {band}")

    def is_guardrail(self, name: str) -> bool:
        """Whether a metric counts in a gate's outcome: one that the user named, or one of the default guardrails."""
        return self.metrics is not None or Role.GUARDRAIL in COMPARED[name].roles

    def band_of(self, metric: Metric) -> float:
        """Half-width of a metric's equivalence band."""
        of_all = self.band if scale_of(metric) is Scale.RATIO else default_band(metric)
        return self.bands.get(metric.name, of_all)

    def names_at(self, load: Load, known: Container[str]) -> list[str]:
        """Metrics to compare at one load; a primary metric named by the user comes first.

        By default the headline metrics, and those of an SLO if there is one. In an open loop rates are left out: the
        schedule sets them.

        Args:
            load: the load level.
            known: metrics that any of its trials has.
        """
        names = self.metrics
        if names is None:
            names = (*headline(known), *(name for name in names_of(Role.OF_SLO) if name in known))
            if load.concurrency is None:
                names = tuple(name for name in names if CATALOGUE[name].unit not in _RATES)
        return list(dict.fromkeys([self.primary, *names] if self.primary else names))


def agreed(
    metrics: Sequence[str] | None,
    primary: str | None,
    alpha: float,
    band: float | str | Iterable[str] | None,
    *,
    known: Mapping[str, Metric] = CATALOGUE,
    default_band: float = BAND,
    detect: float | str | None = None,
    only_common: bool = False,
    unseen_sd: float | str | None = None,
) -> ComparisonConfig:
    """Build the configuration of a comparison.

    Args:
        metrics: names; None or empty for the default.
        primary: name of the primary metric; None for the rule of :mod:`bakeoff.results.compare.primary`.
        alpha: significance level.
        band: a fraction, or bands as text; None for the defaults.
        known: metrics that can have a band.
        default_band: of ratios.
        detect: change that a gate is to rule out: a fraction, or text such as ``10%``; None for the band.
        only_common: whether a gate judges a candidate that lacks load levels or guardrails of the baseline.
        unseen_sd: of the noise that trials do not show: a fraction, or text such as ``2%``.

    Raises:
        NotComparable: a metric is unknown, a number is out of range, or a band cannot be parsed.
    """
    if 0 < alpha < _MIN_ALPHA:
        raise NotComparable(f"alpha must be at least {_MIN_ALPHA}, not {alpha}")
    names = tuple(metrics) if metrics else None
    config = ComparisonConfig(
        metrics=names, primary=primary, alpha=alpha, band=default_band,
        detect=_fraction(detect, "a change to detect") if isinstance(detect, str) else detect,
        only_common=only_common,
        unseen_sd=_fraction(unseen_sd, "a noise between starts") if isinstance(unseen_sd, str) else unseen_sd,
    )  # fmt: skip
    if band is None:
        return config
    if isinstance(band, int | float):
        return msgspec.structs.replace(config, band=float(band))
    for text in [band] if isinstance(band, str) else band:
        config = _with_band(config, text, known)
    return config


def _fraction(text: str, what: str) -> float:
    form = _FORM.fullmatch(text.strip())
    if form is None or form["name"] or form["unit"] == "pp":
        raise NotComparable(f"'{text}' is not {what}; write it like 10%")
    return float(form["number"]) / (100 if form["unit"] else 1)


def _with_band(config: ComparisonConfig, text: str, known: Mapping[str, Metric]) -> ComparisonConfig:
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise NotComparable(f"'{text}' is not a band; {_EXAMPLE}")
    number = float(form["number"])
    if form["name"] in {None, WORK}:
        if form["unit"] == "pp":
            raise NotComparable(f"'{text}': pp is for shares such as attainment; {_EXAMPLE}")
        share = number / 100 if form["unit"] else number
        changes = {"work_band": share} if form["name"] else {"band": share}
        return msgspec.structs.replace(config, **changes)
    metric = metric_named(form["name"], known)
    scale = scale_of(metric)
    wrong = "%" if scale is Scale.DIFFERENCE else "pp"
    if form["unit"] == wrong:
        right = "pp" if scale is Scale.DIFFERENCE else "%"
        raise NotComparable(f"'{text}': give the band of {metric.name} in {right}; {_EXAMPLE}")
    share = number / 100 if form["unit"] else number
    return msgspec.structs.replace(config, bands={**config.bands, metric.name: share})
