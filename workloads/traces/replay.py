"""``trace``: replays a trace with text that matches its lengths and shared prefixes."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import msgspec

from bakeoff.workloads.conversation import Api, Conversation
from bakeoff.workloads.errors import BadOption, NoTokenizer
from bakeoff.workloads.graph import Links, kept
from bakeoff.workloads.options import check_scale
from bakeoff.workloads.outline import Segment, SessionOutline, TurnOutline
from bakeoff.workloads.prompts import PromptReader, prompt_reader
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.shapes import SessionShape
from bakeoff.workloads.text import first_mark, writer
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.traces.formats import TRACE_FORMATS, detect, trace_format
from bakeoff.workloads.traces.grouping import sessions_of
from bakeoff.workloads.traces.row import SupportsFigures, SupportsLengths, Trace, TraceRow
from bakeoff.workloads.types import Session, Turn

_CACHED_BLOCKS = 8192
_S = TypeVar("_S")


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replays a trace.

    Rows with block hashes get equal text for equal hashes, so a prefix cache hits as it would have in the recording.
    Real text is sent unchanged. All other prompts are synthetic text of the recorded length, and prompts of different
    sessions share no prefix.
    """

    path: str
    """The trace's file or folder."""
    format: str | None = None
    """Format of the trace; detected by default."""
    format_options: dict[str, Any] = {}
    """Options of the format."""
    scale: float = 1.0
    """Factor on every length, before rounding; real text is not scaled."""
    max_input_tokens: int | None = None
    """Longest prompt, in tokens after scaling; longer requests are left out."""
    max_rows: int | None = None
    """Number of rows to replay, from the beginning; all by default."""
    api: Api = "completions"
    """``completions`` or ``chat``; with ``chat``, the recorded length includes the template. Real text is sent as
    recorded."""
    max_pause_s: float | None = None
    """Longest pause within a session, in seconds, to which longer ones are shortened, such as those of a human."""
    salt: bool = False
    """Whether each play of a session has words of its own, so that it hits nothing of an earlier play in a cache. Real
    text gets ``[rid:…]`` before the user's first message, or before the prompt."""
    repeat: bool = False
    """Whether to start over at the end, for a trace that is shorter than the load; only without times."""
    reach_s: float | None = None
    """Length of the load, in seconds. A session ends with the first turn that its pauses alone put beyond it."""

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if self.format is not None and self.format not in TRACE_FORMATS:
            raise ValueError(f"format must be one of {', '.join(TRACE_FORMATS)}, not '{self.format}'")
        if self.max_pause_s is not None and not self.max_pause_s >= 0:
            raise ValueError(f"max_pause_s must be at least 0, not {self.max_pause_s}")
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, not {self.max_rows}")

    def own_rate_per_s(self) -> float | None:
        """Sessions per second over the whole trace, which is read for this; None without times."""
        count, first_s, last_s = 0, 0.0, 0.0
        for start_s in self.starts(Seed.of("")):
            first_s = first_s if count else start_s
            count, last_s = count + 1, start_s
        return (count - 1) / (last_s - first_s) if last_s > first_s else None

    def within(self, reach_s: float) -> Self:
        """The same replay without most turns beyond the end of a load of ``reach_s`` seconds."""
        return msgspec.structs.replace(self, reach_s=reach_s)

    @property
    def has_words(self) -> bool:
        """Whether the trace's first row has real text, whose tokens must be counted."""
        row = next(iter(self.rows(Seed.of(""), has_blocks=False)), None)
        return row is not None and (bool(row.messages) or row.prompt is not None)

    def trace(self) -> Trace:
        """The reader.

        Raises:
            BadTrace: the format cannot be detected.
            BadOption: an option of the format is wrong.
        """
        name = self.format or detect(self.path)
        return trace_format(name, {"path": self.path, **self.format_options})

    def rows(self, seed: Seed, *, has_blocks: bool = True) -> Iterator[TraceRow]:
        """The rows to replay; those without blocks may take less time to read."""
        trace = self.trace()
        rows = trace.lengths(seed) if not has_blocks and isinstance(trace, SupportsLengths) else trace.rows(seed)
        return itertools.islice(rows, self.max_rows)

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """The trace, once, or again and again if it repeats.

        Raises:
            BadOption: the trace has times and repeats.
        """
        author = _PromptWriter(self, tokenizer, seed)
        return self._passes(seed, author.session)

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        """Outlines of the sessions; raises NoTokenizer for a trace of real text."""

        def outlined(number: int, rows: list[TraceRow]) -> SessionOutline | None:
            turns = self._within_limit(self._outlined(number, rows))
            return SessionOutline(rows[0].session or f"trace-{number}", rows[0].at_s, turns) if turns else None

        return self._passes(seed, outlined)

    def shapes(self, seed: Seed) -> Iterator[SessionShape] | None:
        """The same sessions without prompts; None for a trace of real text, whose tokens must be counted."""
        if self.has_words:
            return None

        def shaped(_number: int, rows: list[TraceRow]) -> SessionShape | None:
            turns = self._within_limit(self._timed(rows))
            return SessionShape.of(turns) if turns else None

        return self._passes(seed, shaped, has_blocks=False)

    def chosen(self, tokenizer: Tokenizer, seed: Seed, turns: Mapping[int, int]) -> Iterator[Session]:
        author, has_words = _PromptWriter(self, tokenizer, seed), self.has_words

        def numbered(number: int, rows: list[TraceRow]) -> Callable[[], Session | None] | None:
            if has_words:
                session = author.session(number, rows)
                return None if session is None else lambda: session
            return (lambda: author.session(number, rows)) if self._within_limit(self._timed(rows)) else None

        for at, written in enumerate(itertools.islice(self._passes(seed, numbered), max(turns, default=-1) + 1)):
            if at in turns and (session := written()) is not None:
                yield msgspec.structs.replace(session, turns=session.turns[: turns[at]])

    def _passes(
        self, seed: Seed, made: Callable[[int, list[TraceRow]], _S | None], *, has_blocks: bool = True
    ) -> Iterator[_S]:
        """What ``made`` makes of each session, in one pass over the trace or in endless ones.

        Args:
            seed: of the workload.
            made: takes a session's rows and its number, which goes on from pass to pass: no two share synthetic text.
                It returns None for a session of which nothing is left.
            has_blocks: whether it needs the blocks of prompts.
        """
        numbers = itertools.count()
        while True:
            is_empty = True
            for rows, number in zip(self._grouped(seed, has_blocks=has_blocks), numbers, strict=False):
                session = made(number, rows)
                if session is None:
                    continue
                if self.repeat and rows[0].at_s is not None:
                    raise BadOption("workload 'trace': a trace with times cannot be repeated; leave out repeat")
                is_empty = False
                yield session
            if is_empty or not self.repeat:
                return

    def starts(self, seed: Seed) -> Iterator[float]:
        """Session starts in seconds; empty without times."""
        started: set[str] = set()
        for row in self.rows(seed, has_blocks=False):
            if row.at_s is None or row.session in started:
                continue
            if row.session is not None:
                started.add(row.session)
            yield row.at_s

    def _grouped(self, seed: Seed, *, has_blocks: bool) -> Iterator[list[TraceRow]]:
        """The rows of each session within the load, and those after them, whose pauses last until its end."""
        for rows in sessions_of(self.rows(seed, has_blocks=has_blocks)):
            if self.reach_s is None or len(rows) == 1:
                yield rows
            else:
                yield rows[: Links.of(self._timed(rows)).first_within(self.reach_s)]

    def _timed(self, rows: list[TraceRow]) -> list[TurnOutline]:
        """Outlines of a session's turns without their prompts."""
        return [
            TurnOutline(
                scaled(row.input_tokens, self.scale), scaled(row.output_tokens, self.scale),
                self.pause_s(row, last), (), row.parents, self.lags_s(row, last), row.agent,
            )
            for last, row in itertools.pairwise([None, *rows])
            if row is not None
        ]  # fmt: skip

    def pause_s(self, row: TraceRow, last: TraceRow | None) -> float:
        """The pause before a row in seconds, which ``last`` precedes in its session."""
        pause_s = think_s(row, last) if last else 0.0
        return pause_s if self.max_pause_s is None else min(pause_s, self.max_pause_s)

    def lags_s(self, row: TraceRow, last: TraceRow | None) -> tuple[float, ...]:
        """The pauses after each parent beyond the row's own, so that both together keep the limit."""
        if self.max_pause_s is None or not row.lags_s:
            return row.lags_s
        whole_s, capped_s = (think_s(row, last) if last else 0.0), self.pause_s(row, last)
        lags_s = tuple(min(whole_s + lag_s, self.max_pause_s) - capped_s for lag_s in row.lags_s)
        return lags_s if any(lags_s) else ()

    def _within_limit(self, turns: Sequence[TurnOutline]) -> tuple[TurnOutline, ...]:
        """The turns whose prompts are no longer than ``max_input_tokens``."""
        limit = self.max_input_tokens
        if limit is None:
            return tuple(turns)
        return kept(turns, {number for number, turn in enumerate(turns) if turn.input_tokens <= limit})

    def _outlined(self, number: int, rows: list[TraceRow]) -> list[TurnOutline]:
        """Outline turns: a prompt is its blocks, or its agent's previous prompt and answer plus new text."""
        conversations: dict[str, list[Segment]] = {}
        named: dict[int, Segment] = {}  # one object for a block of many prompts
        play = f" of play {number}" if self.salt else ""
        outlined: list[TurnOutline] = []
        for k, (row, turn) in enumerate(zip(rows, self._timed(rows), strict=True)):
            if row.input_tokens is None:
                raise NoTokenizer("the trace has text but no lengths; give a tokenizer's folder")
            segments = conversations.setdefault(row.agent, [])
            held = sum(count for _, count in segments)
            if row.blocks:
                size = scaled(row.block_tokens, self.scale)
                whole = row.blocks[: row.input_tokens // row.block_tokens]
                segments[:] = [named.get(name) or named.setdefault(name, (f"{name}{play}", size)) for name in whole]
            elif held >= turn.input_tokens:
                segments.clear()
            segments.append((f"new {number}.{k}", max(1, turn.input_tokens - sum(count for _, count in segments))))
            outlined.append(msgspec.structs.replace(turn, segments=tuple(segments)))
            segments.append((f"answer {number}.{k}", turn.output_tokens))
        return outlined

    def extra_figures(self, seed: Seed) -> dict[str, float]:
        """The trace's own figures, over all of it; empty if its format has none."""
        del seed  # they are those of the recording
        trace = self.trace()
        return trace.figures() if isinstance(trace, SupportsFigures) else {}

    def notes(self) -> list[str]:
        """The trace's own notes, and the scale."""
        factor = "" if self.scale == 1 else f"; every length × {self.scale:g}"
        factor += "" if self.max_pause_s is None else f"; pauses of at most {self.max_pause_s:g} s"
        factor += "; each play has words of its own" if self.salt else ""
        again = "; repeated" if self.repeat else ""
        return [f"trace {self.path}{factor}{again}", *self.trace().notes()]


class _PromptWriter:
    """Writes the prompts of one plan."""

    def __init__(self, replay: Replay, tokenizer: Tokenizer, seed: Seed) -> None:
        self._replay = replay
        self._tokenizer = tokenizer
        self._seed = seed
        self._writer = writer(tokenizer)
        self._reader: PromptReader = prompt_reader(tokenizer)
        self._base = first_mark(seed)
        self._block: Callable[[int, int, str], str] = functools.lru_cache(maxsize=_CACHED_BLOCKS)(self._written_block)

    def session(self, number: int, rows: list[TraceRow]) -> Session | None:
        """Write a session; None if its prompts are all too long."""
        conversations: dict[str, Conversation] = {}
        turns: list[Turn] = []
        for k, (last, row) in enumerate(itertools.pairwise([None, *rows])):
            assert row is not None
            pause_s = self._replay.pause_s(row, last)
            if row.messages or row.prompt is not None:
                turn = self._real(self._salted(row, number), pause_s)
            elif row.blocks:
                turn = self._of_blocks(row, pause_s, self._salt(number))
            else:
                conversation = conversations.get(row.agent)
                conversations[row.agent], turn = self._of_length(number, k, row, pause_s, conversation)
            links = {"parents": row.parents, "lags_s": self._replay.lags_s(row, last), "agent": row.agent}
            turns.append(msgspec.structs.replace(turn, **links, recorded_s=row.recorded_s))
        limit = self._replay.max_input_tokens
        if limit is not None:
            turns = list(kept(turns, {k for k, turn in enumerate(turns) if turn.input_tokens <= limit}))
        return Session(rows[0].session or f"trace-{number}", tuple(turns), rows[0].at_s) if turns else None

    def _salt(self, number: int) -> str:
        """Twelve hexadecimal digits for the play of a session; empty without salt."""
        return f"{self._seed.wording('salt', str(number)).below(16**12):012x}" if self._replay.salt else ""

    def _salted(self, row: TraceRow, number: int) -> TraceRow:
        if not self._replay.salt:
            return row
        mark = f"[rid:{self._salt(number)}]\n\n"
        if row.prompt is not None:
            return msgspec.structs.replace(row, prompt=mark + row.prompt)
        users = (k for k, message in enumerate(row.messages) if message.role == "user")
        first = next(users, 0)
        messages = list(row.messages)
        messages[first] = msgspec.structs.replace(messages[first], content=mark + messages[first].content)
        return msgspec.structs.replace(row, messages=tuple(messages))

    def _real(self, row: TraceRow, pause_s: float) -> Turn:
        """A turn with recorded text, whose tokens are counted."""
        output = row.output_tokens
        if output is None:
            output = max(1, self._tokenizer.count(row.answer)) if row.answer else 1
        turn = Turn(
            0, output, messages=row.messages or None, prompt=row.prompt, think_s=pause_s, tools=row.tools,
            expected=row.expected,
        )  # fmt: skip
        return msgspec.structs.replace(turn, input_tokens=self._reader.count(turn))

    def _of_length(
        self, number: int, k: int, row: TraceRow, pause_s: float, conversation: Conversation | None
    ) -> tuple[Conversation, Turn]:
        """A prompt that extends the session's conversation, or starts a new one if the recorded prompt is shorter."""
        wanted, output = self._scaled(row.input_tokens), self._scaled(row.output_tokens)
        rng = self._seed.wording("trace", str(number), str(k))
        if conversation is None or conversation.tokens >= wanted:
            conversation = Conversation(self._tokenizer, self._replay.api)
        turn = conversation.ask(wanted, output, rng, mark=self._base + number, think_s=pause_s)
        conversation.answer(output, rng)
        return conversation, turn

    def _of_blocks(self, row: TraceRow, pause_s: float, salt: str) -> Turn:
        """A prompt of hashed blocks; tokens that the model puts before every text shorten the first block."""
        size = self._scaled(row.block_tokens)
        whole, rest = divmod(row.input_tokens or 0, row.block_tokens)
        wanted = whole * size + (self._scaled(rest) if rest else 0)
        conversation = Conversation(self._tokenizer, self._replay.api)
        room = wanted - conversation.overhead_tokens
        texts: list[str] = []
        for i, name in enumerate(row.blocks):
            tokens = min(size - (conversation.head_tokens if i == 0 else 0), room)
            if tokens < 1:
                break
            texts.append(self._block(name, tokens, salt))
            room -= tokens
        output = self._scaled(row.output_tokens)
        rng = self._seed.wording("trace", "last", str(row.blocks[-1]), *filter(None, [salt]))
        return conversation.say("".join(texts), wanted, output, rng, think_s=pause_s)

    def _written_block(self, name: int, tokens: int, salt: str) -> str:
        rng = self._seed.wording("block", str(name), *filter(None, [salt]))
        return self._writer.passage(tokens, rng, self._base + name + int(salt or "0", 16))

    def _scaled(self, tokens: int | None) -> int:
        return scaled(tokens, self._replay.scale)


def scaled(tokens: int | None, scale: float) -> int:
    """A length at a scale, at least 1."""
    return max(1, round((tokens or 1) * scale))


def think_s(row: TraceRow, last: TraceRow) -> float:
    """The recorded pause, or the time between arrivals if the end of answers is unknown."""
    if row.think_s is not None:
        return row.think_s
    if row.at_s is None or last.at_s is None:
        return 0.0
    return max(0.0, row.at_s - last.at_s)
