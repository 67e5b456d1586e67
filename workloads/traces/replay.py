"""``trace``: sessions as somebody's trace has them, in text that fits its lengths and shares the prefixes it shares."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Self

import msgspec

from workloads.conversation import Api, Conversation
from workloads.errors import NoTokenizer
from workloads.options import check_scale
from workloads.outline import Segment, SessionOutline, TurnOutline
from workloads.prompts import PromptReader, prompt_reader
from workloads.rng import Seed
from workloads.text import first_mark, writer
from workloads.tokenizer import Tokenizer
from workloads.traces.formats import TRACE_FORMATS, detect, trace_format
from workloads.traces.grouping import sessions_of
from workloads.traces.row import Trace, TraceRow
from workloads.types import Session, Turn

_CACHED_BLOCKS = 8192


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replays a trace.

    Where rows name their blocks, equal names become equal text, so that a prefix cache hits what it would have hit.
    Where they hold real text it is sent as it is. All other prompts are synthetic text of the recorded length, and no
    two of different sessions begin alike.
    """

    path: str
    """The trace's file or folder."""
    format: str | None = None
    """Its format; the default is what its first lines look like."""
    format_options: dict[str, Any] = {}
    """The format's own."""
    scale: float = 1.0
    """Every length is multiplied by this before rounding; real text stays as it is."""
    max_input_tokens: int | None = None
    """Requests with a longer prompt, after scaling, are left out."""
    max_rows: int | None = None
    """Only the first rows of the trace."""
    api: Api = "completions"
    """``completions``: the recorded length is all of the prompt; ``chat``: the template is counted in. Real text is
    sent as it was recorded."""
    reach_s: float | None = None
    """Turns behind the first one that comes after more seconds of pauses than this are left out: a load of that length
    cannot reach them."""

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if self.format is not None and self.format not in TRACE_FORMATS:
            raise ValueError(f"format must be one of {', '.join(TRACE_FORMATS)}, not '{self.format}'")
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, not {self.max_rows}")

    def own_rate_per_s(self) -> float | None:
        """Sessions per second over the whole trace, which is read for it; None where it has no clock."""
        count, first_s, last_s = 0, 0.0, 0.0
        for start_s in self.starts(Seed.of("")):
            first_s = first_s if count else start_s
            count, last_s = count + 1, start_s
        return (count - 1) / (last_s - first_s) if last_s > first_s else None

    def within(self, reach_s: float) -> Self:
        """The same without most of the turns that a load of that many seconds cannot reach."""
        return msgspec.structs.replace(self, reach_s=reach_s)

    @property
    def has_words(self) -> bool:
        """Whether the trace's first row brings its own text, whose length is not known before it is counted."""
        row = next(iter(self.rows(Seed.of(""))), None)
        return row is not None and (bool(row.messages) or row.prompt is not None)

    def trace(self) -> Trace:
        """The reader.

        Raises:
            BadTrace: the format cannot be told.
            BadOption: an option of the format is wrong.
        """
        name = self.format or detect(self.path)
        return trace_format(name, {"path": self.path, **self.format_options})

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The rows that are replayed."""
        return itertools.islice(self.trace().rows(seed), self.max_rows)

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """See :class:`~workloads.types.Workload`; ends with the trace."""
        scribe = _Scribe(self, tokenizer, seed)
        for number, rows in enumerate(self._grouped(seed)):
            turns = tuple(scribe.turns(number, rows))
            if turns:
                yield Session(rows[0].session or f"trace-{number}", turns, rows[0].at_s)

    def outlines(self, seed: Seed) -> Iterator[SessionOutline]:
        """The sessions without words; not of a trace that is made of words."""
        for number, rows in enumerate(self._grouped(seed)):
            turns = tuple(self._outlined(number, rows))
            if turns:
                yield SessionOutline(rows[0].session or f"trace-{number}", rows[0].at_s, turns)

    def starts(self, seed: Seed) -> Iterator[float]:
        """When requests came that are no later turns of a session, as far as the trace has a clock."""
        seen: set[str] = set()
        for row in self.rows(seed):
            if row.at_s is None or row.session in seen:
                continue
            if row.session is not None:
                seen.add(row.session)
            yield row.at_s

    def _grouped(self, seed: Seed) -> Iterator[list[TraceRow]]:
        """The rows of each session, as far as a load can reach them and one more: its user thinks until the end."""
        for rows in sessions_of(self.rows(seed)):
            pauses_s = (think_s(row, last) for last, row in itertools.pairwise(rows))
            reached = itertools.takewhile(
                lambda total_s: self.reach_s is None or total_s <= self.reach_s, itertools.accumulate(pauses_s)
            )
            yield rows[: 2 + sum(1 for _ in reached)]

    def _outlined(self, number: int, rows: list[TraceRow]) -> Iterator[TurnOutline]:
        """A turn's prompt is its blocks, or the last one's prompt and answer and what is new."""
        segments: list[Segment] = []
        last: TraceRow | None = None
        for k, row in enumerate(rows):
            if row.input_tokens is None:
                raise NoTokenizer("the trace has words and no lengths; give the folder of a tokenizer")
            wanted, output = scaled(row.input_tokens, self.scale), scaled(row.output_tokens, self.scale)
            held = sum(tokens for _, tokens in segments)
            if row.blocks:
                size = scaled(row.block_tokens, self.scale)
                segments = [(str(name), size) for name in row.blocks[: row.input_tokens // row.block_tokens]]
            elif held >= wanted:
                segments = []
            segments.append((f"new {number}.{k}", max(1, wanted - sum(tokens for _, tokens in segments))))
            if self.max_input_tokens is None or wanted <= self.max_input_tokens:
                yield TurnOutline(wanted, output, think_s(row, last) if last else 0.0, tuple(segments))
            segments.append((f"answer {number}.{k}", output))
            last = row

    def notes(self) -> list[str]:
        """What the trace says of itself, and the scale."""
        factor = "" if self.scale == 1 else f"; every length × {self.scale:g}"
        return [f"trace {self.path}{factor}", *self.trace().notes()]


class _Scribe:
    """Writes the prompts of one plan."""

    def __init__(self, replay: Replay, tokenizer: Tokenizer, seed: Seed) -> None:
        self._replay = replay
        self._tokenizer = tokenizer
        self._seed = seed
        self._writer = writer(tokenizer)
        self._reader: PromptReader = prompt_reader(tokenizer)
        self._base = first_mark(seed)
        self._block: Callable[[int, int], str] = functools.lru_cache(maxsize=_CACHED_BLOCKS)(self._written_block)

    def turns(self, number: int, rows: list[TraceRow]) -> Iterator[Turn]:
        conversation, last = None, None
        for k, row in enumerate(rows):
            pause_s = think_s(row, last) if last else 0.0
            last = row
            if row.messages or row.prompt is not None:
                turn = self._real(row, pause_s)
            elif row.blocks:
                turn = self._of_blocks(row, pause_s)
            else:
                conversation, turn = self._of_length(number, k, row, pause_s, conversation)
            limit = self._replay.max_input_tokens
            if limit is None or turn.input_tokens <= limit:
                yield turn

    def _real(self, row: TraceRow, pause_s: float) -> Turn:
        """Text as it was recorded, counted."""
        output = row.output_tokens
        if output is None:
            output = max(1, self._tokenizer.count(row.answer)) if row.answer else 1
        turn = Turn(0, output, messages=row.messages or None, prompt=row.prompt, think_s=pause_s)
        return msgspec.structs.replace(turn, input_tokens=self._reader.count(turn))

    def _of_length(
        self, number: int, k: int, row: TraceRow, pause_s: float, conversation: Conversation | None
    ) -> tuple[Conversation, Turn]:
        """A prompt that goes on where the session's last one ended, unless the recorded one is shorter than that."""
        wanted, output = self._scaled(row.input_tokens), self._scaled(row.output_tokens)
        rng = self._seed.wording("trace", str(number), str(k))
        if conversation is None or conversation.tokens >= wanted:
            conversation = Conversation(self._tokenizer, self._replay.api)
        turn = conversation.ask(wanted, output, rng, mark=self._base + number, think_s=pause_s)
        conversation.answer(output, rng)
        return conversation, turn

    def _of_blocks(self, row: TraceRow, pause_s: float) -> Turn:
        """A prompt of named blocks; what the model puts before every text takes its room from the first."""
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
            texts.append(self._block(name, tokens))
            room -= tokens
        output = self._scaled(row.output_tokens)
        rng = self._seed.wording("trace", "last", str(row.blocks[-1]))
        return conversation.say("".join(texts), wanted, output, rng, think_s=pause_s)

    def _written_block(self, name: int, tokens: int) -> str:
        return self._writer.passage(tokens, self._seed.wording("block", str(name)), self._base + name)

    def _scaled(self, tokens: int | None) -> int:
        return scaled(tokens, self._replay.scale)


def scaled(tokens: int | None, scale: float) -> int:
    """A length at a scale, at least 1."""
    return max(1, round((tokens or 1) * scale))


def think_s(row: TraceRow, last: TraceRow) -> float:
    """As recorded, or the time between the arrivals where the trace does not say when answers ended."""
    if row.think_s is not None:
        return row.think_s
    if row.at_s is None or last.at_s is None:
        return 0.0
    return max(0.0, row.at_s - last.at_s)
