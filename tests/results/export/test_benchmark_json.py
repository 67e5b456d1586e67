"""Files in pytest-benchmark's format: its own tools read ours, and a file of ours can replace its run."""

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.results import NotExportable, NotImportable, Run, load
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.floor import store_floors, stored_floors
from bakeoff.results.compare.gate import Outcome, Regression, RegressionKind, judge
from bakeoff.results.compare.sides import select
from bakeoff.results.errors import NoEvidence, NotComparable
from bakeoff.results.export.benchmark_json import _stats, benchmark_json, read_benchmark_json, stored_run
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import Verdict
from bakeoff.results.report.gate import regression_texts
from bakeoff.results.run.run import by_repeat
from bakeoff.results.statistics.two_sample import Method
from tests.results.builders import FAST, LOADS, SLOW, Sheet, Speed, build_run
from tests.results.floors import with_floor

HERE = Path(__file__).parents[3]
TIMES = ("ttft_p50_s", "itl_p50_s", "tpot_p50_s")
RATES = ("output_tokens_per_s", "requests_per_s")
SHEET = Sheet(engines={"main": FAST}, loads=LOADS[2:3], repeats=6, requests=16, invalid=())


def slower(speed: Speed, factor: float) -> Speed:
    return replace(speed, ttft_s=speed.ttft_s * factor, itl_s=speed.itl_s * factor)


def written(path: Path, **runs: Run) -> Path:
    path.write_bytes(benchmark_json(runs))
    return path


@pytest.fixture(scope="module")
def whole(demo: Run) -> dict[str, Any]:
    return json.loads(benchmark_json({"tests/a.py::test_b[x]": demo}))


def benchmark_of(whole: dict[str, Any], engine: str, load_: str, metric: str) -> dict[str, Any]:
    wanted = {"engine": engine, "load": load_, "metric": metric}
    (benchmark,) = [benchmark for benchmark in whole["benchmarks"] if benchmark["params"] == wanted]
    return benchmark


def test_a_round_is_a_valid_trial(whole: dict[str, Any], demo: Run) -> None:
    assert {benchmark["params"]["metric"] for benchmark in whole["benchmarks"]} == {*TIMES, *RATES}
    assert len(whole["benchmarks"]) == 2 * 4 * 5
    (invalid,) = (trial.record for trial in demo.finished if trial.record.verdict is Verdict.INVALID)
    for name in ("ttft_p50_s", "output_tokens_per_s"):
        benchmark = benchmark_of(whole, invalid.engine, invalid.load.label, name)
        valid = {t.record.repeat: t.metrics[name].value for t in demo.finished if t.record.engine == invalid.engine
                 and t.record.load == invalid.load and t.record is not invalid}  # fmt: skip
        assert dict(zip(benchmark["extra_info"]["repeats"], benchmark["extra_info"]["values"], strict=True)) == valid
        assert benchmark["stats"]["rounds"] == len(valid) == 2


def test_values_are_written_as_times_of_which_less_is_better(whole: dict[str, Any], demo: Run) -> None:
    cell = next(cell for cell in demo.cells if (cell.engine, cell.load) == ("reference", "c=8"))
    latency = benchmark_of(whole, "reference", "c=8", "ttft_p50_s")
    assert latency["stats"]["data"] == latency["extra_info"]["values"]
    assert (latency["group"], latency["extra_info"]["unit"]) == ("TTFT p50 at c=8", "s")
    rate = benchmark_of(whole, "reference", "c=8", "output_tokens_per_s")
    assert rate["stats"]["data"] == [1 / value for value in rate["extra_info"]["values"]]
    assert rate["stats"]["ops"] == pytest.approx(cell.intervals["output_tokens_per_s"].centre, rel=0.01)
    assert rate["group"] == "1 / output at c=8 (OPS: tok/s)"
    assert [rate["extra_info"][key] for key in ("unit", "better", "stats_of")] == ["tok/s", "higher", "1 / value"]
    assert rate["extra_info"]["interval_95"]["low"] == cell.intervals["output_tokens_per_s"].low
    fast, slow = (
        benchmark_of(whole, engine, "c=8", RATES[0])["stats"]["mean"] for engine in ("reference", "transformers")
    )
    assert fast < slow


def test_names_are_those_of_the_test_and_the_cell(whole: dict[str, Any]) -> None:
    benchmark = benchmark_of(whole, "reference", "c=8", "ttft_p50_s")
    assert benchmark["fullname"] == "tests/a.py::test_b[x][reference-c=8-ttft_p50_s]"
    assert benchmark["name"] == "test_b[x][reference-c=8-ttft_p50_s]"
    assert len({benchmark["fullname"] for benchmark in whole["benchmarks"]}) == len(whole["benchmarks"])


def test_machine_and_commit(whole: dict[str, Any], demo: Run) -> None:
    assert whole["machine_info"]["cpu"] == {"brand_raw": "Xeon 8468", "count": 2}
    assert whole["commit_info"]["id"] == "unversioned"
    assert whole["datetime"] == demo.manifest.ended_utc
    info = benchmark_of(whole, "reference", "c=8", "ttft_p50_s")["extra_info"]
    record = next(t.record for t in demo.finished if (t.record.engine, t.record.load.label) == ("reference", "c=8"))
    assert record.engine_description is not None
    assert (info["run_id"], info["workload_sha256"], info["model_sha256"]) == (
        demo.manifest.run_id, record.workload_sha256, record.engine_description.model_sha256,
    )  # fmt: skip


@pytest.mark.parametrize("n", range(1, 14))
def test_statistics_are_pytest_benchmarks(n: int) -> None:
    draw = random.Random(n)
    stats_of = pytest.importorskip("pytest_benchmark.stats").Stats
    expected = stats_of()
    expected.data = [draw.expovariate(1.0) ** 3 for _ in range(n)]
    stats = _stats(expected.data)
    assert set(stats) == {*stats_of.fields, "data", "iterations"}
    for name, value in expected.as_dict().items():
        assert stats[name] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-12)), name


def test_pytest_benchmark_compares_two_files(tmp_path: Path) -> None:
    """The slower of two runs is red in every group, rates too: every column is a time, of which less is better."""
    for name, speed in (("a", FAST), ("b", slower(FAST, 1.5))):
        run = load(build_run(tmp_path / name, replace(SHEET, engines={"main": speed})))
        written(tmp_path / f"{name}.json", chat=run)
    program = Path(sys.executable).with_name("pytest-benchmark")
    argv = [program, "compare", "a.json", "b.json", "--between", "mean,ops", "--csv", "out.csv"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.replace("Generated csv: out.csv", "").strip()) == (0, "")
    changes = re.findall(r"chat\[main-c=8-(\w+)\] .* ([+-][\d.]+)% .* ([+-][\d.]+)%", done.stdout)
    assert {name for name, _, _ in changes} == {*TIMES, *RATES}
    for _, mean, ops in changes:
        assert float(mean) == pytest.approx(50, abs=8)
        assert float(ops) == pytest.approx(-33, abs=4)
    rows = (tmp_path / "out.csv").read_text().splitlines()
    assert rows[0].startswith("name,param:engine,param:load,param:metric,mean,ops")
    assert len(rows) == 1 + 2 * 5


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A run and its file: the baseline, one 20 % slower, one with failures and other answers, one with two repeats.

    The last is hardly slower.
    """
    sheets = {
        "baseline": replace(SHEET, invalid=(1,)),
        "slower": replace(SHEET, engines={"main": slower(FAST, 1.2)}),
        "failing": replace(SHEET, engines={"main": replace(SLOW, rss_bytes=FAST.rss_bytes)}, requests=24, regret=9.0),
        "few": replace(SHEET, repeats=2, engines={"main": slower(FAST, 1.025)}),
        "engines": replace(SHEET, engines={"main": FAST, "branch": slower(FAST, 1.03)}, regret=9.0),
    }
    root = tmp_path_factory.mktemp("pairs")
    made: dict[str, tuple[Path, Path]] = {}
    for name, sheet in sheets.items():
        path = build_run(root, replace(sheet, run_id=name))
        made[name] = (path, written(root / f"{name}.json", chat=load(path)))
    with_floor(made["baseline"][0])
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [ComparisonConfig(), ComparisonConfig(primary="e2e_p90_s", metrics=("ttft_p90_s",), band=0.2)]
)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("baseline", "baseline"),
        ("baseline", "slower"),
        ("slower", "baseline"),
        ("baseline", "failing"),
        ("baseline", "few"),
        ("engines@main", "engines@branch"),
        ("engines@branch", "engines@main"),
    ],
)
def test_a_file_gives_the_verdict_of_its_run(
    pairs: dict[str, tuple[Path, Path]], a: str, b: str, config: ComparisonConfig
) -> None:
    """Verdicts are equal: outcome, sentences, intervals, p-values, failures and answers; also for pairs of one run."""

    def sides(text: str) -> tuple[str, str]:
        name, at, engine = text.partition("@")
        folder, file = pairs[name]
        return f"{folder}{at}{engine}", f"{file}{at}{engine}"

    (folder_a, file_a), (folder_b, file_b) = sides(a), sides(b)
    of_folders = judge(select(folder_a), select(folder_b), config)
    assert judge(select(file_a), select(folder_b), config) == of_folders
    assert judge(select(folder_a), select(file_b), config) == of_folders
    assert judge(select(file_a), select(file_b), config) == of_folders


def test_the_verdicts_of_that_test_differ(pairs: dict[str, tuple[Path, Path]]) -> None:
    base = select(str(pairs["baseline"][1]))
    outcomes = {name: judge(base, select(str(pairs[name][1]))).outcome for name in ("baseline", "slower", "few")}
    assert outcomes == {
        "baseline": Outcome.NO_REGRESSION,
        "slower": Outcome.REGRESSION,
        "few": Outcome.CANNOT_TELL,
    }
    failing = judge(base, select(str(pairs["failing"][1])))
    assert any(line.startswith("failures at c=8: main (failing) has 6.2 pp") for line in regression_texts(failing))
    (note,) = failing.notes
    assert note.startswith(
        "1 trial of main (baseline) is INVALID and excluded from every metric: gpu0 lowered its clocks"
    )
    main, branch = (select(f"{pairs['engines'][1]}@{engine}") for engine in ("main", "branch"))
    assert judge(main, branch).regressions[-1] == Regression(RegressionKind.ANSWERS, "c=8")
    assert judge(main, branch).compared.primary.evidence.method is Method.PAIRED


def test_every_value_comes_back_by_repeat(pairs: dict[str, tuple[Path, Path]]) -> None:
    folder, file = pairs["baseline"]
    (again,), run = read_benchmark_json(file), load(folder)
    assert (again.title, again.path) == ("chat", file / "baseline")
    for name in CATALOGUE:
        assert by_repeat(again.finished, "c=8", name) == by_repeat(run.finished, "c=8", name)
    assert [trial.record for trial in again.finished] == [trial.record for trial in run.finished]
    assert again.manifest == run.manifest


def test_one_of_several_runs(tmp_path: Path) -> None:
    runs = {name: load(build_run(tmp_path, replace(SHEET, run_id=name, repeats=1))) for name in ("one", "two")}
    file = written(tmp_path / "b.json", **{f"test_{name}": run for name, run in runs.items()})
    assert stored_run(file / "two").title == "test_two"
    assert select(str(file), title="test_one").run.path.name == "one"
    with pytest.raises(
        NotImportable, match=r"does not name one run; it holds .*b.json/one \(test_one\), .*\(test_two\)"
    ):
        select(str(file))
    with pytest.raises(NotImportable, match="does not name one run"):
        select(f"{file}/three")


def test_an_engine_of_a_file(pairs: dict[str, tuple[Path, Path]]) -> None:
    file = pairs["engines"][1]
    assert select(f"{file}@branch").engine == select(str(file), engine="branch").engine == "branch"
    with pytest.raises(NotComparable, match=rf"name one: {file}/engines@main, {file}/engines@branch"):
        select(str(file))
    with pytest.raises(NotComparable, match="has no engine 'vllm'"):
        select(f"{file}@vllm")


def test_a_metric_that_the_file_does_not_know_is_absent(pairs: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    whole = json.loads(pairs["slower"][1].read_text())
    for trial in whole["bakeoff"]["runs"][0]["finished"]:
        del trial["metrics"]["e2e_p90_s"]
    (tmp_path / "old.json").write_text(json.dumps(whole))
    (run,) = read_benchmark_json(tmp_path / "old.json")
    assert run.finished[0].metrics["e2e_p90_s"].reason == "the file does not contain it"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "none.json cannot be read: No such file"),
        ("{", "is not a pytest-benchmark file"),
        ("[]", "is not a pytest-benchmark file"),
        ('{"benchmarks": [], "version": "5.3.1"}', "holds no trials; write it with bakeoff export"),
        ('{"bakeoff": {"schema_version": 99, "definitions": 3, "runs": 3}}', "has schema 99, and"),
        ('{"bakeoff": {"schema_version": 3, "definitions": 1}}', "of metric definitions version 1, not 4"),
        ('{"bakeoff": {"schema_version": 3, "definitions": 3, "runs": [{"title": 3}]}}', "is damaged"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "none.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(NotImportable, match=words) as raised:
        read_benchmark_json(file)
    assert "\n" not in str(raised.value)


def test_a_run_without_a_valid_trial_has_no_rounds(tmp_path: Path) -> None:
    nothing = load(build_run(tmp_path, replace(SHEET, repeats=2, invalid=(0, 1), run_id="nothing")))
    with pytest.raises(NotExportable, match="has no valid trial to export"):
        benchmark_json({"nothing": nothing})
    good = load(build_run(tmp_path, replace(SHEET, repeats=2, run_id="good")))
    file = written(tmp_path / "b.json", nothing=nothing, good=good)
    assert {benchmark["name"].partition("[")[0] for benchmark in json.loads(file.read_text())["benchmarks"]} == {"good"}
    with pytest.raises(NoEvidence, match="has no valid trial of main: gpu0 lowered its clocks"):
        select(f"{file}/nothing")


def test_the_command_line_writes_and_reads_it(tmp_path: Path, pairs, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pairs["baseline"][0]
    assert guarded(make_app(), ["export", str(folder), "--as", "pytest-benchmark", "--out", str(tmp_path)]) == 0
    file = tmp_path / "pytest-benchmark.json"
    assert capsys.readouterr().out == f"{file}\n"
    assert json.loads(file.read_text())["benchmarks"][0]["name"] == "demo[main-c=8-ttft_p50_s]"
    with_floor(folder)
    store_floors(tmp_path, stored_floors(folder.parent))
    gate = ["gate", "--baseline", str(file), "--candidate"]
    assert guarded(make_app(), [*gate, str(pairs["slower"][0])]) == 1
    equal = with_floor(build_run(tmp_path, replace(SHEET, run_id="equal")))
    assert guarded(make_app(), [*gate, str(equal)]) == 0
