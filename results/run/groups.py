"""Results of parts of a cell's requests: by class, model, address, turn, agent, and length of the prompt."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np

from bakeoff.results.columns import Ints
from bakeoff.results.metrics import Value
from bakeoff.results.metrics.declaration import known
from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.metrics.requests import prompt_lengths
from bakeoff.results.metrics.trial import request_metrics
from bakeoff.results.records import Slo
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Cell, Trial
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.statistics.two_sample import contrast

Name = tuple[int, str]
"""Order and name of a group."""
NameOf = Callable[[Requests], Iterable[Name | None]]
"""The group of each request."""
_CONFIDENCE = 0.95
_TURNS = (1, 5, 20, 50, 200)
_TOKENS = (1_000, 4_000, 16_000, 64_000, 256_000)
"""Upper ends of the groups of turns, counted from 1, and of prompt tokens."""


class RequestGroup(msgspec.Struct, frozen=True):
    """Some requests of one engine at one load, over its valid trials.

    Attributes:
        engine: label.
        level: title of the load.
        name: what the requests have in common.
        requests: planned inside the windows, without those that the client cancelled.
        failed: those of them that failed.
        prompt_tokens: median length of a prompt, by the engine's count where it has one; None if unknown.
        cached_share: share of the prompt tokens from the prefix cache; None if the engine does not report it.
        output_tokens: of the answers.
        metrics: those with one observation per request, over these requests together.
        goodput_per_s: requests that met the group's SLO, per second of the windows; None without an SLO.
    """

    engine: str
    level: str
    name: str
    requests: int
    failed: int
    prompt_tokens: float | None
    cached_share: float | None
    output_tokens: int
    metrics: dict[str, Value]
    goodput_per_s: float | None = None


class Fairness(msgspec.Struct, frozen=True):
    """How evenly one engine at one load serves the classes of the traffic.

    Attributes:
        engine: label.
        level: title of the load.
        index: Jain's index of the classes' attainments, (Σ a)² / (n Σ a²): 1 if all are equal, 1/n if one class gets
            everything (Jain, Chiu and Hawe, DEC-TR-301, 1984). None if no request met its SLO, or a class has none.
        worst: the class with the lowest attainment.
        attainment: of that class.
        missing: classes without a request in the windows.
    """

    engine: str
    level: str
    index: float | None
    worst: str
    attainment: float
    missing: list[str] = []


class Interference(msgspec.Struct, frozen=True):
    """How much slower a class is among the others than alone at the rate that it has among them.

    Attributes:
        engine: label.
        level: title of the load with all classes.
        name: of the class.
        ratios: metric → among the others over alone, of the trials' medians, with its 95 % interval.
    """

    engine: str
    level: str
    name: str
    ratios: dict[str, Interval]


def interference(run: Run, metrics: Sequence[str] = ("ttft_p50_s", "e2e_p50_s")) -> list[Interference]:
    """The classes whose requests of an open loop were also sent alone, at the same times."""
    slos, shares = run.manifest.classes, _shares(run)
    levels = levels_of(run)
    found: list[Interference] = []
    for level, alone in itertools.product(levels, levels):
        name = alone.load.only
        if name is None or level.load.only is not None or not alone.load.is_part_of(level.load, shares[name]):
            continue
        for mixed, single in itertools.product(level.cells, alone.cells):
            if mixed.engine == single.engine:
                sides = [_by_repeat(run, cell, name, slos[name]) for cell in (single, mixed)]
                ratios = {metric: ratio for metric in metrics if (ratio := _ratio(sides, metric)) is not None}
                found.append(Interference(mixed.engine, level.title, name, ratios))
    return found


def _shares(run: Run) -> dict[str, float]:
    """Each class's share of the sessions."""
    weights = {each["name"]: each.get("weight", 1.0) for each in run.manifest.experiment.get("classes") or []}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def _by_repeat(run: Run, cell: Cell, name: str, slo: Slo) -> dict[int, dict[str, Value]]:
    """Repeat → metrics of a class's requests."""
    found: dict[int, dict[str, Value]] = {}
    for trial in run.valid_trials_of(cell):
        counts = trial.inside.equal("traffic_class", name) & ~trial.inside.is_cancelled
        found[trial.record.repeat] = request_metrics(trial.inside.take(counts), slo)
    return found


def _ratio(sides: Sequence[Mapping[int, Mapping[str, Value]]], metric: str) -> Interval | None:
    alone, mixed = (
        {repeat: value for repeat, metrics in side.items() if (value := metrics[metric].value)} for side in sides
    )
    if not alone or not mixed:
        return None
    found = contrast(alone, mixed, interleaved=True)
    if found is not None:
        return found.interval(_CONFIDENCE)
    means = (math.fsum(map(math.log, side.values())) / len(side) for side in (mixed, alone))
    return Interval(math.exp(next(means) - next(means)), None, None, min(len(alone), len(mixed)))


def by_class(run: Run) -> list[RequestGroup]:
    """The groups of the classes of the traffic, each with the metrics of its own SLO; none without classes."""
    slos = run.manifest.classes
    order = {name: number for number, name in enumerate(slos)}

    def names_of(requests: Requests) -> list[Name | None]:
        return [None if name is None else (order[name], name) for name in requests.values("traffic_class")]

    return list(_grouped(run, names_of, slos)) if slos else []


def fairness(run: Run, groups: Sequence[RequestGroup]) -> list[Fairness]:
    """One entry for each engine and load whose classes with requests all have an SLO.

    Args:
        run: of the groups.
        groups: from :func:`by_class`.
    """
    found: list[Fairness] = []
    together = {level.title for level in levels_of(run) if level.load.only is None}
    for engine, level in dict.fromkeys((group.engine, group.level) for group in groups if group.level in together):
        own = [group for group in groups if (group.engine, group.level) == (engine, level)]
        shares = {group.name: value for group in own if (value := group.metrics["attainment"].value) is not None}
        if len(shares) < len(own):
            continue
        missing = [name for name in run.manifest.classes if name not in shares]
        squares = sum(share**2 for share in shares.values())
        index = None if missing or not squares else sum(shares.values()) ** 2 / (len(shares) * squares)
        worst = min(shares, key=lambda name: shares[name])
        found.append(Fairness(engine, level, index, worst, shares[worst], missing))
    return found


def by_model(run: Run) -> list[RequestGroup]:
    """The groups of a run by load, engine and model; none if no workload mixes models, or classes name them."""
    if run.manifest.classes:
        return []

    def names_of(requests: Requests) -> list[Name | None]:
        return [None if model is None else (0, model) for model in requests.values("model")]

    return list(_grouped(run, names_of))


def by_address(run: Run) -> list[RequestGroup]:
    """The groups of addresses, in the order of the experiment; none if every engine gets its requests at one."""
    descriptions = [trial.record.engine_description for trial in run.finished]
    labels = dict.fromkeys(each.label for description in descriptions if description for each in description.addresses)
    order = {label: number for number, label in enumerate(labels)}

    def names_of(requests: Requests) -> list[Name | None]:
        return [
            None if address is None else (order.get(address, len(order)), address)
            for address in requests.values("address")
        ]

    return list(_grouped(run, names_of))


def by_agent(run: Run) -> list[RequestGroup]:
    """The groups of main agents and sub-agents; none if no session has sub-agents."""
    if not any(trial.inside.lengths("agent").any() for trial in _valid(run)):
        return []

    def names_of(requests: Requests) -> list[Name]:
        return [(1, "sub-agents") if length else (0, "main agent") for length in requests.lengths("agent").tolist()]

    groups = list(_grouped(run, names_of))
    return groups if any(group.name == "sub-agents" for group in groups) else []


def by_turn(run: Run) -> list[RequestGroup]:
    """The groups by position in the session; none if every session has one request."""
    if not any(trial.inside.ints("turn").any() for trial in _valid(run)):
        return []
    groups = list(_grouped(run, lambda requests: map(turn_range, requests.values("turn"))))
    return groups if any(group.name != "turn 1" for group in groups) else []


def by_prompt(run: Run) -> list[RequestGroup]:
    """The groups by length of the prompt."""

    def names_of(requests: Requests) -> list[Name | None]:
        lengths = prompt_lengths(requests)
        return [_range(None if math.isnan(length) else int(length), _TOKENS, "prompt tokens") for length in lengths]

    return list(_grouped(run, names_of))


def turn_range(turn: int) -> Name | None:
    """The group of a position in the session, from 0."""
    return _range(turn + 1, _TURNS, "turn")


@functools.cache
def _range(value: int | None, ends: tuple[int, ...], unit: str) -> Name | None:
    """The range of ``ends`` that holds a value; None if that is unknown."""
    if value is None:
        return None
    number = sum(value > end for end in ends)
    if number == len(ends):
        return number, f"{unit} {ends[-1] + 1:,} and more"
    low, high = (ends[number - 1] if number else 0) + 1, ends[number]
    return number, f"{unit} {low:,}" if low == high else f"{unit} {low:,} to {high:,}"


def _valid(run: Run) -> Iterator[Trial]:
    return (trial for level in levels_of(run) for cell in level.cells for trial in run.valid_trials_of(cell))


def _grouped(run: Run, name_of: NameOf, slos: Mapping[str, Slo] = MappingProxyType({})) -> Iterator[RequestGroup]:
    """The groups; those with an SLO by its bounds."""
    for level in levels_of(run):
        for cell in level.cells:
            valid = run.valid_trials_of(cell)
            trials = [trial.inside.take(~trial.inside.is_cancelled) for trial in valid]
            length_s = sum(trial.window.length_s for trial in valid) if slos else 0.0
            named = [(requests, *_codes(name_of(requests))) for requests in trials]
            for name in sorted({name for _, _, names in named for name in names}):
                parts = [requests.take(codes == names.index(name)) for requests, codes, names in named if name in names]
                group = _group(cell.engine, level.title, name[1], parts, slos.get(name[1], Slo()))
                if (share := group.metrics["attainment"].value) is not None and length_s > 0:
                    group = msgspec.structs.replace(group, goodput_per_s=share * group.requests / length_s)
                yield group


def _codes(names: Iterable[Name | None]) -> tuple[Ints, list[Name]]:
    """The number of each request's name, -1 for None, and the names."""
    numbers: dict[Name, int] = {}
    codes = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(codes, dtype=np.int64), list(numbers)


def _group(engine: str, level: str, name: str, trials: Sequence[Requests], slo: Slo) -> RequestGroup:
    requests = Requests.joined(trials)
    lengths = known(prompt_lengths(requests))
    prompts = prompt_tokens(requests)
    return RequestGroup(
        engine=engine,
        level=level,
        name=name,
        requests=len(requests),
        failed=int(requests.has_failed.sum()),
        prompt_tokens=float(np.median(lengths)) if len(lengths) else None,
        cached_share=prompts.cached / prompts.total if prompts and prompts.total else None,
        output_tokens=int(requests.chunks.tokens.sum()),
        metrics=request_metrics(requests, slo),
    )
