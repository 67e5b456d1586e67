"""A trial as the result file of ``vllm bench serve --save-result --save-detailed``: one JSON object, the same keys.

Readers of such files: its own sweep plots and timelines, and the comparison scripts of vLLM's performance CI.
"""

from typing import Any

import msgspec

from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run
from bakeoff.results.views.base import Log, until_closed_s
from bakeoff.results.views.statistics import rate, stat_of
from bakeoff.results.views.vllm import Call, calls, peaks, tpots_s
from bakeoff.results.views.wall_clock import WallClock

PERCENTILES = (50, 90, 95, 99)


def encode(run: Run, trial: Trial) -> bytes:
    """Result file of one trial."""
    return msgspec.json.encode(result(run, trial))


def result(run: Run, trial: Trial) -> dict[str, Any]:
    """The JSON object: latencies in seconds, percentiles in milliseconds, failed requests as 0, as in the tool."""
    record, log = trial.record, Log.of(trial)
    all_calls = calls(log)
    description = record.engine_description
    return {
        "date": WallClock(run).started(trial).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai",
        "backend": "openai",
        "label": record.engine,
        "model_id": (description.model if description else None) or record.engine,
        "tokenizer_id": None,
        "num_prompts": len(all_calls),
        "exported_by": f"bakeoff {run.manifest.bakeoff_version}",
        "bakeoff_run": run.manifest.run_id,
        "bakeoff_trial": record.id,
        "request_rate": "inf" if record.load.concurrency is not None else record.load.rate_per_s,
        "burstiness": record.load.arrival_options.get("burstiness", 1.0),
        "max_concurrency": record.load.concurrency,
        **_totals(log, all_calls),
        **_per_request(all_calls),
        **_peaks(all_calls),
        **_latencies(all_calls),
    }


def _totals(log: Log, all_calls: list[Call]) -> dict[str, Any]:
    good = [call for call in all_calls if call.success]
    length_s = until_closed_s(log)
    prompt, output = sum(_prompt_tokens(call) for call in good), sum(call.output_tokens for call in good)
    return {
        "duration": length_s,
        "completed": len(good),
        "failed": len(all_calls) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": rate(len(good), length_s) or 0.0,
        "request_goodput": None,
        "output_throughput": rate(output, length_s) or 0.0,
        "total_token_throughput": rate(prompt + output, length_s) or 0.0,
    }


def _per_request(all_calls: list[Call]) -> dict[str, Any]:
    return {
        "input_lens": [_prompt_tokens(call) for call in all_calls],
        "output_lens": [call.output_tokens for call in all_calls],
        "ttfts": [call.ttft_s for call in all_calls],
        "itls": [call.itl_s for call in all_calls],
        "latencies": [call.latency_s for call in all_calls],
        "start_times": [call.start_s for call in all_calls],
        "queue_times": [call.start_s - call.record.planned_ns / 1e9 for call in all_calls],
        "bakeoff_chunk_tokens": [call.record.chunk_tokens for call in all_calls],
        "generated_texts": [call.record.text for call in all_calls],
        "errors": ["" if call.success else call.record.error or call.record.outcome.value for call in all_calls],
    }


def _peaks(all_calls: list[Call]) -> dict[str, Any]:
    busiest, fullest = peaks(all_calls)
    return {"max_output_tokens_per_s": busiest, "max_concurrent_requests": fullest, "rtfx": 0.0}


def _latencies(all_calls: list[Call]) -> dict[str, float]:
    good = [call for call in all_calls if call.success]
    samples = {
        "ttft": [call.ttft_s for call in good],
        "tpot": tpots_s(good),
        "itl": [gap for call in good for gap in call.itl_s],
        "e2el": [call.latency_s for call in good],
    }
    stats = {"mean": "mean", "median": "p50", "std": "std", **{f"p{q}": f"p{q}" for q in PERCENTILES}}
    return {
        f"{word}_{name}_ms": stat_of(values or [0.0], stat) * 1e3
        for name, values in samples.items()
        for word, stat in stats.items()
    }


def _prompt_tokens(call: Call) -> int:
    return call.record.prompt_tokens or call.record.requested_input_tokens or 0
