"""The three real tools: how each is started, the figures that it prints, and its own timestamps of requests.

The printed figures are read from result files, which hold the same figures with all digits. They have the names that
our views give them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.client.decode.token_counts import apportion
from bakeoff.results.records import Outcome, Phase, RequestRecord, StreamEnd
from bakeoff.results.views.import_vllm import read_vllm, requests_of
from benchmarks.peers.aiperf import AiPerf
from benchmarks.peers.guidellm import GuideLlm
from benchmarks.peers.protocol import Client, Load
from benchmarks.peers.vllm_bench import VllmBench

_RESULT, _SUMMARY, _RECORDS = "result.json", "profile_export_aiperf.json", "profile_export.jsonl"
_INTERNAL_KEYS = {"config", "input_config", "run_info", "scheduler_state"}
"""Keys of a tool's configuration and internal state, whose contents :func:`key_paths` leaves out."""
CLIENT_CORE = 1 % (os.cpu_count() or 1)
WARMUP = 4
"""Warm-up requests of tools that have an option for it; they open the connections."""


class Tool(msgspec.Struct, frozen=True):
    """One tool.

    Attributes:
        client: starts it.
        extra: further options, for the files that are read here.
        file: the result file whose format we export.
        printed: reads, from the folder of the tool's files, name of a figure → value that the tool printed.
        stamped: reads the tool's requests, by its own clock, from the same folder.
    """

    client: Client
    extra: tuple[str, ...]
    file: str
    printed: Callable[[Path], dict[str, float]]
    stamped: Callable[[Path], list[RequestRecord]]

    def start(self, load: Load, folder: Path) -> None:
        """Run the tool to its end, on a core of its own if the machine has two.

        Raises:
            subprocess.CalledProcessError: it failed; ``output.log`` in ``folder`` says why.
        """
        kind = "alone" if self.client.alone else "crowd"
        pinned = [sys.executable, "-m", "benchmarks.peers.pinned", str(CLIENT_CORE), kind]
        command = [*pinned, *self.client.command(load, folder), *self.extra]
        environment = {**os.environ, **self.client.environment()}
        folder.mkdir(parents=True)
        with (folder / "output.log").open("wb") as log:
            subprocess.run(command, check=True, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=300)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def key_paths(value: object, path: str = "") -> set[str]:
    """Every key of a JSON value as a dotted path; lists count by their first element, summaries without their keys."""
    if isinstance(value, list):
        return key_paths(value[0], f"{path}[]") if value else set()
    if not isinstance(value, dict) or {"percentiles", "unit"} & set(value):
        return set()
    members = {f"{path}.{key}": member for key, member in value.items() if key not in _INTERNAL_KEYS}
    return set(members).union(*(key_paths(member, member_path) for member_path, member in members.items()))


def _vllm_printed(folder: Path) -> dict[str, float]:
    result = _read(folder / _RESULT)
    words = {"mean": "Mean", "median": "Median", "std": "Std", "p99": "P99"}
    names = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
    latencies = {
        f"{word} {name} (ms)": result[f"{key}_{tag}_ms"] for key, word in words.items() for tag, name in names.items()
    }
    return latencies | {
        "Successful requests": result["completed"],
        "Failed requests": result["failed"],
        "Benchmark duration (s)": result["duration"],
        "Total generated tokens": result["total_output_tokens"],
        "Request throughput (req/s)": result["request_throughput"],
        "Output token throughput (tok/s)": result["output_throughput"],
        "Peak output token throughput (tok/s)": result["max_output_tokens_per_s"],
        "Peak concurrent requests": result["max_concurrent_requests"],
    }


def _vllm_stamped(folder: Path) -> list[RequestRecord]:
    (result,) = read_vllm(folder / _RESULT)
    return requests_of(result, apportion)


def _aiperf_printed(folder: Path) -> dict[str, float]:
    result = _read(folder / _SUMMARY)
    rows = {
        "Time to First Token (ms)": "time_to_first_token",
        "Time to Second Token (ms)": "time_to_second_token",
        "Request Latency (ms)": "request_latency",
        "Inter Token Latency (ms)": "inter_token_latency",
        "inter_chunk_latency (ms)": "inter_chunk_latency",
        "Output Token Throughput Per User (tokens/sec/user)": "output_token_throughput_per_user",
        "E2E Output Token Throughput (tokens/sec/user)": "e2e_output_token_throughput",
        "Output Sequence Length (tokens)": "output_sequence_length",
    }
    columns = ("avg", "min", "max", "p99", "p90", "p50", "std")
    return {f"{name} {column}": result[tag][column] for name, tag in rows.items() for column in columns} | {
        "Output Token Throughput (tokens/sec)": result["output_token_throughput"]["avg"],
        "Request Throughput (requests/sec)": result["request_throughput"]["avg"],
        "Request Count (requests)": result["request_count"]["avg"],
        "benchmark_duration (sec)": result["benchmark_duration"]["avg"],
    }


def _aiperf_stamped(folder: Path) -> list[RequestRecord]:
    lines = (folder / _RECORDS).read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [_aiperf_request(i, record) for i, record in enumerate(records) if _is_measured(record)]


def _is_measured(record: dict[str, Any]) -> bool:
    return record["metadata"]["benchmark_phase"] == "profiling"


def _aiperf_request(index: int, record: dict[str, Any]) -> RequestRecord:
    metrics = {name: metric["value"] for name, metric in record["metrics"].items()}
    sent_ns = record["metadata"]["request_start_ns"]
    after_ms = metrics["time_to_first_token"]
    arrivals = [sent_ns + round(after_ms * 1e6)]
    for gap_ms in metrics["inter_chunk_latency"]:
        arrivals.append(arrivals[-1] + round(gap_ms * 1e6))
    tokens = round(metrics["output_sequence_length"])
    return _request(index, sent_ns, arrivals, tokens, arrivals[-1])


def _guidellm_printed(folder: Path) -> dict[str, float]:
    benchmark = _read(folder / _RESULT)["benchmarks"][0]
    metrics = benchmark["metrics"]
    rows = {
        "Request Latency Sec": "request_latency",
        "TTFT ms": "time_to_first_token_ms",
        "ITL ms": "inter_token_latency_ms",
        "TPOT ms": "time_per_output_token_ms",
    }
    latencies = {
        f"{name} {column}": value
        for name, tag in rows.items()
        for column, value in _guidellm_columns(metrics[tag]["successful"]).items()
    }
    return latencies | {
        "Requests Comp": metrics["request_totals"]["successful"],
        "Requests Err": metrics["request_totals"]["errored"],
        "Dur Sec": benchmark["duration"],
        "Output Tokens Comp": metrics["output_token_count"]["successful"]["total_sum"],
        "Requests Per Sec Mean": metrics["requests_per_second"]["total"]["mean"],
        "Output Tokens Per Sec Mean": metrics["output_tokens_per_second"]["total"]["mean"],
        "Requests Concurrency Mean": metrics["request_concurrency"]["total"]["mean"],
    }


def _guidellm_columns(summary: dict[str, Any]) -> dict[str, float]:
    percentiles = summary["percentiles"]
    return {
        "Mean": summary["mean"], "Mdn": summary["median"], "p95": percentiles["p95"], "p99": percentiles["p99"],
        "std": summary["std_dev"],
    }  # fmt: skip


def _guidellm_stamped(folder: Path) -> list[RequestRecord]:
    requests = _read(folder / _RESULT)["benchmarks"][0]["requests"]["successful"]
    return [_guidellm_request(i, request) for i, request in enumerate(requests)]


def _guidellm_request(index: int, request: dict[str, Any]) -> RequestRecord:
    """GuideLLM keeps only the first and last token times; the others are spaced evenly, as it does itself."""
    times, count = request["info"]["timings"], request["info"]["timings"]["token_iterations"]
    first_ns, last_ns = (round(times[f"{which}_token_iteration"] * 1e9) for which in ("first", "last"))
    arrivals = [first_ns + (last_ns - first_ns) * i // max(1, count - 1) for i in range(count)]
    tokens, ended_ns = request["output_metrics"]["text_tokens"], round(times["request_end"] * 1e9)
    return _request(index, round(times["request_start"] * 1e9), arrivals, tokens, ended_ns)


def _request(index: int, sent_ns: int, arrivals: list[int], tokens: int, ended_ns: int) -> RequestRecord:
    """A request whose tokens are divided evenly over the arrivals, with the remainder on the last."""
    share = tokens // len(arrivals)
    return RequestRecord(
        index=index, phase=Phase.MEASURED, session=str(index), turn=0, planned_ns=sent_ns, sent_ns=sent_ns,
        ended_ns=ended_ns, status=200, outcome=Outcome.OK, end=StreamEnd.COMPLETE, chunk_ns=arrivals,
        chunk_tokens=[share] * (len(arrivals) - 1) + [tokens - share * (len(arrivals) - 1)], output_tokens=tokens,
        usage_ns=ended_ns, last_event_ns=ended_ns, requested_output_tokens=tokens,
    )  # fmt: skip


TOOLS: dict[str, Tool] = {
    "vllm": Tool(VllmBench(), ("--save-detailed", "--num-warmups", str(WARMUP)), _RESULT, _vllm_printed, _vllm_stamped),
    "aiperf": Tool(AiPerf(), ("--warmup-request-count", str(WARMUP)), _SUMMARY, _aiperf_printed, _aiperf_stamped),
    "guidellm": Tool(GuideLlm(), (), _RESULT, _guidellm_printed, _guidellm_stamped),
}
"""The tools by the name of their view."""
