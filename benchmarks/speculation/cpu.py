"""Speed-up by speculation on this machine's CPU, by task family. Run by ``make bench-speculation``.

One stream, greedy. Engines with and without drafts take turns at each prompt; the speed-up is the ratio of the sums of
their medians. The oracle has the answer, and copies from the best of all earlier places that follow the same last
token: no drafter that copies by context can be better. ``--draft`` adds a draft model and ``--head`` an EAGLE head,
such as ``benchmarks.drafts`` makes; the table shows the accepted share of their drafts after the speed-ups.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence

from bakeoff.reference_engine.core.outputs import StepReport
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.offline import LLM, generate
from bakeoff.reference_engine.speculation.draft_lengths import DraftLengths
from bakeoff.reference_engine.speculation.ngram import NgramDrafter
from bakeoff.reference_engine.speculation.speculator import Speculator
from benchmarks.bars import Bars, model_argument
from benchmarks.speculation.prompts import COPYING, FAMILIES, prompts_of

NUM_TOKENS, MAX_ROWS = 8, 64
PLAIN, NGRAM, ORACLE, DRAFT, HEAD = "no drafts", "ngram", "oracle", "draft", "eagle"
LEARNED = (DRAFT, HEAD)


class Oracle(NgramDrafter):
    """Copies only tokens of the answer; arguments and results are those of `NgramDrafter`."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[tuple[int, ...], list[int]] = {}  # by prompt

    def draft(self, request: Request, num_tokens: int) -> tuple[Sequence[int], int]:  # noqa: D102
        tokens = request.token_ids
        answer = self.answers[tuple(tokens[: request.prompt_len])]
        rest = answer[request.num_output :][:num_tokens]
        places = (place for place, token in enumerate(tokens[:-1], start=1) if token == tokens[-1])
        sequence = tokens + rest  # a copy may continue into itself
        return max((_common_prefix(sequence[place:], rest) for place in places), key=len, default=[]), 0

    def free(self, request_ids: Iterable[str]) -> None:
        """Keep the answers."""


class Counts:
    """Counts the drafts that an engine verifies and accepts."""

    def __init__(self, llm: LLM) -> None:
        self._drafted = self._accepted = 0
        self._step, llm.engine.step = llm.engine.step, self._counted

    def _counted(self) -> StepReport:
        report = self._step()
        self._drafted += sum(report.drafted)
        self._accepted += sum(report.accepted)
        return report

    def take(self) -> float:
        """Share that was accepted since the last call."""
        share = self._accepted / max(1, self._drafted)
        self._drafted = self._accepted = 0
        return share


def _common_prefix(tokens: Sequence[int], answer: Sequence[int]) -> Sequence[int]:
    pairs = enumerate(zip(tokens, answer, strict=False))
    return tokens[: next((place for place, (a, b) in pairs if a != b), min(len(tokens), len(answer)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--draft", help="checkpoint folder of a draft model")
    parser.add_argument("--head", help="folder of an EAGLE head")
    parser.add_argument("--draft-tokens", type=int, default=3, help="of the draft model and of the head")
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--prompts", type=int, default=4, help="of each family")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    oracle = Oracle()
    settings = {PLAIN: "", NGRAM: f"ngram:{NUM_TOKENS}", ORACLE: f"ngram:{NUM_TOKENS}"}
    if options.draft:
        settings[DRAFT] = f"draft:{options.draft_tokens}:{options.draft}"
    if options.head:
        settings[HEAD] = f"eagle:{options.draft_tokens}:{options.head}"
    llms = {
        name: LLM(options.model, dtype=options.dtype, max_num_seqs=8, speculation=text)
        for name, text in settings.items()
    }
    llms[ORACLE].engine.core._speculator = Speculator(DraftLengths(NUM_TOKENS), MAX_ROWS, oracle)  # noqa: SLF001
    counts = {name: Counts(llms[name]) for name in LEARNED if name in llms}
    params = SamplingParams(max_tokens=options.tokens, temperature=0.0)
    bars = Bars()
    print(
        f"{'family':<14}{'s a prompt':>11}"
        + "".join(f"{name:>9}" for name in settings if name != PLAIN)
        + "  (speed-up)"
        + "".join(f"{name:>9}" for name in LEARNED if name in settings)
        + ("  (accepted)" if options.draft or options.head else "")
    )
    for family in options.families:
        prompts = prompts_of(llms[PLAIN].tokenizer, family, options.prompts)
        for prompt in prompts:
            oracle.answers[tuple(prompt)] = generate(llms[PLAIN].engine, [prompt], [params])[0]
        times: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in llms}
        for _ in range(options.repeats):
            for number, prompt in enumerate(prompts):
                for name, llm in llms.items():
                    began = time.perf_counter()
                    generate(llm.engine, [prompt], [params])
                    times[name][number].append(time.perf_counter() - began)
        medians = {name: sum(map(statistics.median, prompt_times)) for name, prompt_times in times.items()}
        speed_ups = {name: medians[PLAIN] / median for name, median in medians.items() if name != PLAIN}
        print(
            f"{family:<14}{medians[PLAIN] / len(prompts):>11.2f}"
            + "".join(f"{ratio:>9.2f}" for ratio in speed_ups.values())
            + " " * 12
            + "".join(f"{count.take():>9.0%}" for count in counts.values()),
            flush=True,
        )
        label = family.replace("-", "_")
        bars.add(f"{label}_ngram_speed_up", speed_ups[NGRAM], ">=", 0.95)
        if family in COPYING:
            bars.add(f"{label}_ngram_over_oracle", speed_ups[NGRAM] / speed_ups[ORACLE], ">=", 0.8)
        if options.draft:
            bars.add(f"{label}_draft_speed_up", speed_ups[DRAFT], ">=", 1.2 if family == "chat" else 0.95)
    bars.finish()


if __name__ == "__main__":
    main()
