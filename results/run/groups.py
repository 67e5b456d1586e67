"""Results of parts of a cell's requests: by model, by address, by turn, by agent, by length of the prompt."""

import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from bakeoff.results.metrics import Value
from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.metrics.requests import has_failed, prompt_length
from bakeoff.results.metrics.trial import request_metrics
from bakeoff.results.records import Outcome, RequestRecord, Slo
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run

Name = tuple[int, str]
"""Order and name of a group."""
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


def by_model(run: Run) -> list[RequestGroup]:
    """The groups of a run by load, engine and model; none if no workload mixes models."""
    return list(_grouped(run, lambda request: None if request.model is None else (0, request.model)))


def by_address(run: Run) -> list[RequestGroup]:
    """The groups of addresses, in the order of the experiment; none if every engine gets its requests at one."""
    descriptions = [trial.record.engine_description for trial in run.finished]
    labels = dict.fromkeys(each.label for known in descriptions if known for each in known.addresses)
    order = {label: number for number, label in enumerate(labels)}

    def name_of(request: RequestRecord) -> Name | None:
        address = request.address
        return None if address is None else (order.get(address, len(order)), address)

    return list(_grouped(run, name_of))


def by_agent(run: Run) -> list[RequestGroup]:
    """The groups of main agents and sub-agents; none if no session has sub-agents."""
    groups = list(_grouped(run, lambda request: (1, "sub-agents") if request.agent else (0, "main agent")))
    return groups if any(group.name == "sub-agents" for group in groups) else []


def by_turn(run: Run) -> list[RequestGroup]:
    """The groups by position in the session; none if every session has one request."""
    groups = list(_grouped(run, lambda request: turn_range(request.turn)))
    return groups if any(group.name != "turn 1" for group in groups) else []


def by_prompt(run: Run) -> list[RequestGroup]:
    """The groups by length of the prompt."""
    return list(_grouped(run, lambda request: _range(prompt_length(request), _TOKENS, "prompt tokens")))


def turn_range(turn: int) -> Name | None:
    """The group of a position in the session, from 0."""
    return _range(turn + 1, _TURNS, "turn")


def _range(value: int | None, ends: Sequence[int], unit: str) -> Name | None:
    """The range of ``ends`` that holds a value; None if that is unknown."""
    if value is None:
        return None
    number = sum(value > end for end in ends)
    if number == len(ends):
        return number, f"{unit} {ends[-1] + 1:,} and more"
    low, high = (ends[number - 1] if number else 0) + 1, ends[number]
    return number, f"{unit} {low:,}" if low == high else f"{unit} {low:,} to {high:,}"


def _grouped(run: Run, name_of: Callable[[RequestRecord], Name | None]) -> Iterator[RequestGroup]:
    for level in levels_of(run):
        for cell in level.cells:
            parts: dict[Name, list[RequestRecord]] = {}
            for trial in run.valid_trials_of(cell):
                for request in trial.inside:
                    name = name_of(request)
                    if name is not None and request.outcome is not Outcome.CANCELLED:
                        parts.setdefault(name, []).append(request)
            yield from (_group(cell.engine, level.title, name[1], parts[name]) for name in sorted(parts))


def _group(engine: str, level: str, name: str, requests: Sequence[RequestRecord]) -> RequestGroup:
    lengths = [tokens for request in requests if (tokens := prompt_length(request)) is not None]
    prompts = prompt_tokens(requests)
    return RequestGroup(
        engine=engine,
        level=level,
        name=name,
        requests=len(requests),
        failed=sum(map(has_failed, requests)),
        prompt_tokens=statistics.median(lengths) if lengths else None,
        cached_share=prompts.cached / prompts.total if prompts and prompts.total else None,
        output_tokens=sum(request.total_chunk_tokens for request in requests),
        metrics=request_metrics(requests, Slo()),
    )
