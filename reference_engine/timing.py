"""How long requests waited and ran, by the engine's own clock. Pure Python, no torch."""

import dataclasses

from reference_engine.request import Request


@dataclasses.dataclass(frozen=True, slots=True)
class Phases:
    """The three parts of a request's life, in seconds: they sum to the whole.

    Attributes:
        queue_s: from arrival to first computation.
        prefill_s: from there to the first token, preemptions included.
        decode_s: from there to the last one; 0 where there was only one.
    """

    queue_s: float
    prefill_s: float
    decode_s: float

    @property
    def e2e_s(self) -> float:
        """From arrival to the last token."""
        return self.queue_s + self.prefill_s + self.decode_s


@dataclasses.dataclass(slots=True)
class StepTimes:
    """What one step's tokens say about time, in seconds.

    Attributes:
        ttfts_s: from arrival to the first token, of the requests that got it.
        gaps_s: between a request's last token and this one.
        ended: of the requests whose last token this was.
    """

    ttfts_s: list[float] = dataclasses.field(default_factory=list[float])
    gaps_s: list[float] = dataclasses.field(default_factory=list[float])
    ended: list[Phases] = dataclasses.field(default_factory=list[Phases])

    def take(self, request: Request, now_s: float, *, is_last: bool) -> None:
        """Note a token that was made just now, or all tokens of a beam search, whose first was made earlier."""
        arrival_s = now_s if request.arrival_s is None else request.arrival_s
        if request.first_token_s is None:
            request.first_token_s = now_s
        if request.last_token_s is None:
            self.ttfts_s.append(now_s - arrival_s)
        else:
            self.gaps_s.append(now_s - request.last_token_s)
        request.last_token_s = now_s
        if is_last:
            began_s = arrival_s if request.first_scheduled_s is None else request.first_scheduled_s
            first_s = request.first_token_s
            self.ended.append(Phases(began_s - arrival_s, first_s - began_s, now_s - first_s))
