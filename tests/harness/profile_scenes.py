"""Workloads and profiles for the tests of ``bakeoff workloads show``."""

from collections.abc import Iterator, Mapping

import msgspec

from bakeoff.harness.traffic.profile import ShownProfile
from bakeoff.workloads import Seed, Session, Tokenizer
from bakeoff.workloads.outline import SessionOutline, TurnOutline
from bakeoff.workloads.presets import Anchor
from bakeoff.workloads.profile import WorkloadProfile, check_anchor, profile_workload


class Scripted(msgspec.Struct, frozen=True):
    """Outlines a fixed list of sessions.

    Attributes:
        script: start of each session, and pause, prompt and answer of each turn; a session's prompts must grow.
        figures: extra figures.
    """

    script: tuple[tuple[float | None, tuple[tuple[float, int, int], ...]], ...]
    figures: Mapping[str, float] = {}
    name: str = "scripted"

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        raise NotImplementedError

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        for number, (start_s, turns) in enumerate(self.script):
            yield SessionOutline(str(number), start_s, tuple(self._turns(number, turns)))

    def _turns(self, number: int, turns: tuple[tuple[float, int, int], ...]) -> Iterator[TurnOutline]:
        segments: tuple[tuple[str, int], ...] = ()
        for k, (think_s, input_tokens, output_tokens) in enumerate(turns):
            segments = (*segments, (f"{number}.{k}", input_tokens - sum(tokens for _, tokens in segments)))
            yield TurnOutline(input_tokens, output_tokens, think_s, segments)

    def extra_figures(self, seed: Seed) -> dict[str, float]:
        return dict(self.figures)

    def notes(self) -> list[str]:
        return [f"{self.name}: scripted"]


def singles(count: int, gap_s: float | None = 1.0, *, input_tokens: int = 100, output_tokens: int = 10) -> Scripted:
    """Sessions of one request: evenly spaced, at once (a gap of 0), or without start times (a gap of None)."""
    starts = [None if gap_s is None else i * gap_s for i in range(count)]
    return Scripted(tuple((start_s, ((0.0, input_tokens + i, output_tokens),)) for i, start_s in enumerate(starts)))


def dialogues(count: int, pause_s: float = 2.0) -> Scripted:
    """Sessions of two or three requests, each of which extends the prompt before."""
    turns = ((0.0, 100, 20), (pause_s, 200, 20), (3 * pause_s, 400, 20))
    return Scripted(tuple((4.0 * i, turns[: 2 + i % 2]) for i in range(count)))


def profiled(workload: Scripted, name: str = "scripted") -> WorkloadProfile:
    """The workload's profile."""
    return profile_workload(name, workload, Seed.of("1"))


def shown_profile(
    workload: Scripted,
    name: str = "scripted",
    *,
    anchors: tuple[Anchor, ...] = (),
    rescaled: bool = False,
    option_texts: tuple[str, ...] = (),
    tokenizer: str | None = None,
) -> ShownProfile:
    """The workload's profile as ``bakeoff workloads show`` has it."""
    profile = profiled(workload, name)
    checked = tuple(check_anchor(anchor, profile.figures, rescaled=rescaled) for anchor in anchors)
    return ShownProfile(
        **msgspec.structs.asdict(msgspec.structs.replace(profile, anchors=checked, rescaled=rescaled)),
        target=name,
        seed=1,
        max_sessions=2000,
        option_texts=option_texts,
        tokenizer=tokenizer,
    )
