"""Output that must match a JSON schema, a regular expression or a list of choices: grammars and where a sequence is.

The work is done by llguidance, on bytes and on the checkpoint's own tokens. No torch in here.
"""

import functools
import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, regex_to_lark
from numpy.typing import NDArray

from reference_engine.errors import RequestError
from reference_engine.loading.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_CACHED_GRAMMARS = 128
_ASCII = "dws"  # these classes of regular expressions
# Between two JSON tokens; without a bound a model that likes blanks never gets to the end.
_JSON_OPTIONS: Any = {"whitespace_pattern": r"[ \t\n\r]{1,64}"}


JSON_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of any JSON object."""


class GrammarState:
    """One sequence's position in its grammar. Sequences only grow, so nothing is rolled back.

    Args:
        matcher: at the beginning, and exclusively for this sequence.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._num_taken = 0
        self._is_given_up = False

    def follow(self, token_ids: Sequence[int], prompt_len: int) -> None:
        """Consumes the output tokens since the last call.

        Args:
            token_ids: the whole sequence.
            prompt_len: how many of them are no output.
        """
        fresh = token_ids[prompt_len + self._num_taken :]
        self._num_taken += len(fresh)
        if fresh:
            self._matcher.consume_tokens(fresh)

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Writes which tokens may come next, end-of-sequence tokens exactly where the output may end.

        Args:
            mask: [vocab_size / 32, rounded up], contiguous; one bit per token, the lowest bit first.
        """
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not self._is_given_up and self._matcher.is_error():
            # Only the library's limits on effort lead here; from now on it allows nothing but the end.
            self._is_given_up = True
            _log.warning("a grammar was given up: %s", _one_line(self._matcher.get_error()))


class Grammars:
    """Compiles grammars for one model; usable from any thread, and slow enough to keep off an event loop.

    What must be matched becomes a text in the library's own language, which has been compiled once when it is handed
    out: it is right, and can be sent to another process, whose `start` compiles it again.

    Args:
        tokenizer: the checkpoint's.
        vocab_size: rows of the model's output, which may be more than the tokenizer's tokens.
        eos_token_ids: tokens that end a sequence.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._compile = functools.lru_cache(_CACHED_GRAMMARS)(self._compile_anew)

    def of_json_schema(self, schema: str | Mapping[str, Any] | bool) -> str:
        """JSON that matches a schema, as text or as an object.

        Raises:
            RequestError: 400, saying what of it is wrong or not supported.
        """
        try:
            decoded = json.loads(schema) if isinstance(schema, str) else schema
            source = LLMatcher.grammar_from_json_schema(json.dumps(decoded), overrides=_JSON_OPTIONS)
        except ValueError as error:
            raise RequestError(f"the JSON schema cannot be read: {_one_line(str(error))}") from error
        except RecursionError as error:
            raise RequestError("the JSON schema is nested too deeply; make it flatter") from error
        return self._compiled("JSON schema", source)

    def of_json_object(self) -> str:
        """Any JSON object."""
        return self.of_json_schema(JSON_OBJECT)

    def of_regex(self, pattern: str) -> str:
        """Text that a regular expression matches from its first to its last character.

        The classes of digits, word characters and blanks are those of ASCII, as in JSON schemas.

        Raises:
            RequestError: 400, saying what is wrong or not supported.
        """
        lark = f"start: /{regex_to_lark(pattern, _ASCII)}/"
        return self._compiled("regular expression", LLMatcher.grammar_from_lark(lark))

    def of_choice(self, choices: Sequence[str]) -> str:
        """One of several texts.

        Raises:
            RequestError: 400, there are none.
        """
        if not choices:
            raise RequestError("the list of choices is empty; give at least one")
        alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        return self._compiled("list of choices", LLMatcher.grammar_from_lark(f"start: {alternatives}"))

    def start(self, source: str) -> GrammarState:
        """The beginning of a new sequence; microseconds once the grammar is compiled.

        Args:
            source: as one of the above returned it.
        """
        return GrammarState(self._compile(source).deep_copy())

    def _compiled(self, what: str, source: str) -> str:
        try:
            self._compile(source)
        except ValueError as error:
            raise RequestError(f"the {what} cannot be used: {error}") from error
        return source

    def _compile_anew(self, source: str) -> LLMatcher:
        matcher = LLMatcher(self._vocabulary, source, log_level=0)
        if matcher.is_error():
            raise ValueError(_one_line(matcher.get_error()))
        return matcher

    @property
    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            return self._built

    @functools.cached_property
    def _built(self) -> LLTokenizer:
        """The library's own view of the tokens; takes 0.2 s for 49,152, so it is built when it is first needed."""
        return LLTokenizer(
            self._tokenizer.backend.to_str(), n_vocab=self._vocab_size, eos_token=list(self._eos_token_ids)
        )


def _one_line(message: str) -> str:
    """What is wrong, of a message that may quote source text over several lines."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
