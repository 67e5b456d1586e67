"""Findings of answers: their token counts and lengths, and how they arrived."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from bakeoff.results.columns import UNKNOWN
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid, warning
from bakeoff.results.metrics.kinds import first_visible_ns
from bakeoff.results.metrics.latency import ttft_s
from bakeoff.results.records import RequestRecord, TokenSource
from bakeoff.results.requests import Flags, Requests

_THINKING_BEGINS = ("<think>", "<thinking>", "<|channel|>analysis", "[THINK]")
_THINKING_ENDS = ("</think>", "</thinking>", "[/THINK]")
"""Tags of DeepSeek and Qwen, older models, gpt-oss and Mistral."""
_MIN_BUFFERED_TOKENS, _ONE_PIECE_SHARE, _MAX_BUFFERED_SHARE = 8, 0.8, 0.5
"""Answers of at least so many tokens arrive in one piece if the first read has this share of them; a finding if more
than this share of them do."""

_GUESSES = (TokenSource.ASSUMED, TokenSource.ESTIMATED, TokenSource.UNPLACED)
"""Sources of counts that confirm nothing."""
_MIN_BLANK_S, _MIN_BLANK_SHARE = 0.005, 0.1
"""An answer begins blank if its first visible character comes so much later than its first chunk, in seconds and as a
share of the TTFT; a finding if more than half of the answers do."""

OF_ANSWERS = frozenset({
    FindingCode.TOKENS_MISCOUNTED, FindingCode.TOKENS_CONTRADICTED, FindingCode.OUTPUT_LENGTH,
    FindingCode.INPUT_LENGTH, FindingCode.HIDDEN_REASONING, FindingCode.THINKING_IN_TEXT, FindingCode.NOTHING_VISIBLE,
    FindingCode.ANSWERS_CUT, FindingCode.LEFT_OPEN, FindingCode.BEHIND_END, FindingCode.BLANK_BEGINNING,
    FindingCode.BUFFERED, FindingCode.TOKENS_APPORTIONED, FindingCode.TOKENS_UNPLACED, FindingCode.TOKENS_ESTIMATED,
    FindingCode.TOKENS_ASSUMED,
})  # fmt: skip
"""What :func:`miscounted` and :func:`answer_findings` find."""

_CUT = re.compile(
    r".*(?:blocked|blocklist|censor|filter|flagged|guardrail|malformed|moderat|prohibited|recitation|refus|safety"
    r"|sensitive|spii|unexpected).*"
)
"""Finish reasons, in lower case, of answers that the server ended early, by OpenAI, Anthropic, Bedrock and Gemini."""
_MIN_OPEN_NS, _OPEN_SHARE, _MAX_LEFT_OPEN_SHARE = 50_000_000, 0.1, 0.5
"""A response stays open if it takes so long, and this share of its answer's time, to end behind it; a finding if more
than this share of them do."""


def miscounted(measured: Requests, max_share: float) -> Iterator[Finding]:
    """Counts that the answers contradict; INVALID above this share of answers that nothing else counts."""
    answered = measured.ok
    contradicted = answered.take(~answered.equal("disbelieved", None))
    if not len(contradicted):
        return
    is_guess = np.any([contradicted.equal("token_source", source) for source in _GUESSES], axis=0)
    if int(is_guess.sum()) > max_share * len(answered):
        first = contradicted.take(is_guess)[0]
        yield invalid(
            FindingCode.TOKENS_MISCOUNTED, miscounted_requests=int(is_guess.sum()), ok_requests=len(answered),
            claimed_tokens=first.output_tokens or 0, text_bytes=len(first.text.encode()), chunks=len(first.chunk_ns),
            asked_tokens=first.requested_output_tokens or 0,
        )  # fmt: skip
        return
    first = contradicted[0]
    assert first.disbelieved is not None
    assert first.token_source is not None
    yield warning(
        FindingCode.TOKENS_CONTRADICTED, claim=first.disbelieved.value, contradicted_requests=len(contradicted),
        ok_requests=len(answered), used_tokens=first.total_chunk_tokens, source=first.token_source.value,
        claimed_tokens=first.output_tokens or 0,
    )  # fmt: skip


def resent(measured: Requests, max_share: float) -> Iterator[Finding]:
    """Requests that were sent twice: an idle close in a race with the request hits few, above a share they failed."""
    if count := int(measured.equal("is_resent", True).sum()):
        make = invalid if count > max_share * len(measured) else warning
        yield make(FindingCode.RESENT, resent_requests=count, measured_requests=len(measured))


def answer_findings(answered: Requests) -> Iterator[Finding]:
    """Answers of the wrong length, and token counts that differ from the plan or are estimates."""
    if wrong := _unequal(answered.take(_is_forced(answered)), "output_tokens", "requested_output_tokens"):
        output, requested = wrong[0]
        yield warning(
            FindingCode.OUTPUT_LENGTH, wrong_requests=len(wrong), ok_requests=len(answered), output_tokens=output,
            asked_tokens=requested,
        )  # fmt: skip
    if wrong := _unequal(answered, "prompt_tokens", "requested_input_tokens"):
        counted, planned = wrong[0]
        yield warning(
            FindingCode.INPUT_LENGTH, wrong_requests=len(wrong), ok_requests=len(answered), engine_tokens=counted,
            planned_tokens=planned,
        )  # fmt: skip
    yield from _guessed_counts(answered)
    hidden = answered.ints("hidden_tokens")
    if len(hidden := hidden[hidden > 0]):
        yield warning(
            FindingCode.HIDDEN_REASONING, hidden_requests=len(hidden), ok_requests=len(answered),
            hidden_tokens=round(float(hidden.mean())),
        )  # fmt: skip
    if thinking := sum(_thinks_in_text(request) for request in answered):
        yield warning(FindingCode.THINKING_IN_TEXT, thinking_requests=thinking, ok_requests=len(answered))
    reasons = answered.chunks.sums(answered.is_reasoning.astype(np.int64)) > 0
    if invisible := int((reasons & (first_visible_ns(answered) == UNKNOWN)).sum()):
        yield warning(FindingCode.NOTHING_VISIBLE, invisible_requests=invisible, ok_requests=len(answered))
    cut = Counter(reason for reason in answered.values("finish_reason") if reason and _CUT.fullmatch(reason.lower()))
    if cut:
        ((reason, _),) = cut.most_common(1)
        yield warning(FindingCode.ANSWERS_CUT, cut_requests=cut.total(), ok_requests=len(answered), reason=reason)
    yield from _left_open(answered)
    yield from _behind_end(answered)
    yield from _blank(answered)
    streamed = answered.take(answered.equal("is_streamed", True))
    long = streamed.take(streamed.chunks.total_tokens >= _MIN_BUFFERED_TOKENS)
    # most tokens of an answer arrived with its first ones
    in_one = long.chunks.reads.first_tokens >= _ONE_PIECE_SHARE * long.chunks.total_tokens
    buffered = int((in_one | long.came_at_once).sum())
    if len(long) and buffered > _MAX_BUFFERED_SHARE * len(long):
        yield warning(FindingCode.BUFFERED, buffered_requests=buffered, ok_requests=len(answered))


def _behind_end(answered: Requests) -> Iterator[Finding]:
    behind = answered.ints("behind_end")
    if count := int((behind > 0).sum()):
        yield warning(
            FindingCode.BEHIND_END, behind_requests=count, ok_requests=len(answered), behind_events=int(behind.sum())
        )


def _blank(answered: Requests) -> Iterator[Finding]:
    """Answers whose first chunks show nothing."""
    blank = answered.take(answered.ints("blank_chunks") > 0)
    if 2 * len(blank) <= len(answered):
        return
    chunks = blank.chunks
    after_s = (chunks.ns[chunks.starts + blank.ints("blank_chunks")] - chunks.first_ns) / 1e9
    is_late = (after_s > _MIN_BLANK_S) & (after_s > _MIN_BLANK_SHARE * ttft_s(blank))
    if 2 * (count := int(is_late.sum())) > len(answered):
        yield warning(
            FindingCode.BLANK_BEGINNING, blank_requests=count, ok_requests=len(answered),
            blank_s=float(np.median(after_s[is_late])),
        )  # fmt: skip


def _left_open(answered: Requests) -> Iterator[Finding]:
    last_ns, sent_ns = answered.ints("last_event_ns"), answered.ints("sent_ns")
    open_ns, answer_ns = answered.ints("ended_ns") - last_ns, last_ns - sent_ns
    is_known = (last_ns != UNKNOWN) & (sent_ns != UNKNOWN)
    is_open = is_known & (open_ns > np.maximum(_MIN_OPEN_NS, _OPEN_SHARE * answer_ns))
    if (count := int(is_open.sum())) > _MAX_LEFT_OPEN_SHARE * len(answered):
        yield warning(
            FindingCode.LEFT_OPEN, open_requests=count, ok_requests=len(answered),
            open_s=float(np.median(open_ns[is_open])) / 1e9,
        )  # fmt: skip


def _is_forced(answered: Requests) -> Flags:
    """Whether each answer should be as long as asked; those that are scored or call tools end by themselves."""
    calls = np.array(["c" in kinds for kinds in answered.values("chunk_kinds")], dtype=bool)
    return ~answered.is_present("check") & ~calls & ~answered.equal("token_source", TokenSource.ESTIMATED)


def _guessed_counts(answered: Requests) -> Iterator[Finding]:
    sources = Counter(answered.values("token_source"))
    if apportioned := sources[TokenSource.APPORTIONED]:
        yield warning(FindingCode.TOKENS_APPORTIONED, apportioned_requests=apportioned, ok_requests=len(answered))
    if unplaced := sources[TokenSource.UNPLACED]:
        yield warning(FindingCode.TOKENS_UNPLACED, unplaced_requests=unplaced, ok_requests=len(answered))
    if estimated := sources[TokenSource.ESTIMATED]:
        yield warning(FindingCode.TOKENS_ESTIMATED, estimated_requests=estimated, ok_requests=len(answered))
    if assumed := sources[TokenSource.ASSUMED]:
        yield warning(FindingCode.TOKENS_ASSUMED, assumed_requests=assumed, ok_requests=len(answered))


def _thinks_in_text(request: RequestRecord) -> bool:
    """Whether no chunk is reasoning, but the text begins with it or has the tag that ends it."""
    if "r" in request.chunk_kinds:
        return False
    return request.text.lstrip().startswith(_THINKING_BEGINS) or any(tag in request.text for tag in _THINKING_ENDS)


def _unequal(requests: Requests, counted: str, planned: str) -> list[tuple[int, int]]:
    """The pairs of two fields in which both numbers are known and differ."""
    a, b = requests.ints(counted), requests.ints(planned)
    differ = (a != UNKNOWN) & (b != UNKNOWN) & (a != b)
    return list(zip(a[differ].tolist(), b[differ].tolist(), strict=True))
