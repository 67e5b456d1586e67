"""Short prompts behind long caches, as agents send them: one step beside a decode step of the same length.

Run by ``make bench-gpu`` on a machine with an H200. The model has Llama 3.1 8B's shapes and random weights in bf16.
"""

import dataclasses

import torch

from bakeoff.reference_engine.attention.triton_backend import TritonAttention
from bakeoff.reference_engine.engine.graph_execution import GraphExecutor
from benchmarks.bars import Bars
from benchmarks.gpu.parts.model import BLOCK_SIZE, LLAMA_8B, batch_of, random_model, storage_for, tables_for
from benchmarks.gpu.parts.timing import step_ms

CONTEXTS = (2048, 16_384, 32_768)
PROMPTS = (16, 64, 256, 2048)
SHORT, GOAL, JUDGED = 16, 1.3, CONTEXTS[1:]


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(LLAMA_8B, max_position_embeddings=40_960)
    storage = storage_for(config, 40_960 // BLOCK_SIZE)
    attention = TritonAttention(storage)
    executor = GraphExecutor(random_model(config), attention, max_rows=8, max_tokens=config.max_position_embeddings)
    bars = Bars()
    print(f"{'cached tokens':>13}{'decode':>10}" + "".join(f"{f'{count} new':>12}" for count in PROMPTS) + "  ms")
    for context in CONTEXTS:
        tables = tables_for(1, context + PROMPTS[-1])
        decode_ms, _ = step_ms(executor, batch_of(tables, [(context - 1, 1)], [7]))
        prompt_ms = {
            count: step_ms(executor, batch_of(tables, [(context, count)], [7] * count))[0] for count in PROMPTS
        }
        print(f"{context:>13,}{decode_ms:>10.2f}" + "".join(f"{ms:>12.2f}" for ms in prompt_ms.values()), flush=True)
        if context in JUDGED:
            bars.add(f"{SHORT}_tokens_behind_{context}_over_a_decode", prompt_ms[SHORT] / decode_ms, "<=", GOAL)
    bars.finish()


if __name__ == "__main__":
    main()
