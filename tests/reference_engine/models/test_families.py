"""Every family agrees with Transformers: all logits of a long prompt, then greedy tokens through the engine."""

import random

import pytest
import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.engine.resolution import cache_layout
from bakeoff.reference_engine.kernels.cpu import TorchKernels
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.models import weights as weights_module
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.offline import load_engine
from tests.reference_engine.models.tiny_families import (
    FAMILIES,
    VOCAB_SIZE,
    WINDOW,
    answers,
    engine_config,
    make_family,
)
from tests.selection import sampled

LENGTH = 20  # tokens of an answer
EXCUSED = 1e-4  # between Transformers' two best log-probabilities


def prompts():
    """Long and short ones, some of which begin alike."""
    rng = random.Random(5)
    beginning = [rng.randrange(3, VOCAB_SIZE) for _ in range(3 * WINDOW)]
    tails = [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (2, 40, 1, 25, 7, 60)]
    return [beginning + tail if number % 2 else tail for number, tail in enumerate(tails)]


class Subject:
    def __init__(self, name, directory, save_checkpoint, greedy):
        self.reference_model = make_family(name)
        self.directory = save_checkpoint(directory, self.reference_model, max_shard_size="40KB")
        self.truths = [greedy(self.reference_model, prompt, LENGTH) for prompt in prompts()]

    @property
    def has_windows_only(self):
        """Whether all layers have windows: blocks that have left them come free again, and fewer are enough."""
        windows = SafetensorsDirectory(self.directory).config.windows
        return bool(windows) and None not in windows

    def assert_same(self, outputs, length=LENGTH):
        for tokens, (expected, margins) in zip(outputs, self.truths, strict=True):
            place = next((i for i in range(length) if tokens[i] != expected[i]), None)
            assert place is None or margins[place] <= EXCUSED

    @torch.inference_mode()
    def logits(self, prompt, dtype=torch.float32):
        """Ours, and those of Transformers in float32, [num_tokens, vocab_size]."""
        weights, cpu = SafetensorsDirectory(self.directory), torch.device("cpu")
        model = build_model(weights.config, weights, max_positions=256, dtype=dtype, device=cpu)
        layout = cache_layout(weights.config)
        groups = len(layout.groups)
        store = allocate_storage(layout, num_blocks=[16] * groups, block_size=16, dtype=dtype, device=cpu)
        step = TorchAttention(store).begin_step([Span([list(range(16))] * groups, 0, len(prompt))])
        rows = torch.arange(len(prompt))
        logits = model.forward(torch.tensor(prompt), rows, step, rows)
        return logits, self.reference_model(input_ids=torch.tensor([prompt])).logits[0]


@pytest.fixture(scope="module", params=FAMILIES)
def subject(request, tmp_path_factory, save_checkpoint, greedy):
    return Subject(request.param, tmp_path_factory.mktemp("family"), save_checkpoint, greedy)


@pytest.fixture(scope="module")
def long_prompt():
    rng = random.Random(6)
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(150)]


def test_the_checkpoint_is_in_several_files(subject):
    assert len(list(subject.directory.glob("*.safetensors"))) > 1


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "stock"])
def test_logits_of_a_prompt_longer_than_the_window_equal_transformers(subject, long_prompt, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(weights_module, "best_kernels", lambda device, dtype, **_: TorchKernels())
    logits, expected = subject.logits(long_prompt)
    torch.testing.assert_close(logits, expected, atol=5e-5, rtol=1e-5)


def test_in_bfloat16_logits_are_as_near_as_rounding_lets_them(subject, long_prompt):
    logits, expected = subject.logits(long_prompt, torch.bfloat16)
    assert logits.dtype == torch.bfloat16
    # Transformers' own are 0.02 to 0.22 away, the most where rounding tips a router's choice.
    assert (logits.float() - expected).norm() < 0.4 * expected.norm()


@pytest.mark.parametrize(
    ("size", "budget", "blocks", "fewest", "preemption"),
    sampled(
        [
            (16, 64, 16, 7, "recompute"),
            (4, 24, 36, 11, "recompute"),
            (1, 16, 140, 30, "recompute"),
            (4, 24, 36, 11, "swap"),
        ],
        [(4, 24, 36, 11, "swap")],
    ),
)
def test_greedy_tokens_equal_transformers_with_few_blocks_and_small_chunks(
    subject, size, budget, blocks, fewest, preemption
):
    settings = {"block_size": size, "max_num_batched_tokens": budget, "preemption": preemption}
    settings["num_blocks"] = fewest if subject.has_windows_only else blocks
    engine = load_engine(engine_config(subject.directory, **settings))
    outputs, counts = answers(engine, prompts(), LENGTH)
    subject.assert_same(outputs)
    assert counts["preemptions"] > 0
    assert (counts["swaps"] > 0) == (preemption == "swap")


def test_greedy_tokens_of_two_ranks_equal_transformers(subject, ranks_as_threads):
    settings = {"block_size": 4, "max_num_batched_tokens": 24, "preemption": "swap", "tensor_parallel_size": 2}
    # Each step waits for the other rank, so answers are as long as they must be for a swap.
    settings["num_blocks"], length = (11, LENGTH) if subject.has_windows_only else (36, LENGTH // 2)
    engine = load_engine(engine_config(subject.directory, **settings))
    outputs, counts = answers(engine, prompts(), length)
    engine.close()
    subject.assert_same(outputs, length)
    assert counts["swaps"] > 0


def test_greedy_tokens_equal_transformers_behind_beginnings_that_are_known(subject):
    engine = load_engine(engine_config(subject.directory, block_size=4))
    for _ in range(2):
        outputs, counts = answers(engine, prompts(), LENGTH)
        subject.assert_same(outputs)
    assert counts["cached_tokens"] > 100
