"""The plugin in separate pytest sessions: with real runs against the truth server, and without any use of it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from inspect import signature
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest

from bakeoff.harness.cli.commands.bench import bench
from bakeoff.harness.testing import Bakeoff, Measured
from bakeoff.results.export.benchmark_json import read_benchmark_json
from bakeoff.results.metrics.objectives import objectives
from tests.results.builders import build_run
from tests.workloads.small_tokenizers import checkpoint

HERE = Path(__file__).parents[2]
PLUGIN = "bakeoff.harness.pytest_plugin"


def session(
    folder: Path, text: str, *words: str, path: str = "", other_plugins: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a user's tests with warnings as errors; ``other_plugins`` loads all other installed plugins, too."""
    (folder / "test_chat.py").write_text(dedent(text), encoding="utf-8")
    quiet = ["-p", "tests.quiet"] if "bakeoff.run(" in text or "bakeoff.bench(" in text else []
    argv = [sys.executable, "-W", "error", "-m", "pytest", "-p", PLUGIN, *quiet, "-p", "no:cacheprovider", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(HERE)])), "COLUMNS": "250"}
    env.pop("PYTEST_XDIST_WORKER", None)
    if not other_plugins:
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing them takes longer than a small session
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


@contextmanager
def truth(ttft_s: float, itl_s: float) -> Generator[str]:
    order = json.dumps({"schedule": {"ttft_s": ttft_s, "itl_s": itl_s}})
    argv = [sys.executable, "-m", "bakeoff.harness.truth", order]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().removeprefix(b"ready "))
        yield f"http://127.0.0.1:{port}"
        process.communicate()


TESTS = """
    import pytest
    from tests.results.floors import with_floor

    SERVER = dict(engine="reference", model="truth", tokenizer="tok", workload="random", concurrency=4,
                  ramp=0.1, duration=0.5, repeats=3, calibrate=False)
    RUNS = {{}}

    @pytest.mark.bakeoff(slo="ttft_p50<5s,output_tokens_per_s>1")
    def test_fast(bakeoff):
        RUNS["fast"] = bakeoff.bench(url="{fast}", **SERVER)
        RUNS["fast"].assert_slo("itl_p50<5s")

    def test_missed():
        RUNS["fast"].assert_slo("itl_p50<1ms")

    def test_no_baseline():
        RUNS["fast"].assert_no_regression()

    @pytest.mark.parametrize("server", ["{slow}"], ids=["slow server"])
    def test_regression(bakeoff, server):
        RUNS["slow"] = bakeoff.bench(url=server, **SERVER)
        RUNS["slow"].assert_no_regression(with_floor(RUNS["fast"].path, 0.02))

    def test_faster_is_no_regression():
        RUNS["fast"].assert_no_regression(RUNS["slow"].path, primary="itl_p50_s")

    def test_invalid(bakeoff):
        bakeoff.run("gone.toml")

    def test_mistake(bakeoff):
        bakeoff.run("nothing.toml")
"""
GONE = """
    name = "gone"
    repeats = 1
    model = { name = "smol", tokenizer = "tok" }
    engines = [{ adapter = "openai", url = "http://127.0.0.1:1" }]
    workload = { name = "random", options = { input_tokens = 8, output_tokens = 5 } }
    loads = [{ concurrency = 1 }]
    client = { calibrate = false }
    trial = { ramp_s = 0.1, duration_s = 0.3, timeout_s = 2, min_requests = 1 }
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One session that measures a server, one half as fast, and one that does not exist."""
    folder = tmp_path_factory.mktemp("repository")
    checkpoint(folder / "tok")
    (folder / "gone.toml").write_text(dedent(GONE), encoding="utf-8")
    with ExitStack() as stack:
        fast, slow = (stack.enter_context(truth(*pace)) for pace in ((0.02, 0.005), (0.04, 0.01)))
        done = session(
            folder, TESTS.format(fast=fast, slow=slow), "--bakeoff-json", "all.json", "-rA", other_plugins=True
        )
    return SimpleNamespace(folder=folder, done=done, out=done.stdout)


def failure(scene: SimpleNamespace, test: str) -> list[str]:
    """The report of one failed test, without captured output."""
    text = scene.out.partition("= FAILURES =")[2]
    report = re.search(rf"^_+ {re.escape(test)} _+\n(.*?)^(?:_+ |-+ |=+ )", text, re.MULTILINE | re.DOTALL)
    assert report is not None, scene.out
    return [line for line in report[1].splitlines() if line.strip()]


def test_what_passes_and_what_fails(scene: SimpleNamespace) -> None:
    outcomes = re.findall(r"^(PASSED|FAILED) test_chat.py::test_(\w+)", scene.out, re.MULTILINE)
    passed, failed = ([name for word, name in outcomes if word == outcome] for outcome in ("PASSED", "FAILED"))
    assert passed == ["fast", "faster_is_no_regression"], scene.out
    assert failed == ["missed", "no_baseline", "regression", "invalid", "mistake"]
    assert (scene.done.returncode, scene.done.stderr) == (1, "")


def test_a_report_shows_the_line_of_the_test_and_the_message(scene: SimpleNamespace) -> None:
    shown = failure(scene, "test_missed")
    assert shown[1] == '>       RUNS["fast"].assert_slo("itl_p50<1ms")'
    assert shown[2] == "E       AssertionError: SLO violated by 3 of 3 valid trials"
    misses = [
        re.fullmatch(r"E +reference c=4 repeat (\d): itl_p50<1ms: it was ([\d.]+) ms", line) for line in shown[3:6]
    ]
    assert [miss and miss[1] for miss in misses] == ["1", "2", "3"]
    assert all(miss and float(miss[2]) > 4 for miss in misses)
    assert shown[6:] == ["test_chat.py:15: AssertionError"], "and nothing of ours"
    assert failure(scene, "test_no_baseline")[2].startswith(
        "E       AssertionError: no baseline: name a run here or as"
    )


def test_a_regression_fails_with_the_gates_sentence(scene: SimpleNamespace) -> None:
    shown = "\n".join(failure(scene, "test_regression[slow server]"))
    match = re.search(r"regression: output at c=4: reference \(\S+\) has ([\d.]+)× .* that of reference \(\S+\)", shown)
    assert match is not None, shown
    assert 0.3 < float(match[1]) < 0.7
    assert "TPOT p50 at c=4" in shown


def test_a_run_that_is_no_evidence_fails_with_its_reason(scene: SimpleNamespace) -> None:
    shown = failure(scene, "test_invalid")
    assert shown[2] == '>       bakeoff.run("gone.toml")'
    assert "the run is INVALID: openai, repeat 1: http://127.0.0.1:1 cannot be reached: " in shown[3]
    assert "bakeoff report runs/" in shown[4]
    assert failure(scene, "test_mistake")[3:] == [
        ("E       bakeoff.harness.errors.BadExperiment: "
         "nothing.toml does not exist; give the path of an experiment file"),
        "test_chat.py:32: BadExperiment",
    ]  # fmt: skip


def test_the_end_of_the_session_shows_each_cell(scene: SimpleNamespace) -> None:
    lines = scene.out[scene.out.index("= bakeoff =") :].splitlines()[1:]
    assert lines[0].startswith("test ")
    assert re.match(r"test_chat.py::test_fast +reference +c=4 +3/3 +[\d.]+ ms \[", lines[1])
    assert lines[1].endswith("SLO met, SLO met, SLO violated, no regression")
    assert re.match(r"test_chat.py::test_regression\[slow server\] +reference +c=4 +3/3 .* regression$", lines[2])
    assert re.match(r"test_chat.py::test_invalid +openai +c=1 +0/1 +–.*INVALID$", lines[3])
    runs = [line.removeprefix("bakeoff report ") for line in lines[4:7]]
    assert all((scene.folder / run / "run.jsonl").is_file() for run in runs)
    assert [re.sub(r"runs/\d+-\d+-|-\w{4,8}$", "", run) for run in runs] == [
        "test_fast", "test_regression-slow-server", "gone",
    ]  # fmt: skip
    assert lines[7] == "all runs: all.json"


def test_the_file_holds_the_session_and_pytest_benchmark_reads_it(scene: SimpleNamespace) -> None:
    runs = read_benchmark_json(scene.folder / "all.json")
    assert [run.title.removeprefix("test_chat.py::") for run in runs] == [
        "test_fast", "test_regression[slow server]", "test_invalid",
    ]  # fmt: skip
    program = Path(sys.executable).with_name("pytest-benchmark")
    argv = [program, "compare", "all.json", "--columns", "mean,ops,rounds", "-k", "itl_p50_s"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=scene.folder)
    assert done.returncode == 0, done.stderr
    row = re.compile(r"^(test_\w+).*?\[reference-c=4-itl_p50_s\] .*? [\d.]+ \((\S+)\) .* (\d+)$", re.MULTILINE)
    (fast, ratio, rounds), (slow, times, _) = row.findall(done.stdout)
    assert (fast, ratio, rounds, slow) == ("test_fast", "1.0", "3", "test_regression")
    assert 1.4 < float(times) < 2.6


@pytest.mark.nightly
def test_the_json_file_is_a_baseline(scene: SimpleNamespace) -> None:
    """The same verdict as that of the run's folder, by option, for the test of the same name."""
    text = """
        from bakeoff import results
        from bakeoff.harness.testing import Measured

        def test_fast(request):
            run = Measured(request.node.nodeid, results.load("{run}"), request.config.getoption("bakeoff_baseline"))
            run.assert_no_regression()
    """
    slow = next(path for path in (scene.folder / "runs").iterdir() if "test_regression" in path.name)
    done = session(scene.folder, text.format(run=slow), "--bakeoff-baseline", "all.json")
    lines = [line for line in failure(scene, "test_regression[slow server]") if line.startswith("E ")]
    assert [line for line in done.stdout.splitlines() if line.startswith("E ")] == lines


def test_an_unused_plugin_imports_only_pytest(tmp_path: Path) -> None:
    text = """
        import sys

        def test_nothing_was_imported():
            ours = {"bakeoff.results", "bakeoff.engines", "bakeoff.workloads", "bakeoff.harness.testing"}
            assert not (ours | {"numpy", "msgspec", "pandas", "uvloop"}) & set(sys.modules)
    """
    done = session(tmp_path, text, "-q", "--bakeoff-json", "all.json")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[1:-1] == ["bakeoff measured nothing: all.json was not written"]


@pytest.mark.parametrize("words", [(), ("-p", PLUGIN)])
def test_it_may_be_loaded_by_its_entry_point_too(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As if installed: by an entry point of a distribution, here a fake one."""
    info = tmp_path / "site" / "as_installed-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: as-installed\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\nbakeoff = {PLUGIN}\n")
    text = f"""
        pytest_plugins = ["{PLUGIN}"]

        def test_it_is_there_once(pytestconfig):
            found = [name for name, plugin in pytestconfig.pluginmanager.list_name_plugin()
                     if getattr(plugin, "__name__", None) == "{PLUGIN}"]
            assert len(found) == 1
            assert pytestconfig.getoption("bakeoff_out") == "runs"
    """
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    (tmp_path / "test_chat.py").write_text(dedent(text), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{HERE}"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_xdist_workers_are_refused_in_one_line(tmp_path: Path) -> None:
    done = session(tmp_path, "def test_chat(bakeoff): pass", "-p", "xdist", "-n", "1")
    assert done.returncode == 1
    assert "other pytest workers would disturb the measurement; run this test with -n 0" in done.stdout
    assert "Traceback" not in done.stdout


def test_invalid_marks_and_unwritable_files(tmp_path: Path) -> None:
    text = """
        import pytest
        from bakeoff import results
        from bakeoff.harness.pytest_plugin import _RUNS
        from bakeoff.harness.testing import Measured

        @pytest.mark.bakeoff("ttft_p50<5s")
        def test_words(bakeoff): pass

        @pytest.mark.bakeoff(ttft="5s")
        def test_names(bakeoff): pass

        def test_stored(pytestconfig):
            pytestconfig.stash[_RUNS].append(Measured("stored", results.load("{run}")))
    """
    run = build_run(tmp_path / "runs")
    done = session(tmp_path, text.format(run=run), "--strict-markers", "--bakeoff-json", "none/all.json")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stdout.count("the mark takes only slo; write bakeoff(slo='ttft_p99<500ms')") == 4
    assert "1 passed, 2 errors" in done.stdout
    assert "cannot write none/all.json: No such file or directory" in done.stdout


def test_the_docs_page_matches_the_plugin() -> None:
    """The example calls existing functions, and every option is listed."""
    page = (HERE / "docs/pytest.md").read_text(encoding="utf-8")
    example: dict[str, object] = {}
    text = page.partition("```python\n")[2].partition("```")[0]
    mark = re.search(r'^@pytest\.mark\.bakeoff\(slo="(.*?)"\).*\n', text, re.MULTILINE)
    assert mark is not None
    assert objectives(mark[1])
    exec(text.replace(mark[0], ""), example)  # this session does not have the mark
    measured = create_autospec(Measured, instance=True)
    bakeoff = create_autospec(Bakeoff, instance=True)
    bakeoff.run.return_value = bakeoff.bench.return_value = measured
    for name in ("test_chat", "test_a_server_that_runs_already"):
        example[name](bakeoff)  # type: ignore[operator]
    signature(bench).bind(**bakeoff.bench.call_args.kwargs)
    assert measured.assert_no_regression.call_count == 2
    for call in measured.assert_slo.call_args_list:
        assert objectives(*call.args)
    source = (HERE / "harness/pytest_plugin.py").read_text(encoding="utf-8")
    options = set(re.findall(r'"(--bakeoff-\w+)"', source))
    assert options == set(re.findall(r"^\| `(--bakeoff-\w+) ", page, re.MULTILINE))
    assert len(options) == 3
