"""One of three Ray nodes is killed in a trial: what it sent is missing and named, and the plan goes on without it.

    python -m tests.acceptance.client.lost_node

Each node has a CPU for one worker, so the two that remain share the later trials.
"""

import asyncio
import tempfile
from pathlib import Path

from rich.console import Console

from bakeoff import results
from bakeoff.harness.conduct.progress import PlainObserver
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Verdict
from benchmarks.bars import Bars
from tests.harness.ray_nodes import ray_nodes

NODES, RATE, WINDOW_S = 3, 30.0, 10.0


def experiment(url: str, address: str) -> Experiment:
    data = {
        "name": "nodes", "repeats": 2, "model": {"tokenizer": "approximate"},
        "engines": [{"adapter": "openai", "url": url}], "loads": [{"rate_per_s": RATE, "arrival": "poisson"}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 20, "spread": 0.0}},
        "trial": {"warm_up_s": 0.0, "ramp_s": 1.0, "duration_s": WINDOW_S, "max_foreign_share": 1.0},
        "client": {"calibrate": False, "ray": address, "workers": NODES}, "quality": {"samples": 0},
    }  # fmt: skip
    return experiment_from(data, "nodes")


async def measured(folder: Path) -> None:
    with ray_nodes(NODES, cpus=1) as cluster:
        async with truth_process(Schedule(ttft_s=0.05, itl_s=0.02), keep=True) as truth:
            made = experiment(truth.url, cluster.address)
            observer = PlainObserver(Console(quiet=True), made)
            running = asyncio.create_task(run_experiment(made, create_run(made, folder), observer))
            while len(await truth.answered()) < 3 * RATE:  # noqa: ASYNC110  (another process counts)
                await asyncio.sleep(0.1)
            await asyncio.to_thread(cluster.remove_node, cluster.list_all_nodes()[-1], allow_graceful=False)
            await running


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measured(Path(folder)))
        run = results.load(next(Path(folder).iterdir()))
        trials = sorted(run.finished, key=lambda trial: trial.record.order)
        for trial in trials:
            record = trial.record
            why = "; ".join(str(finding.parameters.get("detail", finding.code.value)) for finding in record.findings)
            sent = len(trial.requests.under_load)
            print(f"{record.id}: {record.verdict.value}, {len(record.clients)} workers, {sent} requests {why}")
    cut, *others = trials
    bars = Bars()
    named = [finding.code for finding in cut.record.findings] == [FindingCode.CLIENT_LOST]
    bars.add("lost_node_named_and_nothing_else", named, "==", True)
    bars.add("requests_of_other_nodes_kept", len(cut.requests.under_load), ">=", RATE)
    bars.add("later_trials_valid", sum(each.record.verdict is Verdict.VALID for each in others), "==", len(others))
    bars.add("workers_of_later_trials", min(len(each.record.clients) for each in others), "==", NODES - 1)
    bars.finish()


if __name__ == "__main__":
    main()
