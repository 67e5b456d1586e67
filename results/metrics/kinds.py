"""Kinds of tokens: reasoning, and what a user sees, which is text and tool calls."""

import numpy as np

from bakeoff.results.columns import UNKNOWN, Ints
from bakeoff.results.metrics.declaration import TrialData
from bakeoff.results.requests import Requests


def first_visible_ns(requests: Requests) -> Ints:
    """Arrival of the first chunk of text or of a tool call, for each request; `UNKNOWN` if none came."""
    chunks = requests.chunks
    places = np.flatnonzero(requests.is_visible)
    owners, firsts = np.unique(chunks.request[places], return_index=True)
    found = np.full(len(requests), UNKNOWN, dtype=np.int64)
    found[owners] = chunks.ns[places[firsts]]
    return found


def why_no_reasoning(data: TrialData) -> str | None:
    """Why a trial has no metrics of reasoning; None if an answer reasons."""
    return None if data.once(_reasons) else "no answer reasons"


def _reasons(data: TrialData) -> bool:
    return bool(data.load.is_reasoning.any() or (data.load.ints("reasoning_tokens") > 0).any())
