"""Makes a draft model and an EAGLE head for a chat model, best on a GPU: some minutes on an H200.

    python -m benchmarks.drafts --model FOLDER --out FOLDER

The model generates the prompts itself: it continues the text that begins a user's turn (Magpie, Xu et al., arXiv
2406.08464). The script writes ``prompts.txt``, ``pruned``, ``draft`` and ``head`` to ``--out``. After an interruption,
the same command continues.
"""

import argparse
from pathlib import Path

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.tools.distillation import Distillation, distil
from bakeoff.reference_engine.tools.head_training import HeadTraining, train_head
from bakeoff.reference_engine.tools.pruning import Pruning, prune

PROMPT_TOKENS = 128
BATCH_SIZE = 256


def beginning_of_turn(tokenizer: Tokenizer) -> list[int]:
    """Tokens of a chat before the text of the user's message."""
    marker = "marker"
    chat = tokenizer.render_chat([{"role": "user", "content": marker}])
    return tokenizer.encode(chat[: chat.rindex(marker)], add_special_tokens=False)


def write_prompts(model: Path, count: int, file: Path) -> None:
    """Write a file of distinct one-line prompts, sampled from the model."""
    lines: dict[str, None] = {}
    blocks = BATCH_SIZE * PROMPT_TOKENS // 8  # twice PROMPT_TOKENS each: a prefix and a prompt
    with LLM(model, max_model_len=2 * PROMPT_TOKENS, max_num_seqs=BATCH_SIZE, num_blocks=blocks) as llm:
        prefix = beginning_of_turn(llm.tokenizer)
        seed = 0
        while len(lines) < count:
            params = [
                SamplingParams(max_tokens=PROMPT_TOKENS, temperature=1.0, top_p=0.95, seed=seed + index)
                for index in range(BATCH_SIZE)
            ]
            for answer in llm.generate([prefix] * BATCH_SIZE, params):
                if line := " ".join(answer.completions[0].text.split()):
                    lines[line] = None
            seed += BATCH_SIZE
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=20_000)
    parser.add_argument("--layers", type=int, default=4, help="of the draft model")
    parser.add_argument("--rows", type=int, default=8192, help="tokens that are drafted")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--text-tokens", type=int, default=2_000_000)
    parser.add_argument(
        "--temperature", type=float, default=0.7, help="of the teacher's answers; users mostly sample low"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", choices=("prompts", "draft", "head"), nargs="+", default=["prompts", "draft", "head"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prompts, pruned = options.out / "prompts.txt", options.out / "pruned"
    shared = {
        "steps": options.steps,
        "batch_tokens": options.batch_tokens,
        "learning_rate": options.learning_rate,
        "text_tokens": options.text_tokens,
        "temperature": options.temperature,
        "save_steps": 250,
    }

    def say(line: str) -> None:
        print(line, flush=True)

    if "prompts" in options.only and not prompts.exists():
        write_prompts(options.model, options.prompts, prompts)
    if "draft" in options.only:
        if not pruned.exists():
            prune(options.model, pruned, Pruning(layers=options.layers), text=prompts, device=options.device, say=say)
        settings = Distillation(**shared, trim_vocabulary=options.rows)
        distil(options.model, pruned, options.out / "draft", settings, text=prompts, device=options.device, say=say)
    if "head" in options.only:
        settings = HeadTraining(**shared, draft_vocab=options.rows)
        train_head(options.model, options.out / "head", settings, text=prompts, device=options.device, say=say)


if __name__ == "__main__":
    main()
