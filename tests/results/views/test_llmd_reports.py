"""Benchmark reports of llm-d: ours obey its schema and hold our figures; its own are compared as runs."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.results import NotComparable, NotImportable, Run, load
from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.sides import Side, compared_value, select
from bakeoff.results.errors import NoEvidence
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.metrics import Absence
from bakeoff.results.records import EngineDescription, Load, Outcome, Phase, RequestRecord, Verdict
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Trial
from bakeoff.results.statistics import Judgement
from bakeoff.results.views import export_llmd
from bakeoff.results.views.exports import export
from bakeoff.results.views.import_llmd import read_reports
from tests.results.builders import FAST, SLOW, Sheet, build_run

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parent / "llmd.schema.json").read_text(encoding="utf-8"))
)
LOADS = (Load(concurrency=4), Load(rate_per_s=2.0, arrival="poisson", max_in_flight=16))
PERCENTILES = {"p0p1": 0.001, "p1": 0.01, "p25": 0.25, "p50": 0.5, "p95": 0.95, "p99": 0.99, "p99p9": 0.999}


def built(root: Path, name: str = "monday", **changes: Any) -> Run:
    """Two engines, of which one fails requests, at a closed and an open loop."""
    usual = {"engines": {"fast": FAST, "slow": SLOW}, "loads": LOADS, "repeats": 1, "invalid": ()}
    return load(build_run(root / "runs", Sheet(**{**usual, "run_id": name, **changes})))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return built(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def reports(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Trial → its report."""
    paths = export(run, "llm-d", tmp_path_factory.mktemp("reports"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def aggregate(report: Mapping[str, Any]) -> dict[str, Any]:
    return report["results"]["request_performance"]["aggregate"]


def in_window(trial: Trial) -> list[RequestRecord]:
    window = trial.record.window
    measured = [request for request in trial.requests if request.phase is not Phase.WARMUP]
    return [request for request in measured if window.start_ns <= request.planned_ns < window.end_ns]


def test_each_trial_is_a_report_by_llm_ds_schema(run: Run, reports: dict[str, dict[str, Any]]) -> None:
    assert set(reports) == {trial.record.id for trial in run.finished}
    for report in reports.values():
        SCHEMA.validate(report)
    assert len({report["run"]["uid"] for report in reports.values()}) == len(reports)
    assert {report["run"]["eid"] for report in reports.values()} == {"monday"}


def test_the_schema_refuses_a_field_that_it_does_not_know(reports: dict[str, dict[str, Any]]) -> None:
    report = next(iter(reports.values()))
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate({**report, "run": {**report["run"], "extra": 1}})


def test_latencies_are_the_quantiles_of_the_requests_own_times(run: Run, reports: dict[str, dict[str, Any]]) -> None:
    for trial in run.finished:
        latency = aggregate(reports[trial.record.id])["latency"]
        answered = [request for request in in_window(trial) if request.outcome is Outcome.OK]
        planned, first, last = (
            np.array(times, dtype=np.float64)
            for times in zip(*((r.planned_ns, r.chunk_ns[0], r.chunk_ns[-1]) for r in answered), strict=True)
        )
        tokens = np.array([len(request.chunk_ns) for request in answered])
        window = trial.record.window
        gaps = [
            later - earlier
            for request in trial.requests
            if request.phase is not Phase.WARMUP
            for earlier, later in zip(request.chunk_ns, request.chunk_ns[1:], strict=False)
            if window.start_ns <= later < window.end_ns
        ]
        expected = {
            "time_to_first_token": ("s", first - planned),
            "request_latency": ("s", last - planned),
            "time_per_output_token": ("s/token", (last - first) / (tokens - 1)),
            "normalized_time_per_output_token": ("s/token", (last - planned) / tokens),
            "inter_token_latency": ("s/token", np.array(gaps)),
        }
        assert set(latency) == set(expected)
        for name, (units, values_ns) in expected.items():
            values = values_ns / 1e9
            assert latency[name]["units"] == units
            assert latency[name]["mean"] == pytest.approx(values.mean())
            assert latency[name]["stddev"] == pytest.approx(values.std())
            assert (latency[name]["min"], latency[name]["max"]) == pytest.approx((values.min(), values.max()))
            for percentile, q in PERCENTILES.items():
                assert latency[name][percentile] == pytest.approx(np.quantile(values, q)), (name, percentile)


def test_requests_and_rates_are_those_of_the_window(run: Run, reports: dict[str, dict[str, Any]]) -> None:
    failures = 0
    for trial in run.finished:
        found, window = aggregate(reports[trial.record.id]), trial.record.window
        inside = in_window(trial)
        answered = [request for request in inside if request.outcome is Outcome.OK]
        failed = len(inside) - len(answered)
        failures += failed
        assert (found["requests"]["total"], found["requests"]["failures"]) == (len(inside), failed)
        assert found["requests"]["output_length"]["mean"] == 24
        arrived = sum(
            window.start_ns <= t_ns < window.end_ns
            for request in trial.requests
            if request.phase is not Phase.WARMUP
            for t_ns in request.chunk_ns
        )
        tokens = sum(request.total_chunk_tokens for request in inside)
        busy_s = sum(request.ended_ns - request.planned_ns for request in inside) / 1e9 + 0.1 * failed
        rate, slots = found["throughput"]["output_token_rate"], trial.record.load.concurrency
        mean = slots * tokens / busy_s if slots else arrived / window.length_s
        assert rate == {"units": "tokens/s", "mean": pytest.approx(mean, rel=0.01)}
        if trial.record.engine == "fast":
            lengths = [request.prompt_tokens for request in answered]
            assert found["requests"]["input_length"]["mean"] == pytest.approx(np.mean([n or 0 for n in lengths]))
            total = found["throughput"]["input_token_rate"]["mean"] + rate["mean"]
            assert found["throughput"]["total_token_rate"]["mean"] == pytest.approx(total)
        else:  # it does not report its prompt tokens
            assert "input_length" not in found["requests"]
            assert set(found["throughput"]) == {"output_token_rate", "request_rate"}
    assert failures > 0


def test_the_load_is_what_was_sent(run: Run, reports: dict[str, dict[str, Any]]) -> None:
    for trial in run.finished:
        sent = reports[trial.record.id]["scenario"]["load"]["standardized"]
        lengths = [request.requested_input_tokens or 0 for request in in_window(trial)]
        assert sent["input_seq_len"] == {
            "distribution": "other",
            "value": pytest.approx(np.mean(lengths)),
            "min": min(lengths),
            "max": max(lengths),
        }
        assert sent["output_seq_len"] == {"distribution": "fixed", "value": 24}
        is_closed = trial.record.load.concurrency is not None
        expected = (0, None, 4) if is_closed else (1, 2.0, 16)
        assert (sent["stage"], sent.get("rate_qps"), sent["concurrency"]) == expected
        assert (sent["tool"], sent["tool_version"]) == ("bakeoff", "0.1.0")
        assert "multi_turn" not in sent


def with_requests(trial: Trial, **changes: Any) -> Trial:
    requests = [msgspec.structs.replace(request, **changes) for request in trial.requests]
    return msgspec.structs.replace(trial, requests=Requests(requests))


def test_later_turns_are_stated_and_unknown_prompts_are_not_invented(run: Run, tmp_path: Path) -> None:
    trial = run.finished[0]
    turns = json.loads(export_llmd.encode(run, with_requests(trial, turn=1)))
    assert turns["scenario"]["load"]["standardized"]["multi_turn"] == {"enabled": True}
    unknown = with_requests(trial, requested_input_tokens=None, prompt_tokens=None)
    (tmp_path / "a.json").write_bytes(export_llmd.encode(run, unknown))
    report = json.loads((tmp_path / "a.json").read_bytes())
    SCHEMA.validate(report)
    assert "load" not in report["scenario"]
    with pytest.raises(NotImportable, match="no report that can be compared"):
        select(str(tmp_path / "a.json"))


ARGV = ["vllm", "serve", "m", "--port", "81", "--x", "--y=1", "--y=2", "-n", "-1"]
ENGINE = EngineDescription("e", "vllm", "0.32", ARGV, model="m")


@pytest.mark.parametrize(
    ("gpus", "changes", "count"),
    [
        (0, {}, 0),
        (4, {"settings": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}, 4),
        (4, {"asked": {"tensor_parallel_size": 2}}, 2),
        (4, {}, None),
        (4, {"argv": []}, None),
        (0, {"argv": ["ssh", "host", "vllm"]}, None),
        (0, {"model": None}, None),
    ],
)
def test_an_engine_whose_accelerators_are_unknown_is_generic(
    run: Run, gpus: int, changes: dict[str, Any], count: int | None
) -> None:
    machine = load(run.path)
    environment = {"gpus": [{"name": "H100"}] * gpus or None}
    machine.manifest = msgspec.structs.replace(run.manifest, environment=environment)
    engine, trial = msgspec.structs.replace(ENGINE, **changes), run.finished[0]
    described = msgspec.structs.replace(trial, record=msgspec.structs.replace(trial.record, engine_description=engine))
    document = json.loads(export_llmd.encode(machine, described))
    SCHEMA.validate(document)
    (component,) = document["scenario"]["stack"]
    standardized = component["standardized"]
    if count is None:
        assert standardized["kind"] == "generic"
        assert "accelerator" not in standardized
    else:
        assert standardized["accelerator"]["count"] == count
        assert standardized["accelerator"]["model"] == ("H100" if gpus else "none")


def test_a_command_line_is_a_table_of_its_flags(run: Run) -> None:
    trial = run.finished[0]
    described = msgspec.structs.replace(trial, record=msgspec.structs.replace(trial.record, engine_description=ENGINE))
    native = json.loads(export_llmd.encode(run, described))["scenario"]["stack"][0]["native"]
    assert native["args"] == {"command": "vllm serve m", "--port": "81", "--x": None, "--y": ["1", "2"], "-n": "-1"}


def test_a_port_that_the_launcher_drew_is_no_other_configuration(run: Run) -> None:
    def cfg_id(port: str) -> str:
        engine = msgspec.structs.replace(ENGINE, argv=["vllm", "--port", port], drawn=[port])
        record = msgspec.structs.replace(run.finished[0].record, engine_description=engine)
        report = json.loads(export_llmd.encode(run, msgspec.structs.replace(run.finished[0], record=record)))
        return str(report["scenario"]["stack"][0]["metadata"]["cfg_id"])

    assert cfg_id("81") == cfg_id("82")


def written(root: Path, name: str, **changes: Any) -> Path:
    """A folder with the reports of a run."""
    folder = root / f"{name}-reports"
    export(built(root, name, **changes), "llm-d", folder)
    return folder


def sides(run: Run, folder: Path) -> list[tuple[Side, Side]]:
    """The side of each engine, of its run and of its reports."""
    return [(select(f"{run.path}@{engine}"), select(f"{folder}@{engine}")) for engine in ("fast", "slow")]


@pytest.mark.slow
def test_a_folder_of_our_reports_has_the_figures_of_its_run(tmp_path: Path) -> None:
    folder = written(tmp_path, "monday", repeats=2, invalid=(0,))
    run = load(tmp_path / "runs" / "monday")
    for original, read in sides(run, folder):
        assert list(read.sessions) == ["monday"]
        assert [plan.label for plan in read.loads] == [plan.label for plan in original.loads]
        assert len(read.trials) == len(original.trials) == 4
        ids = {trial.record.id: trial for trial in read.trials}
        for trial in original.trials:
            again = ids[f"monday-{trial.record.id}"]
            assert again.record.verdict == trial.record.verdict
            assert again.record.repeat == trial.record.repeat
            for name in ("output_tokens_per_s", "requests_per_s", "failures", "itl_p50_s"):
                assert compared_value(again, name) == compared_value(trial, name), name
            assert again.work.output_tokens == trial.work.output_tokens
            if original.engine == "fast":  # without failures, percentiles are the same too
                assert again.metrics["ttft_p50_s"] == trial.metrics["ttft_p50_s"]
                assert again.metrics["e2e_p50_s"] == trial.metrics["e2e_p50_s"]
                assert again.metrics["prompt_tokens_per_s"] == trial.metrics["prompt_tokens_per_s"]
            assert again.metrics["ttft_p99_s"].absence is Absence.TOO_FEW, "24 requests have no p99"
    invalid = [t.record for side in sides(run, folder) for t in side[1].trials if t.record.verdict is Verdict.INVALID]
    assert [[finding.code for finding in record.findings] for record in invalid] == [[FindingCode.THROTTLED]]


@pytest.mark.slow
def test_engines_of_one_run_are_compared_like_the_run(tmp_path: Path) -> None:
    folder = written(tmp_path, "monday", repeats=3)
    found = compare_sides(*(select(f"{folder}@{engine}") for engine in ("fast", "slow")))
    run = compare_sides(*(select(f"{tmp_path / 'runs' / 'monday'}@{engine}") for engine in ("fast", "slow")))
    assert found.primary.judgement is run.primary.judgement is Judgement.WORSE
    assert (found.primary.metric, found.primary.level) == (run.primary.metric, run.primary.level)


@pytest.mark.slow
def test_reports_of_other_runs_need_the_noise_between_runs(tmp_path: Path) -> None:
    names = ("monday", "tuesday", "wednesday", "thursday")
    alone = {"engines": {"fast": FAST}, "repeats": 2}
    folders = {name: written(tmp_path, name, seed=seed, **alone) for seed, name in enumerate(names)}
    single = compare_sides(select(str(folders["monday"])), select(str(folders["tuesday"])))
    assert single.primary.judgement is Judgement.UNCLEAR
    many = tmp_path / "many"
    many.mkdir()
    for name in names[:3]:
        for file in folders[name].iterdir():
            (many / f"{name}-{file.name}").write_bytes(file.read_bytes())
    baseline = select(str(many))
    assert sorted(baseline.sessions) == sorted(names[:3])
    assert single.primary.evidence is None
    assert compare_sides(baseline, select(str(folders["thursday"]))).primary.evidence is not None


def test_a_report_is_not_compared_with_a_run(tmp_path: Path) -> None:
    folder = written(tmp_path, "monday")
    with pytest.raises(NotComparable, match=r"differ in source of figures \(llm-d report of bakeoff, .* and unset\)"):
        compare_sides(select(f"{folder}@fast"), select(f"{tmp_path / 'runs' / 'monday'}@fast"))


def test_a_folder_of_several_engines_needs_a_name(tmp_path: Path) -> None:
    folder = written(tmp_path, "monday")
    with pytest.raises(NotComparable, match=f"name one: {folder}@fast, {folder}@slow"):
        select(str(folder))


def llmd(**changes: Any) -> dict[str, Any]:
    """A report as llm-d's converter of vLLM's benchmark writes it, of 700 requests, of which 7 failed."""
    load = {
        "tool": "vllm-benchmark", "tool_version": "v0.32", "source": "random", "rate_qps": None, "concurrency": 32,
        "input_seq_len": {"distribution": "fixed", "value": 512}, "output_seq_len": None,
    }  # fmt: skip
    engine = {
        "kind": "inference_engine", "tool": "vllm", "tool_version": "v0.32", "role": "replica", "replicas": 2,
        "model": {"name": "m"}, "accelerator": {"model": "H100", "count": 2, "parallelism": {"tp": 2}},
    }  # fmt: skip
    ttft = {"units": "ms", "mean": 41.5, "p50": 40.0, "p90": 60.0, "p95": 70.0, "p99": 90.0, "p99p9": 99.0}
    found = {
        "requests": {"total": 700, "failures": 7, "output_length": {"units": "count", "mean": 100.0}},
        "latency": {
            "time_to_first_token": {**ttft, "p50": changes.pop("ttft_ms", 40.0)},
            "time_per_output_token": {"units": "ms/token", "mean": 8.0, "p50": 7.5},
            "inter_token_latency": {"units": "s/token", "mean": 0.008},
        },
        "throughput": {"output_token_rate": {"units": "tokens/s", "mean": 3900.0}},
    }
    run = {"uid": "u1", "eid": "e1", "time": {"start": "2026-11-05T18:00:42Z"}}
    return {
        "version": changes.pop("version", "0.2"),
        "run": {**run, **changes.pop("run", {})},
        "scenario": {
            "stack": [
                {"metadata": {"label": "epp", "cfg_id": "0"}, "standardized": {"kind": "generic", "tool": "router"}},
                {"metadata": {"label": "", "cfg_id": "1"}, "standardized": {**engine, **changes.pop("engine", {})}},
            ],
            "load": {
                "metadata": {"cfg_id": "2"}, "native": {"args": {}, "config": None},
                "standardized": {**load, **changes.pop("load", {})},
            },
        },
        "results": {"request_performance": {"aggregate": {**found, **changes}}},
    }  # fmt: skip


def saved(folder: Path, **reports: dict[str, Any]) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name, report in reports.items():
        (folder / f"{name}.json").write_text(json.dumps(report), encoding="utf-8")
    return [str(folder / f"{name}.json") for name in reports]


def test_llm_ds_own_report_is_read(tmp_path: Path) -> None:
    (file,) = saved(tmp_path, a=llmd())
    side = select(file)
    (trial,) = side.trials
    assert (side.engine, list(side.sessions), trial.record.load) == ("vllm", ["e1"], Load(concurrency=32))
    values = {name: value.value for name, value in trial.metrics.items() if value.value is not None}
    assert values == pytest.approx(
        {
            "ttft_p50_s": 0.04,
            "ttft_p90_s": 0.06,
            "ttft_p95_s": 0.07,
            "ttft_p99_s": 0.09,
            "tpot_p50_s": 0.0075,
            "output_tokens_per_s": 3900.0,
            "failures": 7.0,
        }
    )
    assert compared_value(trial, "failures") == pytest.approx(0.01)
    assert (trial.work.ok, trial.work.output_tokens) == (693, 69_300)
    assert side.run.manifest.created_utc == "2026-11-05T18:00:42+00:00"


@pytest.mark.parametrize(
    ("load", "label"),
    [
        ({"concurrency": 8}, "c=8"),
        ({"rate_qps": 2.5, "concurrency": float("inf")}, "rate 2.5/s"),
        ({"rate_qps": 2.5, "concurrency": 8}, "rate 2.5/s ≤8"),
        ({"rate_qps": float("inf"), "concurrency": None, "stage": 3}, "unstated load stage=3"),
    ],
)
def test_the_load_of_a_report(tmp_path: Path, load: dict[str, Any], label: str) -> None:
    """llm-d writes Infinity, which is no JSON, for what is unlimited."""
    (run,) = read_reports(Path(*saved(tmp_path, a=llmd(load=load))))
    assert run.finished[0].record.load.label == label


def test_reports_of_one_experiment_are_repeats_and_stages_of_one_run(tmp_path: Path) -> None:
    saved(
        tmp_path,
        a=llmd(),
        b=llmd(run={"uid": "u2", "time": {"start": "2026-11-05T18:10:42Z"}}),
        c=llmd(run={"uid": "u3"}, load={"concurrency": 64}),
        d=llmd(run={"uid": "u4", "eid": None}),
        other={"metrics": []},
    )
    (tmp_path / "damaged.json").write_text("{", encoding="utf-8")
    side = select(str(tmp_path))
    trials = {name: [(t.record.id, t.record.load.label, t.record.repeat) for t in own]
              for name, own in side.sessions.items()}  # fmt: skip
    assert trials == {"e1": [("u1", "c=32", 1), ("u3", "c=64", 1), ("u2", "c=32", 2)], "u4": [("u4", "c=32", 1)]}


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"load": {"tool": "inference-perf"}}, "source of figures"),
        ({"load": {"tool_version": "v0.33"}}, "source of figures"),
        ({"engine": {"model": {"name": "n"}}}, "model (m and n)"),
        ({"engine": {"replicas": 3}}, "accelerators (2 × replica on 2 H100 and 3 × replica on 2 H100)"),
        ({"load": {"input_seq_len": {"distribution": "fixed", "value": 513}}}, "different traffic"),
        ({"load": {"multi_turn": {"enabled": True}}}, "different traffic"),
        ({"load": {"concurrency": 16}}, "no load level in common"),
    ],
)
def test_unequal_reports_are_not_compared(tmp_path: Path, changes: dict[str, Any], difference: str) -> None:
    a, b = saved(tmp_path, a=llmd(), b=llmd(run={"eid": "e2"}, **changes))
    with pytest.raises((NotComparable, NoEvidence)) as caught:
        compare_sides(select(a), select(b))
    assert difference in str(caught.value)


def test_a_length_that_a_tool_only_measured_may_differ(tmp_path: Path) -> None:
    lengths = ({"input_seq_len": {"distribution": "other", "value": mean}} for mean in (500.25, 500.5))
    a, b = saved(tmp_path, a=llmd(load=next(lengths)), b=llmd(run={"eid": "e2"}, load=next(lengths)))
    assert compare_sides(select(a), select(b)).primary.metric == "output_tokens_per_s"


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (llmd(version="0.1"), "version 0.1; only 0.2 and 0.2.1 are read"),
        (llmd(requests=None), "no report that can be compared"),
        (llmd(requests={"total": 5, "failures": 6}), "more failures than requests"),
        (llmd(ttft_ms=-1.0), "time_to_first_token is -1.0"),
        (llmd(ttft_ms=float("nan")), "time_to_first_token is nan"),
        (llmd(latency={"time_to_first_token": {"units": "Watts", "mean": 1, "p50": 1}}), "is in Watts, not in s or"),
        (llmd(throughput={"request_rate": {"units": "tokens/s", "mean": 1}}), "is in tokens/s, not in queries/s"),
        (llmd(load={"concurrency": -3}), "impossible load"),
        (llmd(load={"tool": "bakeoff"}), "no report that can be compared"),
    ],
)
def test_a_bad_report_is_one_line(tmp_path: Path, report: dict[str, Any], why: str) -> None:
    (file,) = saved(tmp_path, a=report)
    with pytest.raises(NotImportable) as caught:
        select(file)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_is_read_where_its_package_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    (file,) = saved(tmp_path, a=llmd(load={"rate_qps": 2.0, "concurrency": float("inf")}))
    document = tmp_path / "a.yaml"
    document.write_text(yaml.safe_dump(json.loads(Path(file).read_text(encoding="utf-8"))), encoding="utf-8")
    (of_yaml,), (of_json,) = read_reports(document), read_reports(Path(file))
    assert of_yaml.finished == of_json.finished
    document.write_text("version: [", encoding="utf-8")
    with pytest.raises(NotImportable, match="not a benchmark report of llm-d"):
        read_reports(document)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(NotImportable, match="needs PyYAML: pip install pyyaml"):
        read_reports(document)


def test_gate_and_compare_read_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ttft_ms in {"mon": 40.0, "tue": 40.4, "wed": 39.8, "bad": 80.0}.items():
        repeats = {f"r{i}": llmd(run={"uid": f"{name}{i}", "eid": name}, ttft_ms=ttft_ms + i / 10) for i in range(3)}
        saved(tmp_path / name, **repeats)
    assert guarded(make_app(), ["compare", str(tmp_path / "mon" / "r0.json"), str(tmp_path / "bad" / "r0.json")]) == 0
    assert "vllm (bad) against vllm (mon)" in capsys.readouterr().out
    baseline = [word for name in ("mon", "tue", "wed") for word in ("--baseline", str(tmp_path / name))]
    arguments = ["gate", *baseline, "--candidate", str(tmp_path / "bad"), "--primary", "ttft_p50_s"]
    assert guarded(make_app(), arguments) == 1
    assert "REGRESSION" in capsys.readouterr().out
