"""Every finding has a sentence, and every place that creates a finding supplies the sentence's parameters."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from bakeoff.results.finding_codes import Cause, FindingCode
from bakeoff.results.findings import Finding, Parameter, invalid, is_against_engine, note, warning
from bakeoff.results.metrics import Value, absent
from bakeoff.results.metrics.machine import PowerBasis
from bakeoff.results.metrics.objectives import Violation
from bakeoff.results.text.findings import sentence, sentences, violation_sentence
from tests.results.some_findings import parameters_of, void

ROOT = Path(__file__).parents[3]


def test_every_code_has_a_sentence_and_a_cause() -> None:
    assert all(code.template for code in FindingCode)
    assert all(code.cause in Cause for code in FindingCode)


@pytest.mark.parametrize("code", FindingCode)
def test_a_sentence_shows_every_parameter(code: FindingCode) -> None:
    shown = sentence(void(code))
    assert not {"{", "}", "\n"} & set(shown)
    assert not shown.endswith(".")
    for name, value in void(code).parameters.items():
        other: Parameter = f"another {value}" if isinstance(value, str) else value + 77
        assert sentence(void(code, **{name: other})) != shown, name


def made(folder: str) -> Iterator[tuple[str, FindingCode, set[str | None]]]:
    """Every call of ``invalid``, ``warning`` and ``note`` in the product: its place, code and parameters."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(
                    ast.Name("invalid" | "warning" | "note"),
                    [ast.Attribute(ast.Name("FindingCode"), name)],
                    keywords,
                ):
                    yield f"{path}:{node.lineno}", FindingCode[name], {keyword.arg for keyword in keywords}
                case _:
                    pass


@pytest.mark.slow
def test_every_finding_has_the_parameters_of_its_sentence() -> None:
    calls = [*made("harness"), *made("results")]
    assert FindingCode.ENGINE_DIED in {code for _, code, _ in calls}
    for place, code, parameters in calls:
        assert parameters == parameters_of(code), place


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (
            invalid(FindingCode.CLIENT_LATE, late_share=0.01, send_lag_s=0.0312),
            "the client sent 1 % of the requests more than 31.2 ms late; add client.workers (--workers of bench)",
        ),
        (
            invalid(FindingCode.WINDOW_TOO_SHORT, window_s=0.5, needed_window_s=1),
            (
                "the window is 500 ms long and must be 1.00 s or more; raise trial.max_window_s or "
                "trial.max_requests, or give the workload "
                "more requests"
            ),
        ),
        (
            warning(FindingCode.UNCALIBRATED_PACE, calibrated_chunks_per_s=1.4, trial_chunks_per_s=12_345.6),
            "the client's error was measured at 1.4 chunks/s and the trial had 12,346; read its ± as a lower bound",
        ),
        (
            invalid(FindingCode.XID, gpu="gpu0", xid=79),
            (
                "the driver reported XID 79 (GPU has fallen off the bus) of gpu0; read the kernel's and the engine's "
                "log, and repeat"
            ),
        ),
        (
            invalid(FindingCode.XID, gpu="gpu0", xid=7),
            (
                "the driver reported XID 7 (see NVIDIA’s list of XID errors) of gpu0; read the kernel's and the "
                "engine's log, and repeat"
            ),
        ),
        (
            warning(FindingCode.POWER_CAPPED, gpu="gpu1", capped_share=0.75, power_basis=PowerBasis.COUNTED.value),
            (
                "gpu1 was at its power limit for 75 % of the window (counted by the driver); compare only runs under "
                "the same limit"
            ),
        ),
        (
            note(FindingCode.POWER_CAPPED, gpu="gpu1", capped_share=0.25, power_basis=PowerBasis.COUNTED.value),
            "gpu1 was at its power limit for 25 % of the window (counted by the driver)",
        ),
        (
            note(FindingCode.HARDWARE_SLOWDOWN, gpu="gpu1", slowed_share=0.25),
            "the hardware of gpu1 lowered its clocks in 25 % of the samples",
        ),
        (
            warning(FindingCode.SOME_FOREIGN_LOAD, foreign_share=0.5, foreign_cores=1.0, max_foreign_share=0.8),
            (
                "other processes used 50 % of the machine, 1 cores; end them to be sure (above 80 % the trial is "
                "INVALID)"
            ),
        ),
        (
            warning(FindingCode.SOME_FOREIGN_LOAD, foreign_share=0.5, foreign_cores=1.0, max_foreign_share=1.0),
            "other processes used 50 % of the machine, 1 cores; end them to be sure",
        ),
        (
            warning(FindingCode.COUNTERS_DISAGREE, engine_tokens=90_000, client_tokens=100),
            (
                "the engine counted 90,000 output tokens under this load and the client 100; "
                "make sure no other client uses the engine, and check how many tokens its chunks carry"
            ),
        ),
    ],
)
def test_numbers_are_written_as_their_names_ask(finding: Finding, text: str) -> None:
    assert sentence(finding) == text


def test_findings_of_earlier_runs_can_be_read() -> None:
    earlier = note(FindingCode.POWER_CAPPED, gpu="gpu1", capped_share=0.25)
    assert "25 % of the window (how this is known was not recorded)" in sentence(earlier)


def test_what_an_engine_says_is_quoted_and_never_read_as_a_template() -> None:
    assert "{detail} {0}" in sentence(invalid(FindingCode.ENGINE_DIED, detail="{detail} {0}"))


def test_several_findings_are_one_line() -> None:
    findings = [void(FindingCode.CLIENT_LATE), void(FindingCode.THROTTLED)]
    assert sentences(findings) == f"{sentence(findings[0])}; also: {sentence(findings[1])}"
    assert not sentences([])


def test_a_missed_objective_shows_the_value_or_why_there_is_none() -> None:
    seen = Violation("ttft_p50<20ms", "ttft_p50_s", Value(0.025))
    assert violation_sentence(seen) == "ttft_p50<20ms: it was 25.0 ms"
    unseen = Violation("itl_p99<30ms", "itl_p99_s", absent("p99 needs 662 observations"))
    assert violation_sentence(unseen) == "itl_p99<30ms: p99 needs 662 observations"


def test_only_what_the_engine_caused_is_evidence_against_it() -> None:
    assert is_against_engine([void(FindingCode.CLIENT_LATE), void(FindingCode.FAILED_REQUESTS)])
    assert not is_against_engine([void(FindingCode.CLIENT_LATE), void(FindingCode.ENGINE_STOPPED)])
    assert not is_against_engine([warning(FindingCode.OUTPUT_LENGTH)]), "the engine's, and no reason to void the trial"
    assert not is_against_engine([])
