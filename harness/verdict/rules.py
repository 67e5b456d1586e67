"""Whether a trial is by its rules of play."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus

import numpy as np

from bakeoff.harness.experiment.config import Experiment, is_steady
from bakeoff.harness.rules.rule_set import broken
from bakeoff.results.records import Load, RequestRecord, RulesRecord, Window
from bakeoff.results.requests import Requests
from bakeoff.results.units import NS_PER_S

_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
"""How servers refuse a prompt that is longer than their context."""


def rules_record(experiment: Experiment, load: Load) -> RulesRecord | None:
    """The rules of a trial, with what of the experiment breaks them; None for a load that is meant to change."""
    rules = experiment.rules_of_play
    return RulesRecord(rules.name, list(broken(experiment, rules))) if is_steady(load) else None


def broken_afterwards(experiment: Experiment, requests: Sequence[RequestRecord], window: Window) -> Iterator[str]:
    """What of a trial's requests breaks its rules."""
    limits, duration_s = experiment.rules_of_play.limits, experiment.trial.duration_s
    inside = Requests(requests).under_load.planned_inside(window)
    refused = int(np.isin(inside.ints("status"), list(_REFUSALS)).sum())
    largest = limits.max_refused_share
    if largest is not None and refused > largest * len(inside):
        yield (
            f"the server refused {refused} of {len(inside)} requests, as it does with prompts longer than its context; "
            f"the rules allow {largest:.0%}"
        )
    span, last_ns = limits.min_answer_span, int(inside.chunks.ns.max(initial=window.start_ns))
    if span is not None and last_ns < window.start_ns + span * duration_s * NS_PER_S:
        reached_s = (last_ns - window.start_ns) / NS_PER_S
        yield f"the last token arrived after {reached_s:.0f} s of {duration_s:g}; the rules want {span:.0%} of them"
