"""``bakeoff gate``: exit codes, files, and a run that ends when the verdict is clear."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import results
from harness.errors import BadExperiment
from harness.experiment import experiment_from
from harness.gating import Looks, noise, two_sides
from harness.run import create_run, run_experiment
from results.comparing import Terms
from results.gate import Outcome
from results.records import RunStatus, Source
from results.store import RunFolder
from tests.engines.fakes.answers import by_tokenizer
from tests.engines.fakes.openai import FakeOpenAi
from tests.engines.fakes.stage import Script, running
from tests.harness.fake_runs import SHORT, tokenizer
from tests.harness.test_cli import in_process as bakeoff
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


def test_what_cannot_be_told_is_2_and_no_evidence_3(tmp_path: Path, capsys) -> None:
    path = build_run(tmp_path / "few", replace(SAME, repeats=2))
    assert gate(path, "--band", "0.0001") == 2
    assert "CANNOT TELL: output at c=8" in capsys.readouterr().out
    path = build_run(tmp_path / "invalid", replace(SAME, invalid=tuple(range(12))))
    assert gate(path) == 3
    assert "bakeoff: INVALID: " in capsys.readouterr().err


def test_mistakes_are_one_line_and_3_and_so_is_what_cannot_be_written(tmp_path: Path, capsys) -> None:
    path = build_run(tmp_path, SAME)
    assert bakeoff("gate", "--baseline", str(path), "--candidate", f"{path}@branch") == 3
    assert "holds several engines; name one" in capsys.readouterr().err
    assert gate(path, "--primary", "ttft") == 3
    assert "unknown metric 'ttft'" in capsys.readouterr().err
    assert gate(path, "--primry", "itl_p50_s") == 3
    assert "--primry" in capsys.readouterr().err
    assert gate(path, "--junit", str(tmp_path / "none" / "x.xml")) == 3
    assert "cannot write" in capsys.readouterr().err


def test_everybodys_file(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    path = build_run(tmp_path, replace(SAME, engines={"main": FAST, "branch": SLOWER}))
    markdown, junit = tmp_path / "gate.md", tmp_path / "gate.xml"
    assert gate(path, "--json", "--markdown", str(markdown), "--junit", str(junit)) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["outcome"] == "regression"
    assert told.err.startswith("::error title=bakeoff gate%3A regression::"), "stdout is JSON's"
    assert markdown.read_text().startswith("### ❌ bakeoff gate: regression\n")
    assert junit.read_bytes().startswith(b"<?xml")
    gate(path, "--no-github")
    assert "::error" not in capsys.readouterr().out


def test_an_engine_that_is_not_there_is_no_evidence(tmp_path: Path, capsys) -> None:
    file = tmp_path / "gate.toml"
    folder = tokenizer(tmp_path)
    file.write_text(f"""
name = "gate"
model = {{ name = "smol", tokenizer = "{folder}" }}
engines = [{{ adapter = "openai", url = "http://127.0.0.1:1", label = "main" }}]
workload = {{ name = "random", options = {{ input_tokens = 8, output_tokens = 5 }} }}
loads = [{{ concurrency = 1 }}]
client = {{ calibrate = false }}
trial = {{ duration_s = 0.5, settle_s = 0, timeout_s = 2, warmup_requests = 0, max_requests = 3, min_requests = 1 }}
""")
    told = ("--baseline", "main", "--candidate", "main", "--repeats", "3", "--out", str(tmp_path / "runs"))
    assert bakeoff("gate", str(file), *told) == 3
    assert "bakeoff: INVALID: " in capsys.readouterr().err
    assert bakeoff("gate", str(file), "--baseline", "main", "--candidate", "vllm") == 3
    assert "the experiment has no engine 'vllm'; it has main" in capsys.readouterr().err


def experiment(tmp_path: Path, url: str, **changes: object):
    data = {
        "name": "t",
        "repeats": 4,
        "model": {"name": "smol", "tokenizer": str(tokenizer(tmp_path))},
        "engines": [{"adapter": "openai", "url": url, "label": label} for label in ("main", "branch", "other")],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 3}],
        "trial": SHORT,
        "client": {"calibrate": False},
        **changes,
    }
    return experiment_from(data, "t")


def test_two_engines_of_many(tmp_path: Path) -> None:
    whole = experiment(tmp_path, "http://127.0.0.1:1")
    pair, a, b = two_sides(whole, "other", "main", repeats=6)
    assert ([side.shown for side in pair.engines], pair.repeats, a, b) == (["other", "main"], 6, "other", "main")
    twins, a, b = two_sides(whole, "main", "main")
    assert [side.shown for side in twins.engines] == [a, b] == ["main", "main-again"]
    with pytest.raises(BadExperiment, match="has no engine 'vllm'; it has main, branch, other"):
        two_sides(whole, "main", "vllm")
    with pytest.raises(BadExperiment, match="at least 3 repeats, not 2"):
        two_sides(whole, "main", "branch", repeats=2)


class Quiet:
    """An observer that says nothing."""

    def __getattr__(self, name: str):
        return lambda *_: None


def test_it_ends_as_soon_as_the_verdict_is_clear(tmp_path: Path) -> None:
    """A server against itself, for at most 5 repeats: looks after 3 and 5, and nearly everything counts as the same."""
    fake = FakeOpenAi(Script(ttft_s=0.02, gap_s=0.01))
    fake.count = by_tokenizer(tokenizer(tmp_path))
    trial = SHORT | {"duration_s": 1.6, "max_requests": 400}

    async def scene() -> tuple[results.Run, Looks]:
        async with running(fake) as url:
            made, a, b = two_sides(experiment(tmp_path, url, trial=trial), "main", "main", repeats=5)
            folder = create_run(made, tmp_path / "runs")
            terms = Terms(metrics=(), primary="itl_p50_s", alpha=0.2, band=0.9)  # a busy machine must not tell
            looks = Looks(folder, a, b, made.repeats, terms)
            await run_experiment(made, folder, Quiet(), clear=looks.clear)
            return results.load(folder.path), looks

    run, looks = asyncio.run(scene())
    assert looks.verdict is not None
    assert looks.verdict.outcome is Outcome.NO_REGRESSION
    assert {trial.record.repeat for trial in run.finished} == {1, 2, 3}
    assert run.status is RunStatus.COMPLETE
    assert run.unfinished == []
    assert run.manifest.notes[-1] == "ended after 3 of at most 5 repeats: the verdict was clear"
    assert looks.verdict.compared.terms.alpha < 0.2, "an early look is held to a stricter level"


def test_an_engine_against_itself_tells_the_noise(tmp_path: Path) -> None:
    twins = build_run(tmp_path / "1", replace(SAME, engines={"main": FAST, "main-again": FAST}))
    found = Looks(RunFolder.open(twins), "main", "main-again", 6, Terms()).look(6)
    evidence = found.compared.primary.evidence
    assert evidence is not None
    (note,) = found.notes
    assert note.startswith("the same engine twice, so this is the machine's noise: runs like these show a change of ")
    assert note.endswith(
        f" {evidence.smallest_effect:.1%} in output; about {evidence.runs_needed} runs of each side show 3%"
    )
    others = build_run(tmp_path / "2", SAME)
    assert Looks(RunFolder.open(others), "main", "branch", 6, Terms()).look(6).notes == []
    loud = msgspec.structs.replace(evidence, runs_needed=None)
    assert "; no 100 runs of each" in noise(msgspec.structs.replace(found.compared.primary, evidence=loud))[0]
    assert noise(msgspec.structs.replace(found.compared.primary, evidence=None)) == []


def test_it_goes_on_while_nothing_is_clear(tmp_path: Path, monkeypatch) -> None:
    def looks(path: Path, repeats: int) -> Looks:
        return Looks(RunFolder.open(path), "main", "branch", repeats, Terms(band=0.5))

    path = build_run(tmp_path / "1", replace(SAME, repeats=5))
    assert [looks(path, 5).clear(repeat) for repeat in (1, 2, 3, 4)] == [False, False, True, False], "looks after 3"
    judged = looks(path, 5).look(3)
    undecided = msgspec.structs.replace(judged, outcome=Outcome.CANNOT_TELL)
    monkeypatch.setattr("harness.gating.judge", lambda *_: undecided)
    assert not looks(path, 5).clear(3)
    monkeypatch.undo()
    nothing = build_run(tmp_path / "2", replace(SAME, repeats=3, invalid=tuple(range(6))))
    assert not looks(nothing, 3).clear(3), "the end says why"


def test_the_newest_run_of_a_branch_is_a_baseline(tmp_path: Path, capsys) -> None:
    for number, (branch, speed) in enumerate([("main", SLOWER), ("main", FAST), ("side", SLOWER), ("topic", FAST)]):
        sheet = replace(SAME, engines={"main": speed}, run_id=f"run-{number}", seed=number)
        folder = RunFolder(build_run(tmp_path, sheet))
        created = f"2026-11-0{number + 1}T10:00:00+00:00"
        source = Source(f"{number:09x}", branch)
        folder.write_manifest(msgspec.structs.replace(folder.read_manifest(), source=source, created_utc=created))
    assert bakeoff("gate", "--baseline", "branch:main", "--candidate", str(tmp_path / "run-2")) == 1
    assert "main (run-2) has " in (out := capsys.readouterr().out)
    assert "that of main (run-1)" in out, "the newest of the branch"
    assert bakeoff("gate", "--baseline", "branch:topic", "--candidate", str(tmp_path / "run-3")) == 3
    assert "on branch 'topic' in" in capsys.readouterr().err, "a run is not its own baseline"
