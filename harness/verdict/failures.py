"""Findings of requests that failed."""

from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus

from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid, warning
from bakeoff.results.records import Phase
from bakeoff.results.requests import Requests

_CODES: dict[int, FindingCode] = {
    HTTPStatus.UNAUTHORIZED: FindingCode.NOT_AUTHORISED,
    HTTPStatus.PAYMENT_REQUIRED: FindingCode.NOT_AUTHORISED,
    HTTPStatus.FORBIDDEN: FindingCode.NOT_AUTHORISED,
    HTTPStatus.NOT_FOUND: FindingCode.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: FindingCode.NOT_FOUND,
    HTTPStatus.BAD_REQUEST: FindingCode.REQUEST_REFUSED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: FindingCode.REQUEST_REFUSED,
    HTTPStatus.UNPROCESSABLE_ENTITY: FindingCode.REQUEST_REFUSED,
    HTTPStatus.TOO_MANY_REQUESTS: FindingCode.RATE_LIMITED,
}


def has_failed_ramp(evidence: Evidence) -> bool:
    """Whether the load ended after its ramp, in which every request failed."""
    return evidence.ramp is not None and evidence.ramp.has_failed


def failed_requests(measured: Requests, evidence: Evidence) -> Iterator[Finding]:
    """A larger share of the requests failed than the experiment allows."""
    is_ramp = has_failed_ramp(evidence)
    if evidence.faults:  # what fails from the first one on may be its effect
        measured = measured.take(measured.ints("ended_ns") < evidence.faults[0].begun_ns)
    failed = measured.take(measured.has_failed)
    if is_ramp:  # what the client cancelled when it gave up is neither
        measured = measured.take(~measured.is_cancelled)
    if not len(failed) or (not is_ramp and len(failed) <= evidence.max_failure_share * len(measured)):
        return
    ((outcome, count),) = Counter(failed.values("outcome")).most_common(1)
    first = failed.take(failed.equal("outcome", outcome))[0]
    yield invalid(
        _failure_code(first.status or 0, is_ramp=is_ramp),
        failed_requests=len(failed),
        measured_requests=len(measured),
        outcome=outcome.value,
        outcome_requests=count,
        error=(first.error or "no further detail").removesuffix("."),
    )


def _failure_code(status: int, *, is_ramp: bool) -> FindingCode:
    if 300 <= status < 400:
        return FindingCode.REDIRECTED
    return _CODES.get(status, FindingCode.RAMP_FAILED if is_ramp else FindingCode.FAILED_REQUESTS)


def ramp_failures(load: Requests, evidence: Evidence) -> Iterator[Finding]:
    """The same in a ramp that went on."""
    ramp = load.take(load.equal("phase", Phase.RAMP))
    failed = ramp.take(ramp.has_failed)
    if len(failed) > evidence.max_failure_share * len(ramp):
        yield warning(
            FindingCode.RAMP_FAILURES,
            failed_requests=len(failed),
            ramp_requests=len(ramp),
            outcome=failed[0].outcome.value,
            error=failed[0].error or "no further detail",
        )
