"""English from a small grammar, in units that tokenizers do not merge.

A unit begins with a space and ends with a letter or a full stop. All common tokenizers (byte-level, SentencePiece, word
pieces) start a new token at such a space, so the tokens of a text are the sum over its units.
"""

from collections.abc import Iterator

from bakeoff.workloads.rng import Rng

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


def prose_units(rng: Rng) -> Iterator[str]:
    """Yield endless units: a request, then sentences of context."""
    yield f" {rng.choice(_OPENERS)}"
    yield " how"
    yield from _clause(rng, opens=False)
    while True:
        yield from _clause(rng, opens=True)


def _clause(rng: Rng, *, opens: bool) -> Iterator[str]:
    subject = rng.choice(_SUBJECTS)
    yield f" {subject[0].upper()}{subject[1:]}" if opens else f" {subject}"
    yield f" {rng.choice(_VERBS)}"
    end = "?" if opens and rng.uniform() < 0.1 else "."
    if rng.uniform() < 0.6:
        yield f" {rng.choice(_OBJECTS)}"
        yield f" {rng.choice(_TAILS)}{end}"
    else:
        yield f" {rng.choice(_OBJECTS)}{end}"
