"""``bakeoff gate``: exit codes, files, and a run that ends when the verdict is clear."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from bakeoff import results
from bakeoff.harness.conduct.policies.gate import InterimAnalyses, gate_experiment, noise
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.virtual import Fault, VirtualEngine, VirtualWorld, virtual_experiment
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import Outcome, judge
from bakeoff.results.compare.sides import side_of
from bakeoff.results.log.run_log import Source
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RunStatus
from tests.harness.cli.test_cli import in_process as bakeoff
from tests.results.amending import amend
from tests.results.builders import FAST, LOADS, Sheet, build_run

SAME = Sheet(engines={"main": FAST, "branch": FAST}, loads=LOADS[2:3], repeats=6, requests=16, invalid=(), regret=None)
SLOWER = replace(FAST, ttft_s=FAST.ttft_s * 1.2, itl_s=FAST.itl_s * 1.2)


def gate(path: Path, *more: str) -> int:
    return bakeoff("gate", "--baseline", f"{path}@main", "--candidate", f"{path}@branch", *more)


@pytest.mark.parametrize(("candidate", "code", "last"), [(SLOWER, 1, "REGRESSION"), (FAST, 0, "NO REGRESSION")])
def test_the_exit_code_is_the_outcome(tmp_path: Path, capsys, candidate, code: int, last: str) -> None:
    path = build_run(tmp_path, replace(SAME, engines={"main": FAST, "branch": candidate}))
    assert gate(path) == code
    assert f"\n{last}: output at c=8: branch has " in capsys.readouterr().out


def test_cannot_tell_is_exit_2_and_no_evidence_exit_3(tmp_path: Path, capsys) -> None:
    path = build_run(tmp_path / "few", replace(SAME, repeats=2))
    assert gate(path, "--band", "0.0001") == 2
    assert "CANNOT TELL: output at c=8" in capsys.readouterr().out
    path = build_run(tmp_path / "invalid", replace(SAME, invalid=tuple(range(12))))
    markdown, junit = tmp_path / "verdict.md", tmp_path / "verdict.xml"
    assert gate(path, "--markdown", str(markdown), "--junit", str(junit), "--github") == 3
    out = capsys.readouterr().out
    assert "NO EVIDENCE: " in out
    assert "::error title=bakeoff gate%3A no evidence::" in out
    assert markdown.read_text(encoding="utf-8").startswith("### ❔ bakeoff gate: no evidence\n\n")
    (case,) = ET.parse(junit).getroot().iter("testcase")
    assert case[0].get("type") == "no evidence"
    assert gate(path, "--json") == 3
    assert json.loads(capsys.readouterr().out)["outcome"] == "no evidence"


def test_mistakes_and_unwritable_files_are_one_line_and_exit_3(tmp_path: Path, capsys) -> None:
    path = build_run(tmp_path, SAME)
    assert bakeoff("gate", "--baseline", str(path), "--candidate", f"{path}@branch") == 3
    assert "holds several engines; name one" in capsys.readouterr().err
    assert gate(path, "--primary", "ttft") == 3
    assert "unknown metric 'ttft'" in capsys.readouterr().err
    assert gate(path, "--primry", "itl_p50_s") == 3
    assert "--primry" in capsys.readouterr().err
    assert gate(path, "--repeats", "3") == 3
    assert "leave out --repeats and --out" in capsys.readouterr().err
    assert bakeoff("gate", "--baseline", f"{path}@main", "--candidate", f"{path}@main") == 3
    assert "baseline and candidate are the same run of main" in capsys.readouterr().err
    for option in ("--junit", "--markdown"):
        assert gate(path, option, str(tmp_path / "none" / "x.xml")) == 3
        assert f"No such file or directory; choose another path with {option}\n" in capsys.readouterr().err


def test_verdict_files_for_every_ci(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    path = build_run(tmp_path, replace(SAME, engines={"main": FAST, "branch": SLOWER}))
    markdown, junit = tmp_path / "gate.md", tmp_path / "gate.xml"
    assert gate(path, "--json", "--markdown", str(markdown), "--junit", str(junit)) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["outcome"] == "regression"
    assert output.err.startswith("::error title=bakeoff gate%3A regression::"), "stdout is JSON's"
    assert markdown.read_text().startswith("### ❌ bakeoff gate: regression\n")
    assert junit.read_bytes().startswith(b"<?xml")
    gate(path, "--no-github")
    assert "::error" not in capsys.readouterr().out


def measured(tmp_path: Path, engines: dict[str, VirtualEngine], *arguments: str) -> int:
    """``bakeoff gate`` of a new measurement in virtual time."""
    tables = ", ".join(
        f'{{ adapter = "openai", url = "http://{label}", label = "{label}" }}' for label in ("main", "branch")
    )
    file = tmp_path / "gate.toml"
    file.write_text(f"""
name = "gate"
repeats = 5
model = {{ name = "smol" }}
engines = [{tables}]
workload = {{ name = "random", options = {{ input_tokens = 8, output_tokens = 5 }} }}
loads = [{{ concurrency = 3 }}]
trial = {{ ramp_s = 0.5, duration_s = 2.0 }}
""")
    with inside(VirtualWorld(engines)):
        return bakeoff("gate", str(file), "--baseline", "main", *arguments, "--out", str(tmp_path / "runs"))


def test_an_engine_that_is_not_there_is_no_evidence(tmp_path: Path, capsys) -> None:
    gone = VirtualEngine(faults={Fault.REFUSED: 1.0})
    assert measured(tmp_path, {"main": gone, "main-again": gone}, "--candidate", "main") == 3
    assert "NO EVIDENCE: " in capsys.readouterr().out
    assert measured(tmp_path, {}, "--candidate", "vllm") == 3
    assert "the experiment has no engine 'vllm'; choose from main, branch" in capsys.readouterr().err


@pytest.mark.parametrize(("slowdown", "code", "outcome"), [(1.0, 0, "no regression"), (1.2, 1, "regression")])
def test_it_ends_as_soon_as_the_verdict_is_clear(
    tmp_path: Path, capsys, slowdown: float, code: int, outcome: str
) -> None:
    """At most 5 repeats: interim analyses after 3 and 5."""
    main = VirtualEngine(trial_noise=0.001)
    engines = {"main": main, "branch": msgspec.structs.replace(main, slowdown=slowdown)}
    assert measured(tmp_path, engines, "--candidate", "branch", "--json") == code
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["outcome"] == outcome
    assert verdict["compared"]["config"]["alpha"] < 0.01, "an interim analysis is held to a stricter level"
    run = results.load(next((tmp_path / "runs").iterdir()))
    assert {trial.record.repeat for trial in run.finished} == {1, 2, 3}
    assert run.status is RunStatus.COMPLETE
    assert run.unfinished == []
    assert run.manifest.notes[-1] == "ended after 3 of at most 5 repeats: the verdict was clear"


def test_a_gate_keeps_two_engines_of_many() -> None:
    whole = virtual_experiment(["main", "branch", "other"], [{"concurrency": 3}])
    pair, a, b = gate_experiment(whole, "other", "main", repeats=6)
    assert ([engine.name for engine in pair.engines], pair.repeats, a, b) == (["other", "main"], 6, "other", "main")
    same, a, b = gate_experiment(whole, "main", "main")
    assert [engine.name for engine in same.engines] == [a, b] == ["main", "main-again"]
    with pytest.raises(BadExperiment, match="has no engine 'vllm'; choose from main, branch, other"):
        gate_experiment(whole, "main", "vllm")
    with pytest.raises(BadExperiment, match="at least 3 repeats, not 2"):
        gate_experiment(whole, "main", "branch", repeats=2)
    with pytest.raises(BadExperiment, match="at least 3 repeats, not 0"):
        gate_experiment(whole, "main", "branch", repeats=0)


def test_gating_an_engine_against_itself_notes_the_noise(tmp_path: Path) -> None:
    same = build_run(tmp_path / "1", replace(SAME, engines={"main": FAST, "main-again": FAST}))
    verdict = InterimAnalyses(RunFolder.open(same), "main", "main-again", 6, ComparisonConfig()).analyse(6)
    evidence = verdict.compared.primary.evidence
    assert evidence is not None
    (note,) = verdict.notes
    assert note.startswith("the same engine twice, so this is the machine's noise: runs like these detect a change of ")
    assert note.endswith(
        f" {100 * evidence.smallest_effect:.1f} % in output; 3 % needs about {evidence.runs_needed} runs per engine"
    )
    folder = build_run(tmp_path / "2", SAME)
    assert InterimAnalyses(RunFolder.open(folder), "main", "branch", 6, ComparisonConfig()).analyse(6).notes == []
    noisy = msgspec.structs.replace(evidence, runs_needed=None)
    assert "3 % needs more than 100 runs" in noise(msgspec.structs.replace(verdict.compared.primary, evidence=noisy))[0]
    assert noise(msgspec.structs.replace(verdict.compared.primary, evidence=None)) == []


def test_a_gate_continues_until_the_verdict_is_clear(tmp_path: Path, monkeypatch) -> None:
    def analyses(path: Path, repeats: int) -> InterimAnalyses:
        return InterimAnalyses(RunFolder.open(path), "main", "branch", repeats, ComparisonConfig(band=0.5))

    path = build_run(tmp_path / "1", replace(SAME, repeats=5))
    assert [analyses(path, 5).is_clear(repeat) for repeat in (1, 2, 3, 4)] == [False, False, True, False], (
        "an analysis after 3"
    )
    judged = analyses(path, 5).analyse(3)
    undecided = msgspec.structs.replace(judged, outcome=Outcome.CANNOT_TELL)
    monkeypatch.setattr("bakeoff.harness.conduct.policies.gate.judge", lambda *_: undecided)
    assert not analyses(path, 5).is_clear(3)
    monkeypatch.undo()
    nothing = build_run(tmp_path / "2", replace(SAME, repeats=3, invalid=tuple(range(6))))
    assert not analyses(nothing, 3).is_clear(3), "the end says why"


def test_the_newest_runs_of_a_branch_are_a_baseline(tmp_path: Path, capsys) -> None:
    """Three runs of main at different times, one of a slower branch, and one of another branch."""
    much_slower = replace(FAST, ttft_s=FAST.ttft_s * 2, itl_s=FAST.itl_s * 2)
    runs = [("main", FAST), ("main", FAST), ("main", FAST), ("side", much_slower), ("topic", FAST)]
    for number, (branch, speed) in enumerate(runs):
        sheet = replace(SAME, engines={"main": speed}, run_id=f"run-{number}", seed=number)
        folder = RunFolder(build_run(tmp_path, sheet))
        created = f"2026-11-0{number + 1}T10:00:00+00:00"
        source = Source(f"{number:09x}", branch)
        amend(folder.path, source=source, created_utc=created)
    assert bakeoff("gate", "--baseline", "branch:main", "--candidate", str(tmp_path / "run-3")) == 1
    assert "main (run-3) has " in (out := capsys.readouterr().out)
    assert "that of main (run-2 and 2 before it)" in out, "the newest of the branch"
    named = [word for number in range(3) for word in ("--baseline", str(tmp_path / f"run-{number}"))]
    assert bakeoff("gate", *named, "--candidate", str(tmp_path / "run-3")) == 1
    assert "that of main (run-2 and 2 before it)" in capsys.readouterr().out
    alone = ("gate", *named[:2], "--candidate", str(tmp_path / "run-3"))
    assert bakeoff(*alone, "--start-noise", "30%") == 2, "one run shows no other days"
    assert "three runs of the baseline show it" in " ".join(capsys.readouterr().out.split())
    assert bakeoff(*alone) == 1
    assert bakeoff("gate", "--baseline", "branch:topic", "--candidate", str(tmp_path / "run-4")) == 3
    assert "on branch 'topic' in" in " ".join(capsys.readouterr().out.split()), "a run is not its own baseline"


@pytest.mark.parametrize(
    ("streams", "code"), [("| true", 2), ("2> /dev/full", 2), ("<&- >&- 2>&-", 2), ("> /dev/full", 3)]
)
def test_no_stream_changes_a_verdict_but_a_full_one_that_should_hold_it(tmp_path: Path, streams: str, code: int):
    path = build_run(tmp_path, replace(SAME, repeats=2))
    sides = f"--baseline {path}@main --candidate {path}@branch --band 0.0001"
    command = f"set -o pipefail; {sys.executable} -m bakeoff gate {sides} {streams}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == code


def test_a_level_that_the_candidate_lacks_is_no_evidence_and_named(tmp_path: Path, capsys):
    """The primary metric would be that of another level without a word."""
    whole = build_run(tmp_path / "whole", replace(SAME, loads=LOADS[1:3]))
    part = build_run(tmp_path / "part", replace(SAME, loads=LOADS[1:2], run_id="20261120-101500-part-3f9a"))
    sides = ("--baseline", f"{whole}@main", "--candidate", f"{part}@branch")
    assert bakeoff("gate", *sides) == 3
    assert "was not measured at c=8; measure it, or judge the rest by --only-common" in capsys.readouterr().out
    assert bakeoff("gate", *sides, "--only-common", "--start-noise", "20%") == 2
    assert "was not measured at c=8: that is not judged" in capsys.readouterr().out.replace("\n", " ")
    sides = ("--baseline", f"{part}@main", "--candidate", f"{whole}@branch")
    assert bakeoff("gate", *sides, "--json", "--start-noise", "20%") == 2
    assert json.loads(capsys.readouterr().out)["compared"]["absent"] == {"c=8": "A"}
    again = build_run(tmp_path / "again", replace(SAME, loads=LOADS[1:3], run_id=part.name))  # and so the same names
    one, two = (side_of(results.load(path), "main") for path in (part, again))
    assert judge(one, two).compared.absent == {"c=8": "A"}
    assert judge(two, one).outcome is Outcome.NO_EVIDENCE


def test_a_run_is_one_run_however_its_folder_is_spelt(tmp_path: Path, capsys, monkeypatch) -> None:
    path = build_run(tmp_path, SAME)
    monkeypatch.chdir(path)
    assert bakeoff("compare", f"{path}@main", ".@main") == 0
    assert "A and B are the same trials" in capsys.readouterr().err
    twice = ("--baseline", f"{path}@main", "--baseline", f"../{path.name}@main")
    assert bakeoff("gate", *twice, "--candidate", f"{path}@branch") == 3
    assert "is named twice on one side" in capsys.readouterr().err
    for runs in ((path,), (path, ".")):
        assert bakeoff("report", *map(str, runs), "frontier", "--json") == 0
        assert len(msgspec.json.decode(capsys.readouterr().out)) == 2, "one point of each engine"


@pytest.mark.parametrize("command", [("cost", "--price", "machine-hour=0.4"), ("frontier",)])
def test_figures_of_a_run_that_lacks_trials_say_so(tmp_path: Path, capsys, command: tuple[str, ...]) -> None:
    path = build_run(tmp_path, replace(SAME, finished=7, status=RunStatus.INTERRUPTED, repeats=6))
    assert bakeoff("report", str(path), *command) == 0
    assert f"{path}: only 7 of 12 trials are valid" in capsys.readouterr().err
