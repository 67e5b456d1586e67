"""A workload of one's own: questions about numbers, one after the other."""

from collections.abc import Iterator

import msgspec

from workloads import Message, PromptReader, Seed, Session, Tokenizer, Turn


class Countdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the number before, and before that one: its fields are the options."""

    first: int = 10
    output_tokens: int = 8

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Sessions without end; what the seed draws is the same on every machine."""
        reader, number = PromptReader(tokenizer), 0
        while True:
            rng = seed.draws("countdown", str(number))
            question = f"What comes before {1 + rng.below(self.first)}?"
            turn = Turn(0, self.output_tokens, messages=(Message("user", question),))
            turn = msgspec.structs.replace(turn, input_tokens=reader.count(turn))
            yield Session(f"countdown-{number}", (turn,), start_s=rng.uniform() + number)
            number += 1

    def notes(self) -> list[str]:
        """What a reader of the result must know."""
        return ["countdown: short questions, made up"]
