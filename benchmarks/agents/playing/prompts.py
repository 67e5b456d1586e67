"""Lengths of prompts as sent, and hits of an unlimited prefix cache of each session."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path

import tokenizers

from bakeoff.workloads import tokenizer_at
from benchmarks.agents.playing.recording import BLOCK_TOKENS
from benchmarks.agents.playing.replay import Place, Replay


class Prompts:
    """The prompts of a replay as tokens, without a chat template.

    Args:
        replay: the requests.
        folder: of the tokenizer.

    Attributes:
        ids: of each prompt; messages are encoded one by one.
    """

    def __init__(self, replay: Replay, folder: Path) -> None:
        self._replay = replay
        self._folder = folder
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.ids: dict[Place, list[int]] = {
            place: [i for _, text in request.messages for i in tokenizer.encode(text, add_special_tokens=False).ids]
            for place, _, request in replay.calls
        }

    def longer(self) -> dict[Place, int]:
        """Tokens of each prompt beyond the recorded length."""
        return {place: len(self.ids[place]) - call.input_tokens for place, call, _ in self._replay.calls}

    def templated(self) -> list[int]:
        """Tokens that the model's chat template adds to each chat."""
        tokenizer = tokenizer_at(str(self._folder))
        chats = {place: request.messages for place, _, request in self._replay.calls if request.messages[0][0]}
        rendered = {
            place: tokenizer.render_chat([{"role": role, "content": text} for role, text in messages])
            for place, messages in chats.items()
        }
        return [tokenizer.count(text) - len(self.ids[place]) for place, text in rendered.items()]

    def hit_share(self, block_tokens: int = BLOCK_TOKENS) -> float:
        """Share of the whole blocks that an earlier prompt of the session began with, in order of arrival."""
        prompts: list[tuple[int, list[tuple[int, ...]]]] = []
        for place, ids in self.ids.items():
            starts = range(0, len(ids) + 1 - block_tokens, block_tokens)
            prompts.append((place[0], [tuple(ids[at : at + block_tokens]) for at in starts]))
        return _hit_share(prompts)

    def recorded_hit_share(self) -> float:
        """The same of the recorded ids, in the same order."""
        return _hit_share((place[0], call.hash_ids) for place, call, _ in self._replay.calls)


def _hit_share(prompts: Iterable[tuple[int, Iterable[Hashable]]]) -> float:
    """Hits per block of prompts, each with the number of its session."""
    seen: defaultdict[int, set[int]] = defaultdict(set)
    hits = blocks = 0
    for session, prompt in prompts:
        known, prefix = seen[session], 0
        prefixes: list[int] = []
        for block in prompt:
            prefix = hash((prefix, block))
            prefixes.append(prefix)
        hits += next((at for at, prefix in enumerate(prefixes) if prefix not in known), len(prefixes))
        blocks += len(prefixes)
        known.update(prefixes)
    return hits / blocks
