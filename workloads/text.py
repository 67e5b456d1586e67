"""English text from a small grammar, cut to an exact number of tokens.

The text is synthetic and says so in the workload's notes: what a benchmark needs of it is that it tokenises like
prose, that no two prompts share a prefix by accident, and that it is the same on every machine.
"""

import functools
from collections.abc import Iterator

from workloads.errors import WorkloadError
from workloads.rng import Rng
from workloads.tokenizer import Tokenizer

_OPENERS = (
    "Explain to a new colleague", "Compare and contrast", "Summarise in plain words", "Write a short note about",
    "What should I check first about", "Give three practical examples of", "Describe step by step",
    "Help me prepare a talk on", "Draft a polite reply about", "List the risks of", "Tell me the history of",
    "Suggest improvements to", "Translate into everyday language", "Make a careful plan for",
)  # fmt: skip
_SUBJECTS = (
    "the harbour office", "our night shift", "a retired engineer", "the city library", "every second visitor",
    "the youngest apprentice", "a visiting scientist", "the village council", "my neighbour's daughter",
    "the railway museum", "a patient gardener", "the accounting team", "an experienced nurse", "the local baker",
    "a curious student", "the weather station", "our delivery drivers", "the project committee", "a stubborn editor",
)  # fmt: skip
_VERBS = (
    "measures", "repairs", "has questions about", "wrote a report on", "keeps a record of", "wants to understand",
    "argues about", "is responsible for", "has forgotten", "carefully checks", "would like to replace", "describes",
    "can explain", "never trusted", "recently discovered", "plans to simplify", "pays for", "looks after",
)  # fmt: skip
_OBJECTS = (
    "the old pumping engine", "a database of ship logs", "the weekly budget", "a recipe with seven ingredients",
    "the timetable of the last train", "a broken water meter", "two competing proposals", "the rules of the contest",
    "a collection of early maps", "the training schedule", "a letter from the insurer", "the garden's irrigation",
    "a difficult customer request", "the results of the survey", "an unusual rainfall pattern", "the spare parts list",
    "a translation of the manual", "the new safety procedure", "a simple sorting algorithm", "the winter heating bill",
)  # fmt: skip
_TAILS = (
    "before the end of the month", "although nobody had asked for it", "because the first attempt failed",
    "in a way that anyone can follow", "with less effort than last year", "while the others were still at lunch",
    "so that mistakes are found early", "for about 40 percent of the cases", "even when the network is down",
    "without changing anything else", "and the numbers finally agree", "if the weather allows it",
    "from 9:30 until late in the afternoon", "using only pencil and paper", "as the contract requires",
)  # fmt: skip
_MAX_REPAIRS = 64


def sentences(rng: Rng) -> Iterator[str]:
    """Yield sentences without end; the first of a prompt is a request, the others its context."""
    yield f"{rng.choice(_OPENERS)} how {_clause(rng)}."
    while True:
        clause = _clause(rng)
        yield f"{clause[0].upper()}{clause[1:]}{'?' if rng.uniform() < 0.1 else '.'}"


def exact_text(tokenizer: Tokenizer, tokens: int, rng: Rng, opening: str = "") -> str:
    """Prose of exactly ``tokens`` tokens (at least 1) as ``tokenizer`` counts them, behind ``opening``.

    The text is cut in token space, decoded and counted again; where a cut changes the count (half a character, a
    merge over the edge) single-token words are added or tokens dropped until it fits.

    Raises:
        WorkloadError: the tokenizer has no single-token words to repair with.
    """
    return _fit(tokenizer, _prose_ids(tokenizer, tokens, rng, opening), tokens, rng)


def random_words(tokenizer: Tokenizer, tokens: int, rng: Rng) -> str:
    """``tokens`` random single-token words: no meaning, no shared prefix, exact by construction."""
    words = _single_token_words(tokenizer)
    return _fit(tokenizer, tokenizer.encode("".join(rng.choice(words) for _ in range(tokens)).strip()), tokens, rng)


def _clause(rng: Rng) -> str:
    parts = [rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS)]
    if rng.uniform() < 0.6:
        parts.append(rng.choice(_TAILS))
    return " ".join(parts)


def _prose_ids(tokenizer: Tokenizer, tokens: int, rng: Rng, opening: str) -> list[int]:
    """Ids of at least ``tokens`` tokens of prose."""
    source = sentences(rng)
    text = opening + next(source)
    ids = tokenizer.encode(text)
    while len(ids) < tokens:
        # English has over 3 characters a token: counting before that much has been added is in vain.
        enough = len(text) + 3 * (tokens - len(ids))
        while len(text) < enough:
            text = f"{text} {next(source)}"
        ids = tokenizer.encode(text)
    return ids


def _fit(tokenizer: Tokenizer, ids: list[int], tokens: int, rng: Rng) -> str:
    text = tokenizer.decode(ids[:tokens]).rstrip()
    for _ in range(_MAX_REPAIRS):
        found = tokenizer.encode(text)
        if len(found) == tokens:
            return text
        if len(found) > tokens:
            text = tokenizer.decode(found[:-1]).rstrip()
        else:
            text += rng.choice(_single_token_words(tokenizer))
    raise WorkloadError(f"no text of exactly {tokens} tokens was found with this tokenizer; choose another length")


@functools.lru_cache(maxsize=4)
def _single_token_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Lower-case words that are one token behind a space, sorted so that hashing has no say in the order."""
    words: list[str] = []
    for _, i in sorted(tokenizer.vocabulary.items()):
        word = tokenizer.decode([i])
        if word.startswith(" ") and word[1:].isascii() and word[1:].isalpha() and word.islower() and len(word) > 3:
            words.append(word)
    exact = [word for word in words if tokenizer.count(f"a{word}") - tokenizer.count("a") == 1]
    if not exact:
        raise WorkloadError("this tokenizer has no single-token words; only byte-level and word-piece ones are known")
    return tuple(exact)
