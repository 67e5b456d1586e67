"""Workloads and portraits for the tests of ``bakeoff workloads``."""

from collections.abc import Iterator, Mapping

import msgspec

from harness.portraits import Subject
from workloads import Seed, Session, Tokenizer
from workloads.outline import SessionOutline, TurnOutline
from workloads.portrait import Portrait, portrait
from workloads.presets import Anchor


class Scripted(msgspec.Struct, frozen=True):
    """Sends the sessions that it is given, without words.

    Attributes:
        script: start, and of each turn its pause, prompt and answer, the prompts of one session growing.
        figures: of its own.
    """

    script: tuple[tuple[float | None, tuple[tuple[float, int, int], ...]], ...]
    figures: Mapping[str, float] = {}
    name: str = "scripted"

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Never asked for."""
        raise NotImplementedError

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        """The script."""
        for number, (start_s, turns) in enumerate(self.script):
            yield SessionOutline(str(number), start_s, tuple(self._turns(number, turns)))

    def _turns(self, number: int, turns: tuple[tuple[float, int, int], ...]) -> Iterator[TurnOutline]:
        segments: tuple[tuple[str, int], ...] = ()
        for k, (think_s, input_tokens, output_tokens) in enumerate(turns):
            segments = (*segments, (f"{number}.{k}", input_tokens - sum(tokens for _, tokens in segments)))
            yield TurnOutline(input_tokens, output_tokens, think_s, segments)

    def extra_figures(self, seed: Seed) -> dict[str, float]:
        """The given ones."""
        return dict(self.figures)

    def notes(self) -> list[str]:
        """One."""
        return [f"{self.name}: scripted"]


def singles(count: int, gap_s: float | None = 1.0, *, input_tokens: int = 100, output_tokens: int = 10) -> Scripted:
    """Sessions of one request, evenly spaced, at once (a gap of 0) or without times."""
    starts = [None if gap_s is None else i * gap_s for i in range(count)]
    return Scripted(tuple((start_s, ((0.0, input_tokens + i, output_tokens),)) for i, start_s in enumerate(starts)))


def dialogues(count: int, pause_s: float = 2.0) -> Scripted:
    """Sessions of two or three requests that begin as their last one did."""
    turns = ((0.0, 100, 20), (pause_s, 200, 20), (3 * pause_s, 400, 20))
    return Scripted(tuple((4.0 * i, turns[: 2 + i % 2]) for i in range(count)))


def drawn(workload: Scripted, name: str = "scripted", anchors: tuple[Anchor, ...] = ()) -> Portrait:
    """Its portrait."""
    return msgspec.structs.replace(portrait(name, workload, Seed.of("1")), anchors=anchors)


def subject(
    workload: Scripted,
    name: str = "scripted",
    *,
    anchors: tuple[Anchor, ...] = (),
    judged: bool = True,
    given: tuple[str, ...] = (),
    tokenizer: str | None = None,
) -> Subject:
    """What would be shown of it."""
    return Subject(
        drawn(workload, name, anchors), name, seed=1, sessions=2000, given=given, judged=judged, tokenizer=tokenizer
    )
