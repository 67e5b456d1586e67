"""Time per draft of a draft model, with its whole head and with one trimmed to some rows.

    python -m benchmarks.speculation.trimmed_head [--draft FOLDER] [--text FILE] [--rows 8192] [--dtype bfloat16]

Without ``--draft`` the draft model is the model itself, pruned to four layers. One stream, greedy, always with the
largest number of drafts. Two engines, one for each head, take turns on the same prompts. Only the time of drafting
counts, which includes the draft model's prefill of prompts and accepted drafts. The draft model's folder is copied,
with links to its files. If ``--model`` is the draft model, it verifies itself, which is fastest.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bakeoff.harness.cli.commands.models_tools import built_in_prompts
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.offline import LLM, generate
from bakeoff.reference_engine.speculation.draft_vocabulary import FILE
from bakeoff.reference_engine.tools.pruning import Pruning, prune
from bakeoff.reference_engine.tools.vocabulary_trimming import trim
from benchmarks.bars import Bars, model_argument
from benchmarks.speculation.prompts import prompts_of

WHOLE, TRIMMED = "whole", "trimmed"
DRAFT_LAYERS = 4


class Stopwatch:
    """Times the drafting of an engine's steps."""

    def __init__(self, llm: LLM) -> None:
        self.seconds, self.drafts = 0.0, 0
        drafter: Any = llm.engine.core._runner._draft_model  # noqa: SLF001
        self._draft, drafter.draft = drafter.draft, self._timed

    def _timed(self, step: Any, copies: Any) -> Any:  # noqa: ANN401
        began = time.perf_counter()
        result = self._draft(step, copies)
        if result[0] is not None:
            if result[0].is_cuda:
                torch.cuda.synchronize()
            self.seconds += time.perf_counter() - began
            self.drafts += len(result[0])
        return result

    def take(self) -> float:
        """Seconds for each draft since the last call."""
        draft_s, self.seconds, self.drafts = self.seconds / self.drafts, 0.0, 0
        return draft_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--draft", type=Path, help="checkpoint folder of a draft model")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--text", type=Path, help="UTF-8 file to count tokens of; default: the built-in prompts")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1, help="several wait for each other on a busy machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = options.text or Path(folder, "text")
        if options.text is None:
            text.write_text(built_in_prompts(), encoding="utf-8")
        draft = options.draft or Path(folder, "pruned")
        if options.draft is None:
            prune(Path(options.model), draft, Pruning(layers=DRAFT_LAYERS), text=text, device="cpu", say=print)
        drafts = {name: Path(folder) / name for name in (WHOLE, TRIMMED)}
        for copy in drafts.values():
            shutil.copytree(
                draft,
                copy,
                copy_function=lambda source, target: Path(target).symlink_to(Path(source).resolve()),
                ignore=shutil.ignore_patterns(FILE),
            )
        trim(drafts[TRIMMED], options.rows, text=text, say=print)
        llms = {
            name: LLM(
                options.model,
                dtype=options.dtype,
                threads=options.threads,
                max_num_seqs=1,
                speculation=f"draft:{options.draft_tokens}:{path}",
                adaptive_speculation=False,
            )
            for name, path in drafts.items()
        }
    params = SamplingParams(max_tokens=options.tokens, temperature=0.0)
    prompts = prompts_of(llms[WHOLE].tokenizer, "chat", 2)
    watches = {name: Stopwatch(llm) for name, llm in llms.items()}
    times: dict[str, list[float]] = {name: [] for name in llms}
    for _ in range(options.repeats + 1):
        for name, llm in llms.items():
            for prompt in prompts:
                generate(llm.engine, [prompt], [params])
            times[name].append(watches[name].take())
    medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
    for name, seconds in times.items():
        lowest, highest = 1e6 * min(seconds[1:]), 1e6 * max(seconds[1:])
        print(f"{name:<9}{1e6 * medians[name]:>8.0f} µs a draft ({lowest:.0f} to {highest:.0f})", flush=True)
    bars = Bars()
    bars.add("whole_over_trimmed", medians[WHOLE] / medians[TRIMMED], ">=", 1.5)
    bars.finish()


if __name__ == "__main__":
    main()
