"""Sessions of a preset: numbers are drawn (:mod:`bakeoff.workloads.presets.drawing`), then text is written to match."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Self

import msgspec

from bakeoff.workloads.conversation import Api, Conversation
from bakeoff.workloads.options import check_scale
from bakeoff.workloads.outline import SessionOutline
from bakeoff.workloads.presets.drawing import LEAST_QUESTION_TOKENS, Document, Drawing, DrawnSession
from bakeoff.workloads.presets.preset import Preset
from bakeoff.workloads.presets.schemas import json_schema
from bakeoff.workloads.rng import Rng, Seed
from bakeoff.workloads.shapes import SessionShape
from bakeoff.workloads.text import MARKS, first_mark, writer
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Image, Session, Turn

_SYSTEMS, _DOCUMENTS = 64, 4096
"""Numbers of written texts to cache."""
_AGENT_MARKS = 1_000_003
"""Distance between the marks of a session's agents: the sessions of a plan, whose marks lie between, are fewer."""


class PresetTraffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Endless sessions of one preset.

    Each session depends on its number alone, not on the sessions before it.
    """

    name: str
    preset: Preset
    scale: float = 1.0
    """Factor on every length, before rounding; below 1 for machines too slow for the real lengths."""
    max_input_tokens: int | None = None
    """Longest prompt, in tokens after scaling; the default is the preset's limit, scaled."""
    api: Api = "chat"
    reach_s: float | None = None
    """Length of the load, in seconds. A session has no turns that follow more than this many seconds of pauses."""
    images: int = 0
    """Synthetic pictures in each question."""
    image_width: int = 1024
    image_height: int = 1024

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if self.max_input_tokens is not None and self.max_input_tokens < 1:
            raise ValueError(f"max_input_tokens must be at least 1, not {self.max_input_tokens}")
        for name, least, most in (("images", 0, 64), ("image_width", 1, 8192), ("image_height", 1, 8192)):
            if not least <= (value := getattr(self, name)) <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {value}")
        if not self.images and (self.image_width, self.image_height) != (1024, 1024):
            raise ValueError("image_width and image_height need images, their number in each question")
        if self.images and self.api != "chat":
            raise ValueError("images needs api = 'chat'")

    def own_rate_per_s(self) -> float | None:
        """Sessions per second of the preset's arrival process; None if all sessions start at once."""
        return None if self.preset.arrival.process == "at-once" else self.preset.arrival.rate_per_s

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        author = _Author(self, tokenizer, seed)
        return (author.session(drawn) for drawn in self.drawing(seed).sessions())

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        """The same sessions without text."""
        drawing = self.drawing(seed)
        return (drawing.outline(drawn) for drawn in drawing.sessions())

    def shapes(self, seed: Seed) -> Iterator[SessionShape]:
        """The same sessions without prompts."""
        return (SessionShape.of(drawn.turns) for drawn in self.drawing(seed).sessions())

    def chosen(self, tokenizer: Tokenizer, seed: Seed, turns: Mapping[int, int]) -> Iterator[Session]:
        author = _Author(self, tokenizer, seed)
        for drawn in itertools.islice(self.drawing(seed).sessions(), max(turns, default=-1) + 1):
            if drawn.number in turns:
                yield author.session(msgspec.structs.replace(drawn, turns=drawn.turns[: turns[drawn.number]]))

    def starts(self, seed: Seed) -> Iterator[float]:
        """Session starts in seconds, without drawing the sessions; empty if all start at once."""
        process = self.preset.arrival.made()
        return iter(()) if process is None else process.offsets_s(seed.traffic)

    def extra_figures(self, seed: Seed) -> dict[str, float]:
        """Figures about tenants; empty without tenants."""
        if self.preset.tenant_spread is None:
            return {}
        tenants = self.preset.arrival.tenants()
        shares, cvs = tenants.shares(), sorted(tenants.tenant_cvs(seed.traffic))
        return {
            "top10_tenants_share": sum(shares[:10]),
            "tenant_cv_p50": cvs[len(cvs) // 2],
            "day_swing": tenants.swing,
        }

    def primers(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """One short session per shared system prompt, to prime a cache."""
        author = _Author(self, tokenizer, seed)
        return (author.primer(group) for group in range(self.drawing(seed).groups))

    def notes(self) -> list[str]:
        """Source, scale and what is synthetic."""
        scaled = "" if self.scale == 1 else f"; every length × {self.scale:g} to suit this machine"
        summary = f"{self.name}: {self.preset.summary}; {self.preset.source}; text synthetic{scaled}"
        lengths = (
            f"{self.name}: an answer ends when its JSON schema is complete; the requested length is an upper bound"
        )
        pictures = (
            f"{self.name}: {self.images} synthetic pictures of {self.image_width} x {self.image_height} pixels in each "
            "question; prompt lengths are those of the text"
        )
        return [summary, *([lengths] if self.preset.json_schema else []), *([pictures] if self.images else [])]

    def drawing(self, seed: Seed) -> Drawing:
        """The generator of the sessions' numbers."""
        scaled = round(self.preset.max_input_tokens * self.scale)
        limit = scaled if self.max_input_tokens is None else min(scaled, self.max_input_tokens)
        return Drawing(self.name, self.preset, seed, scale=self.scale, limit=limit, reach_s=self.reach_s)

    def within(self, reach_s: float) -> Self:
        """The same workload without most turns beyond the end of a load of ``reach_s`` seconds."""
        return msgspec.structs.replace(self, reach_s=reach_s)


class _Author:
    """Writes the sessions of one plan."""

    def __init__(self, traffic: PresetTraffic, tokenizer: Tokenizer, seed: Seed) -> None:
        self._traffic = traffic
        self._preset = traffic.preset
        self._tokenizer = tokenizer
        self._writer = writer(tokenizer)
        self._seed = seed
        self._base = first_mark(seed)
        self._drawing = traffic.drawing(seed)
        self._pool = self._preset.documents.pool if self._preset.documents else 0
        self._system = functools.lru_cache(maxsize=_SYSTEMS)(self._written_system)
        self._document = functools.lru_cache(maxsize=_DOCUMENTS)(self._written_document)

    def session(self, drawn: DrawnSession) -> Session:
        return Session(f"{self._traffic.name}-{drawn.number}", tuple(self._turns(drawn)), drawn.start_s)

    def primer(self, group: int) -> Session:
        rng = self._seed.wording("primer", str(group))
        turn = self._conversation(group).ask(0, 1, rng, mark=self._base + MARKS + group)
        return Session(f"{self._traffic.name}-primer-{group}", (turn,))

    def _turns(self, drawn: DrawnSession) -> Iterator[Turn]:
        conversations: dict[str, Conversation] = {}
        agents: dict[str, int] = {"": 0}
        schema = json_schema(drawn.group) if self._preset.json_schema and drawn.group is not None else None
        for k, turn in enumerate(drawn.turns):
            if turn.is_fresh:
                conversations[turn.agent] = self._conversation(drawn.group_of(turn.agent))
            conversation = conversations[turn.agent]
            words = self._seed.wording(self._traffic.name, "text", str(drawn.number), str(k))
            agent = agents.setdefault(turn.agent, len(agents))
            asked = conversation.ask(
                turn.input_tokens,
                turn.output_tokens,
                words,
                mark=self._base + self._pool + drawn.number + _AGENT_MARKS * agent,
                before=[self._document(document) for document in turn.documents],
                style=self._preset.style,
                think_s=turn.think_s,
                json_schema=None if turn.agent else schema,
                images=self._images(words),
            )
            yield msgspec.structs.replace(asked, parents=turn.parents, lags_s=turn.lags_s, agent=turn.agent)
            conversation.answer(turn.output_tokens, words, self._preset.style)

    def _images(self, rng: Rng) -> tuple[Image, ...]:
        traffic = self._traffic
        return tuple(
            Image(traffic.image_width, traffic.image_height, rng.below(1 << 62)) for _ in range(traffic.images)
        )

    def _conversation(self, group: int | None) -> Conversation:
        return Conversation(self._tokenizer, self._traffic.api, "" if group is None else self._system(group))

    def _written_document(self, document: Document) -> str:
        words = self._seed.wording("document", str(document.number))
        return self._writer.passage(document.tokens, words, self._base + document.number)

    def _written_system(self, group: int) -> str:
        """The system prompt of a group: instructions, and the schema of answers if there is one."""
        has_schema = self._preset.json_schema and group < self._drawing.main_groups
        schema = f" Answer in JSON that follows this schema: {json_schema(group)}" if has_schema else ""
        tokens = self._drawing.system_tokens(group) - (self._tokenizer.count(schema) if schema else 0)
        words = self._seed.wording("system", str(group))
        return self._writer.passage(max(LEAST_QUESTION_TOKENS, tokens), words, self._base + group) + schema
