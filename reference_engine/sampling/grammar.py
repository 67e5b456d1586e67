"""Output that must match a JSON schema, a regular expression or a list of choices: grammars and positions in them.

The work is done by llguidance, on bytes and on the checkpoint's own tokens. No torch in here.
"""

import contextlib
import functools
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from numpy.typing import NDArray

from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_CACHED_GRAMMARS, _CACHED_CHARACTERS = 128, 256 << 10  # compiled, a character takes about 100 bytes
_LONGEST = 1 << 20  # characters: compiled, four million of them took 250 MB
_DEEPEST = 500  # levels: the library recurses, and a stack of 8 MiB ends at about 2,500
_ASCII = "dws"  # these classes of regular expressions
# Between two JSON tokens; without a bound, a model that prefers blanks never ends.
_JSON_OPTIONS: Any = {"whitespace_pattern": r"[ \t\n\r]{1,64}"}


_LIMITS = LLParserLimits(max_items_in_row=50_000, step_max_items=1_000_000, step_lexer_fuel=4_000_000)
"""Effort for one token: 25, 20 and 20 times the library's defaults, of which a schema of 500 optional properties takes
more. The library states 20,000 items, or 14,000 units of fuel, a millisecond."""
JSON_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of any JSON object."""


class GrammarState:
    """One sequence's position in its grammar. Sequences only grow, so nothing is rolled back.

    Args:
        matcher: at the start of the grammar, and used by this sequence only.

    Attributes:
        is_given_up: whether the library's limits on effort were reached; only the end is allowed from then on.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._num_taken = 0
        self.is_given_up: bool = False

    def follow(self, token_ids: Sequence[int], prompt_len: int) -> None:
        """Consumes the output tokens since the last call.

        Args:
            token_ids: the whole sequence.
            prompt_len: leading tokens that are not output.
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
        if not self.is_given_up and self._matcher.is_error():
            self.is_given_up = True
            _log.warning("a grammar was given up: %s", _one_line(self._matcher.get_error()))


class Grammars:
    """Compiles grammars for one model. Usable from any thread; too slow for an event loop.

    A grammar is a text in the library's own language, compiled once before it is returned: it is known to be valid, and
    another process can receive it and compile it again in `start`.

    Args:
        tokenizer: the checkpoint's.
        vocab_size: rows of the model's output, which may exceed the tokenizer's tokens. With None grammars can be
            compiled, but not started for a model.
        eos_token_ids: tokens that end a sequence; none where grammars are only compiled.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int | None = None, eos_token_ids: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._matchers: OrderedDict[str, LLMatcher] = OrderedDict()  # most recently used last

    def of_json_schema(self, schema: str | Mapping[str, Any] | bool) -> str:
        """JSON that matches a schema, given as text or as an object.

        Raises:
            RequestError: 400, naming what is wrong or not supported.
        """
        try:
            decoded = json.loads(schema) if isinstance(schema, str) else schema
            if _is_too_deep(decoded):
                raise RequestError(
                    f"the JSON schema is nested, or its definitions refer to each other, over more than {_DEEPEST} "
                    "levels; make it flatter"
                )
            source = LLMatcher.grammar_from_json_schema(json.dumps(decoded), overrides=_JSON_OPTIONS)
        except ValueError as error:
            raise RequestError(f"the JSON schema cannot be read: {_one_line(str(error))}") from error
        except RecursionError as error:
            raise RequestError("the JSON schema is nested too deeply; make it flatter") from error
        return self._compiled("JSON schema", source)

    def of_regex(self, pattern: str) -> str:
        """Text that a regular expression matches from its first to its last character.

        The classes of digits, word characters and blanks are those of ASCII, as in JSON schemas.

        Raises:
            RequestError: 400, naming what is wrong or not supported.
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

    def build_vocabulary(self) -> None:
        """Builds the library's table of tokens, so that the first grammar need not wait for it.

        It takes 0.3 s for 49,152 tokens and holds the interpreter lock, which stops all other threads. If the library
        cannot read the tokenizer, every grammar raises an error that says so.
        """
        with contextlib.suppress(ValueError):
            _ = self._vocabulary

    def is_compiled(self, source: str) -> bool:
        """Whether `start` need not compile."""
        return source in self._matchers

    def compile(self, source: str) -> None:
        """Compiles what one of the methods above returned, so that `start` need not; releases the interpreter lock."""
        self._compile(source)

    def start(self, source: str) -> GrammarState:
        """The state at the start of a sequence; takes microseconds once the grammar is compiled.

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

    def _compile(self, source: str) -> LLMatcher:
        if len(source) > _LONGEST:
            raise ValueError(f"it has {len(source):,} characters, and {_LONGEST:,} are the most; shorten it")
        with self._lock:
            matcher = self._matchers.get(source)
            if matcher is not None:
                self._matchers.move_to_end(source)
                return matcher
        matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=_LIMITS)
        first = matcher.deep_copy()
        first.compute_bitmask()
        for tried in (matcher, first):
            if tried.is_error():
                raise ValueError(_one_line(tried.get_error()))
        with self._lock:
            self._matchers[source] = matcher
            while len(self._matchers) > _CACHED_GRAMMARS or sum(map(len, self._matchers)) > _CACHED_CHARACTERS:
                self._matchers.popitem(last=False)
        return matcher

    @property
    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            return self._built

    @functools.cached_property
    def _built(self) -> LLTokenizer:
        """The library's table of tokens."""
        return LLTokenizer(
            self._tokenizer.backend.to_str(), n_vocab=self._vocab_size, eos_token=self._eos_token_ids or None
        )


def _is_too_deep(schema: object) -> bool:
    """Whether a schema has more than `_DEEPEST` levels, references to its own parts followed, whatever their order."""
    levels: dict[int, int] = {}  # by the node's identity; 0 while they are counted, so that a circle ends
    waiting = [schema]
    while waiting:
        node = waiting[-1]
        children = _children(node, schema)
        if id(node) not in levels:
            levels[id(node)] = 0
            waiting += (child for child in children if id(child) not in levels)
            continue
        levels[id(node)] = 1 + max((levels[id(child)] for child in children), default=0)
        waiting.pop()
    return levels[id(schema)] > _DEEPEST


def _children(node: object, schema: object) -> list[object]:
    """The objects and lists in a node of a schema, and the part that it refers to."""
    values = list(node.values()) if isinstance(node, dict) else list(node) if isinstance(node, list) else []
    target = node.get("$ref") if isinstance(node, dict) else None
    if isinstance(target, str) and target.startswith("#"):
        values.append(_part(schema, target))
    return [value for value in values if isinstance(value, dict | list)]


def _part(schema: object, target: str) -> object:
    """The part of a schema that a JSON pointer (RFC 6901) names; None if there is none."""
    node = schema
    for step in target.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _one_line(message: str) -> str:
    """The error alone, of a message that may quote source text over several lines."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
