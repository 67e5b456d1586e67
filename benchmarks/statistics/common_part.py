"""Closed loops whose engines are 1.3 times apart are told apart, and equal ones are not. Simulated runs.

    python -m benchmarks.statistics.common_part [--comparisons 100]

Whole runs in virtual time: two engines, three repeats of 15 s, prompts and answers of log-normal lengths with a
coefficient of variation of 1.2. The faster engine gets further in the plan, to requests of other lengths. One kind of
server answers each request by itself, with a spread of 10 % of its TTFT and 50 % of each ITL. The other one batches, so
that its pace falls with the requests in flight and their prompts. Starts differ by 1 %, trials by 2 %. A cell counts
judgements at 95 %: *better*, which is right, or *better* and *worse*, which are false where the engines are equal.
"""

import argparse
import dataclasses
import json
import math
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from bakeoff.harness.virtual import Batched, Lognormal, PerToken, VirtualEngine, virtual_experiment, virtual_run
from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.sides import side_of
from bakeoff.results.statistics import Judgement
from benchmarks.bars import Bars

ALPHA, CV, FACTOR = 0.05, 1.2, 1.3
METRICS = ("output_tokens_per_s", "ttft_p50_s", "tpot_p50_s")
USERS = (1, 8, 32)
PROMPT_TOKENS, ANSWER_TOKENS, SESSIONS = 60, 34, 2_000
NOISY = VirtualEngine(start_noise=0.01, trial_noise=0.02)
SERVERS = {
    "slots": msgspec.structs.replace(NOISY, service=PerToken(Lognormal(0.1, 0.1), Lognormal(0.02, 0.5))),
    "batching": msgspec.structs.replace(NOISY, service=Batched(step_s=0.02, row_s=0.001, prompt_token_s=0.0005)),
}
CONFIG = ComparisonConfig(metrics=METRICS, primary=METRICS[0], alpha=ALPHA)


@dataclasses.dataclass(frozen=True)
class Cell:
    """Comparisons of one kind."""

    server: str
    users: int
    factor: float

    def judgements(self, seed: int) -> dict[str, Judgement]:
        """Metric → judgement of one comparison."""
        slow = SERVERS[self.server]
        engines = {"a": slow, "b": msgspec.structs.replace(slow, slowdown=1 / self.factor)}
        with tempfile.TemporaryDirectory() as folder:
            experiment = virtual_experiment(
                engines, [{"concurrency": self.users}], seed=seed, repeats=3,
                trial={"warm_up_s": 0.0, "duration_s": 15.0},
                workload={"name": "sessions", "options": {"path": str(_sessions(Path(folder), seed))}},
            )  # fmt: skip
            run = virtual_run(experiment, engines, Path(folder), seed=seed)
            compared = compare_sides(side_of(run, "a"), side_of(run, "b"), CONFIG)
        return {comparison.metric: comparison.judgement for comparison in compared.comparisons}


def _sessions(folder: Path, seed: int) -> Path:
    rng, path = np.random.default_rng(seed), folder / "sessions.jsonl"
    sigma = math.sqrt(math.log1p(CV**2))
    lengths = [
        np.maximum(1, rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, SESSIONS).round()).astype(int).tolist()
        for mean in (PROMPT_TOKENS, ANSWER_TOKENS)
    ]
    turns = (
        {"input_tokens": prompt, "output_tokens": answer, "prompt": " ".join(["word"] * prompt)}
        for prompt, answer in zip(*lengths, strict=True)
    )
    path.write_text("".join(json.dumps({"id": f"s{i}", "turns": [turn]}) + "\n" for i, turn in enumerate(turns)))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=100, help="of each kind (default: %(default)s)")
    count, bars = parser.parse_args().comparisons, Bars()
    cells = [Cell(server, users, factor) for server in SERVERS for users in USERS for factor in (FACTOR, 1.0)]
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / count)
    print(f"{count} comparisons a cell" + "".join(f"{metric:>22}" for metric in METRICS))
    with ProcessPoolExecutor() as pool:
        for cell in cells:
            words = list(pool.map(cell.judgements, range(count)))
            wanted = {Judgement.BETTER} if cell.factor > 1 else {Judgement.BETTER, Judgement.WORSE}
            shares = {metric: sum(word[metric] in wanted for word in words) / count for metric in METRICS}
            name = f"{cell.server}_{cell.users}"
            kind = "better" if cell.factor > 1 else "false_alarms"
            print(f"{kind}_{name:<12}" + "".join(f"{share:>22.1%}" for share in shares.values()), flush=True)
            for metric, share in shares.items():
                bars.add(f"{kind}_{name}_{metric}", share, *((">=", 0.95) if cell.factor > 1 else ("<=", limit)))
    bars.finish()


if __name__ == "__main__":
    main()
