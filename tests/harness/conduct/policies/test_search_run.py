"""``bakeoff search`` of an engine of known capacity: four answers at a time, 0.12 s each."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bakeoff import results
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.truth import Schedule
from bakeoff.harness.virtual import Fault, Fixed, PerToken, VirtualEngine, VirtualWorld
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.log.search import Ended
from bakeoff.results.records import RunStatus
from bakeoff.results.report.search_lines import attempt_why
from tests.harness.cli.test_cli import in_process as bakeoff
from tests.harness.fake_runs import tokenizer
from tests.harness.truth_client import serving

ENGINE = VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.005)), slots=4)
FILE = """
name = "t"
model = {{ name = "truth"{tokenizer} }}
engines = [{{ adapter = "reference", label = "truth"{url} }}]
workload = {{ name = "random", options = {{ input_tokens = 8, output_tokens = 5 }} }}
loads = [{{ concurrency = 2 }}, {{ concurrency = 16 }}]
trial = {{ ramp_s = 0.3, duration_s = 1.2, warm_up_s = {warm_up_s}, timeout_s = 20 }}
client = {{ calibrate = false }}
quality = {{ samples = 0 }}
"""


def file(tmp_path: Path, warm_up_s: float = 0.0, **real: str) -> Path:
    """An experiment file; ``real`` has address and tokenizer of a real engine."""
    fields = {name: f', {name} = "{real[name]}"' if name in real else "" for name in ("tokenizer", "url")}
    path = tmp_path / "t.toml"
    path.write_text(FILE.format(warm_up_s=warm_up_s, **fields), encoding="utf-8")
    return path


def searched(file: Path, *arguments: str, engine: VirtualEngine = ENGINE) -> int:
    """``bakeoff search`` in virtual time, into ``runs`` beside the file."""
    with inside(VirtualWorld({"truth": engine})):
        return bakeoff("search", str(file), *arguments, "--out", str(file.parent / "runs"))


def test_the_address_of_a_server_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """In closed loops of equal answers of 0.9 s on 4 slots, a fifth user waits a quarter of an answer."""
    monkeypatch.chdir(tmp_path)
    words = ["--engine", "openai", "--model", "m", "--tokenizer", "approximate", "--input", "8", "--output", "5"]
    words += ["--max-foreign-share", "0.5"]
    slow = VirtualEngine(service=PerToken(Fixed(0.5), Fixed(0.1)), slots=4)
    with inside(VirtualWorld({"openai": slow})):
        assert bakeoff("search", "http://127.0.0.1:9", "--slo", "ttft_p90<600ms", *words) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("openai carries 4 users at a time with ttft_p90<600ms (95 %: 4 to 4; "), printed.out
    assert "search from c=1 to c=256 for ttft_p90<600ms: at most 20 trials, about 5:00" in printed.err
    run = results.load(next((tmp_path / "runs").iterdir()))
    assert run.manifest.experiment["trial"]["max_foreign_share"] == 0.5
    (first, *_, last) = run.log.events
    assert last.t_ns - first.t_ns <= 5 * 60e9
    assert all(len(trial.answered) >= 32 for trial in run.finished), "half of what a single trial's p90 needs"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "t.toml", "--slo", "ttft_p90<1s", "--model", "m"], "give their options with a URL alone"),
        (
            ["search", "http://127.0.0.1:9", "--slo", "ttft_p90<1s", "--workload", "rag", "--input", "8"],
            "rag has its own",
        ),
        (["bench", "http://127.0.0.1:9", "--workload", "rag", "--output", "8"], "rag has its own"),
        (["run", "http://127.0.0.1:9"], "use bakeoff bench URL or bakeoff search URL"),
    ],
)
def test_what_does_not_belong_together_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert bakeoff(*words) == 2
    assert message in capsys.readouterr().err


def test_a_search_finds_the_slots_of_a_server_and_writes_an_ordinary_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Slots synchronize: with 5 requests in flight, one of 4 has waited for a slot; with 7, three of 4 have."""
    assert searched(file(tmp_path, warm_up_s=5.0), "--slo", "ttft_p50<160ms", "--trials", "9", "--json") == 0
    output = capsys.readouterr()
    answer = json.loads(output.out)
    (engine,) = answer["search"]["engines"]
    sure = [attempt for attempt in engine["attempts"] if attempt["level"] != 6]
    assert all(attempt["met"] == (attempt["level"] <= 5) for attempt in sure), output.err
    assert engine["low"] <= 6
    assert engine["high"] >= 5
    assert engine["attempts"][0]["margin"] == pytest.approx(0.47, abs=0.01), "log of 160 over 100"
    run = results.load(answer["run"])
    assert run.status is RunStatus.COMPLETE
    assert len(run.finished) == len(run.manifest.trials) == len(engine["attempts"])
    assert Path(answer["report"]).stat().st_size > 10_000
    assert {point["load"] for point in answer["frontier"]} == {cell.load for cell in run.cells if cell.valid}
    assert bakeoff("report", str(run.path)) == 0
    printed = capsys.readouterr().out
    assert "Highest concurrency that meets ttft_p50<160ms:" in printed
    assert "Objectives" not in printed, "a search looks for loads that do not meet them, too"
    assert bakeoff("report", str(run.path), "frontier") == 0
    assert "truth" in capsys.readouterr().out
    assert bakeoff("compare", str(run.path), str(run.path)) == 0, "a run beside itself"


@pytest.mark.nightly
def test_tiers_share_their_trials_and_each_has_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Of c requests on four slots of 0.12 s each, the median waits about (c − 4) / 4 rounds."""
    tiers = ("--tier", "fast=ttft_p50<160ms", "--tier", "slow=ttft_p50<280ms")
    assert searched(file(tmp_path, warm_up_s=5.0), *tiers, "--trials", "8", "--json") == 0
    output = capsys.readouterr()
    answer = json.loads(output.out)
    fast, slow = answer["search"]["engines"]
    assert (fast["tier"], slow["tier"]) == ("fast", "slow")
    assert fast["low"] <= 6 <= fast["high"] + 1
    assert slow["low"] > fast["level"]
    assert slow["low"] <= 10 <= slow["high"] + 1
    run = results.load(answer["run"])
    chosen = [event.tier for event in run.log.planned]
    assert chosen == sorted(chosen), "one tier after the other"
    assert max(chosen.count("fast"), chosen.count("slow")) <= 8
    assert [attempt["trial"] for attempt in fast["attempts"]] == [attempt["trial"] for attempt in slow["attempts"]]
    first = run.log.planned[chosen.index("slow")].plan.load.concurrency
    assert first is not None
    assert first > 2, "it begins from what is known"
    assert [entry["tier"] for entry in answer["capacities"]] == ["fast", "slow"]
    assert "fast: truth at c=2: met" in output.err
    page = Path(answer["report"]).read_text(encoding="utf-8")
    assert "Highest concurrency that meets slow (ttft_p50&lt;280ms)" in page
    assert page.count('class="interval-bar"') == 2
    assert bakeoff("report", str(run.path)) == 0
    assert "Highest concurrency that meets fast (ttft_p50<160ms):" in capsys.readouterr().out


def test_no_level_that_meets_the_objective_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert searched(file(tmp_path), "--slo", "ttft_p50<50ms") == 3
    output = capsys.readouterr()
    assert "truth: none, at c=2 ttft_p50<50ms: it was" in output.out
    assert "--low" not in output.err


def test_an_interval_that_reaches_below_the_range_is_exit_3_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert searched(file(tmp_path), "--slo", "ttft_p50<110ms", "--trials", "2") == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("bakeoff: truth: c=3 [below the range, 8]; ")
    assert last.endswith("; raise --trials, or lower --low")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--slo", "ttft<1s"), "'ttft<1s' bounds each request; bound the trial, too, as in ttft<1s,attainment>=99%"),
        (("--slo", "ttft_p50<1s", "--around", "99"), "99 is not between 2 and 16"),
        (("--slo", "ttft_p50<1s", "--over", "rate"), "no load with rate_per_s; give --low and --high, or --around"),
        (("--slo", "output_tokens>10"), "is met at high loads"),
        (("--tier", "ttft_p50<1s"), "'ttft_p50<1s' is no tier; write --tier 'NAME=ttft_p90<1s'"),
        (("--tier", "a=ttft_p50<1s", "--tier", "a=ttft_p50<2s"), "two tiers have the name a"),
        (("--tier", "a=ttft_p50<1s", "--slo", "ttft_p50<1s"), "give either --slo or --tier"),
        ((), "--help"),
    ],
)
def test_mistakes_are_one_line_and_2(tmp_path: Path, capsys: Any, arguments: tuple[str, ...], message: str):
    assert searched(file(tmp_path), *arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_it_warns_beforehand_and_an_unreachable_engine_is_exit_3(tmp_path: Path, capsys: Any):
    gone = VirtualEngine(faults={Fault.REFUSED: 1.0})
    assert searched(file(tmp_path), "--slo", "ttft_p99<1s", "--trials", "1", engine=gone) == 3
    err = capsys.readouterr().err
    assert err.startswith("note: trials may have fewer than the 331 requests that an objective needs")
    (folder,) = (tmp_path / "runs").iterdir()
    answer = results.load(folder).search
    assert answer is not None
    (attempt,) = answer.engines[0].attempts
    assert attempt.findings[0].code is FindingCode.RAMP_FAILED
    assert f"truth at c=2: violated ({attempt_why(attempt)})" in err


def test_ctrl_c_leaves_a_run_that_can_be_read(tmp_path: Path, capsys: Any):
    """In a real process that searches a real server."""
    with serving(Schedule(ttft_s=0.1, itl_s=0.005, slots=4)) as server:
        place = file(tmp_path, url=f"http://127.0.0.1:{server.port}", tokenizer=str(tokenizer(tmp_path)))
        argv = [
            sys.executable, "-c", "import bakeoff.harness.entry; bakeoff.harness.entry.main()", "search", str(place),
            "--slo", "ttft_p50<160ms", "--out", str(tmp_path / "runs"),
        ]  # fmt: skip

        def logs() -> list[Path]:
            return list(tmp_path.glob("runs/*/run.jsonl"))

        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with process:
            while process.poll() is None and not any("level_judged" in log.read_text() for log in logs()):
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "not ended" in out
    run = results.load(next((tmp_path / "runs").iterdir()))
    assert run.status is RunStatus.INTERRUPTED
    assert run.search is not None
    (engine,) = run.search.engines
    assert engine.ended is None
    assert len(engine.attempts) == len(run.finished) >= 1
    assert bakeoff("report", str(run.path)) == 0
    assert "truth: " in capsys.readouterr().out


def test_around_starts_at_the_answer_of_an_earlier_search(tmp_path: Path, capsys: Any):
    options = ("--slo", "ttft_p50<160ms", "--json", "--trials", "1")
    assert searched(file(tmp_path), *options, "--around", "4") == 0
    first = json.loads(capsys.readouterr().out)
    (tmp_path / "next").mkdir()
    assert searched(file(tmp_path / "next"), *options, "--around", first["run"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["search"]["config"]["guesses"] == {"truth": 4.0}
    assert second["search"]["config"]["guesses"] == {"truth": first["search"]["engines"][0]["level"]}
    assert second["search"]["engines"][0]["attempts"][0]["level"] in {3.0, 4.0, 5.0}
    assert first["search"]["engines"][0]["ended"] == Ended.TRIALS.value
