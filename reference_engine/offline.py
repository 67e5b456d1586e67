"""The engine without HTTP: for scripts, benchmarks and tests."""

from collections.abc import Sequence
from pathlib import Path

from reference_engine.assembly import build_engine, resolve_config
from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.loading.checkpoint import open_checkpoint
from reference_engine.request import Request, SamplingParams


def load_engine(config: EngineConfig) -> Engine:
    """Opens `config.model` and builds its engine.

    Raises:
        CheckpointError, ConfigError: the model or the settings are at fault.
    """
    checkpoint = open_checkpoint(Path(config.model))
    return build_engine(resolve_config(config, checkpoint.config), checkpoint)


def generate(engine: Engine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[int]]:
    """Output token ids of each prompt, all queued at once.

    Args:
        engine: idle.
        prompts: token ids.
        params: one per prompt.

    Raises:
        RequestError: a prompt that can never be computed; none is then.
    """
    for prompt, wanted in zip(prompts, params, strict=True):
        engine.limits.check(prompt, wanted.max_tokens)
    for number, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
        engine.add(Request(str(number), list(prompt), wanted))
    outputs: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for output in engine.step().outputs:
            outputs[int(output.request_id)].append(output.token.token_id)
    return outputs
