"""Prompts have exactly the wanted tokens, and share exactly the declared prefixes.

For each preset and each of three real tokenizers, 1,000 requests are drawn. Every prompt is rendered by the model's
template and encoded as a whole by the ``tokenizers`` library, as in an engine. For sessions of one group, the common
prefix of their token ids must end where the shared text ends. The longest presets are scaled.
"""

import collections
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import tokenizers

from bakeoff.workloads import Seed, Session, Tokenizer, Turn, workload
from bakeoff.workloads.presets import PresetTraffic, preset_names
from benchmarks.bars import Bars
from tests.acceptance.real_tokenizers import real_tokenizers

REQUESTS, SEED = 1000, Seed("exact", "exact")
SCALES = {"agent-coding": 0.1, "agentic-tools": 0.1, "deep-research": 0.25, "long-context-chat": 0.25}
_MARK = "@here@"


class Count(msgspec.Struct):
    """Counts of one preset with one tokenizer."""

    requests: int = 0
    off: int = 0
    worst: int = 0
    tokens: int = 0
    pairs: int = 0
    unshared: int = 0


def sessions(traffic: PresetTraffic, tokenizer: Tokenizer) -> Iterator[Session]:
    """Whole sessions until they hold 1,000 requests."""
    requests = 0
    for session in traffic.sessions(tokenizer, SEED):
        yield session
        requests += len(session.turns)
        if requests >= REQUESTS:
            return


class Engine:
    """Encodes prompts as an engine does: template, then the whole text through the tokenizer."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._template = Tokenizer(folder)

    def ids(self, turns: list[Turn]) -> list[list[int]]:
        """Token ids of several prompts."""
        texts = [self._template.render_chat([msgspec.structs.asdict(m) for m in turn.messages or ()]) for turn in turns]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def measured(traffic: PresetTraffic, folder: Path) -> Count:
    """Lengths of all requests, and the common prefixes of first requests."""
    tokenizer, engine, count = Tokenizer(folder), Engine(folder), Count()
    groups: dict[int | None, list[tuple[list[int], str]]] = collections.defaultdict(list)
    drawn = traffic.drawing(SEED).sessions()
    for numbers, session in zip(drawn, sessions(traffic, tokenizer), strict=False):
        ids_of_turns = engine.ids(list(session.turns))
        for turn, ids in zip(session.turns, ids_of_turns, strict=True):
            difference = abs(len(ids) - turn.input_tokens)
            count.requests += 1
            count.tokens += len(ids)
            count.off += difference != 0
            count.worst = max(count.worst, difference)
        if not numbers.turns[0].documents:
            groups[numbers.group].append((ids_of_turns[0], question(session.turns[0])))
    for members in groups.values():
        for (a, text_a), (b, _) in itertools.pairwise(members):
            # The questions, which follow the system prompt and the template's text, differ in their first token.
            count.pairs += 1
            count.unshared += common(a, b) != before(tokenizer, text_a, a)
    return count


def question(turn: Turn) -> str:
    assert turn.messages, "presets are chats here"
    return turn.messages[-1].content


def common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def before(tokenizer: Tokenizer, text: str, ids: list[int]) -> int:
    """Number of tokens before a prompt's question: all but those of the question and the template's text after it."""
    suffix = tokenizer.render_chat([{"role": "user", "content": _MARK}]).rpartition(_MARK)[2]
    return len(ids) - tokenizer.count(text + suffix)


def main() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    bars, worst, least, unshared = Bars(), 0, 1.0, 0
    print(
        f"{'preset':20} {'tokenizer':10} {'requests':>9} {'tokens':>12} {'exact':>9} {'worst':>6} {'pairs':>6} unshared"
    )
    for name in preset_names():
        traffic = workload(name, {"scale": SCALES.get(name, 1.0)})
        assert isinstance(traffic, PresetTraffic)
        for label, folder in real_tokenizers().items():
            count = measured(traffic, folder)
            exact = 1 - count.off / count.requests
            print(
                f"{name:20} {label:10} {count.requests:9,} {count.tokens:12,} {exact:9.3%} {count.worst:6} "
                f"{count.pairs:6} {count.unshared}",
                flush=True,
            )
            least, worst, unshared = min(least, exact), max(worst, count.worst), unshared + count.unshared
    bars.add("least_share_of_exact_prompts", least, ">=", 0.999)
    bars.add("worst_difference_tokens", worst, "<=", 1)
    bars.add("prefixes_not_shared_to_the_token", unshared, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
