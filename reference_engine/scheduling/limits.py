"""What one request may ask for; checked before it is queued, so that no impossible request waits."""

import dataclasses
from collections.abc import Sequence

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.errors import QueueFullError, RequestError


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a request.

    Attributes:
        max_model_len: tokens of prompt and output together.
        num_blocks: KV blocks in the pool.
        block_size: tokens per block.
        vocab_size: token ids are below this.
        max_num_seqs: sequences that may run at the same time.
        unforkable_flag: the setting under which sequences cannot share blocks, so that a prompt gets one answer; None
            if they can.
    """

    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    max_num_seqs: int = 1 << 30
    unforkable_flag: str | None = None

    @property
    def cache_tokens(self) -> int:
        """Tokens the whole cache can hold."""
        return self.num_blocks * self.block_size

    def room_for_output(self, prompt_len: int) -> int:
        """The most output tokens a prompt of this length leaves room for; 0 or less if it does not fit at all."""
        # The last output token is never fed back, so it needs no place in the cache.
        return min(self.max_model_len, self.cache_tokens + 1) - prompt_len

    def check(self, prompt: Sequence[int], max_tokens: int, width: int = 1) -> None:
        """Refuses what can never be computed.

        Args:
            prompt: token ids.
            max_tokens: output tokens.
            width: sequences that run together.

        Raises:
            RequestError: with the numbers, naming the field at fault.
        """
        length = len(prompt)
        if width > 1 and self.unforkable_flag is not None:
            raise RequestError(
                f"{width} answers to one prompt share its blocks, which {self.unforkable_flag} does not allow; send "
                f"{width} requests for one answer each",
                param="n",
            )
        if width > self.max_num_seqs:
            raise RequestError(
                f"{width} answers to one prompt are more than the {self.max_num_seqs} sequences that run at the same "
                "time; ask for fewer or start the server with more --max-num-seqs",
                param="n",
            )
        if not length:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < self.vocab_size:
                raise RequestError(f"token id {token} is outside the vocabulary of {self.vocab_size}", param="prompt")
        if length + 1 > self.max_model_len:
            self._refuse(
                f"the prompt has {length} tokens; with at least 1 output token that is more than the maximum model "
                f"length of {self.max_model_len}; shorten the prompt",
                "prompt",
            )
        if length + max_tokens > self.max_model_len:
            self._refuse(
                f"{length} prompt tokens and {max_tokens} output tokens are more than the maximum model length of "
                f"{self.max_model_len}; ask for at most {self.max_model_len - length} output tokens",
                "max_tokens",
            )
        if max_tokens > self.room_for_output(length):
            self._refuse(
                f"{length} prompt tokens and {max_tokens} output tokens need more than the {self.num_blocks} KV blocks "
                f"of {self.block_size} tokens; shorten one of them or start the server with more --num-blocks",
                "max_tokens",
            )

    def check_request(self, request: Request) -> None:
        """Refuses a request that can never be computed, alone or with its siblings, which share its prompt.

        Raises:
            RequestError: see `check`.
        """
        max_tokens = max(member.sampling.max_tokens for member in (request, *request.siblings))
        self.check(request.token_ids, max_tokens, request.width)

    def _refuse(self, message: str, param: str) -> None:
        raise RequestError(message, param=param, code="context_length_exceeded")


def check_queue(most: int, waiting: int, free_seats: int, count: int = 1) -> None:
    """Refuses requests that would have to wait while the queue is full.

    Args:
        most: requests that may wait.
        waiting: requests that wait now.
        free_seats: sequences that could run beside those that run now.
        count: new requests.

    Raises:
        QueueFullError: for all of them, or for none.
    """
    if waiting + count - max(0, free_seats) > most:
        raise QueueFullError(f"{waiting} requests are waiting already, no more than {most} may")
