"""An example of a user-defined workload: questions about numbers, one after the other."""

from collections.abc import Iterator

import msgspec

from bakeoff.workloads import Message, PromptReader, Seed, Session, Tokenizer, Turn


class Countdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks which number comes before another one; its fields are the options."""

    first: int = 10
    output_tokens: int = 8

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """An endless series of sessions; the draws from the seed are the same on every machine."""
        reader, number = PromptReader(tokenizer), 0
        while True:
            rng = seed.draws("countdown", str(number))
            question = f"What comes before {1 + rng.below(self.first)}?"
            turn = Turn(0, self.output_tokens, messages=(Message("user", question),))
            turn = msgspec.structs.replace(turn, input_tokens=reader.count(turn))
            yield Session(f"countdown-{number}", (turn,), start_s=rng.uniform() + number)
            number += 1

    def notes(self) -> list[str]:
        """Notes for readers of the result."""
        return ["countdown: short questions, made up"]
