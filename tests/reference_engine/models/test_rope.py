"""Rotations that depend on the length of the sequence, against those of Transformers at one length."""

import pytest
import torch
import transformers as hf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.engine.resolution import cache_layout
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.models.rope import RotaryTable, scaled_frequencies
from bakeoff.reference_engine.offline import load_engine
from bakeoff.reference_engine.tools.evaluator import Sample, Scorer
from tests.reference_engine.models.tiny_families import COMMON, LONGROPE, VOCAB_SIZE, answers, engine_config

CPU = torch.device("cpu")
TRAINED, LONGEST = 64, 150  # tokens
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 3.0}
LENGTHS = {"dynamic": ("Llama", {"max_position_embeddings": TRAINED, "rope_parameters": DYNAMIC})}
LENGTHS["longrope"] = (
    "Phi3",
    {"max_position_embeddings": 256, "original_max_position_embeddings": TRAINED, "rope_parameters": LONGROPE},
)
EXACT = {"rtol": 1e-6, "atol": 0.0}


def config_of(kind, **more):
    family, changes = LENGTHS[kind]
    rope = changes["rope_parameters"] | more
    return getattr(hf, f"{family}Config")(**COMMON | changes | {"rope_parameters": rope})


@pytest.fixture(scope="module", params=LENGTHS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def reference_model(kind):
    torch.manual_seed(11)
    return getattr(hf, f"{LENGTHS[kind][0]}ForCausalLM")(config_of(kind)).eval()


@pytest.fixture(scope="module")
def directory(reference_model, save_checkpoint, tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("rope"), reference_model)


def tokens_of(length, seed=0):
    return torch.randint(3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("length", [1, TRAINED, TRAINED + 1, LONGEST, 256])
@pytest.mark.parametrize("more", [{}, {"factor": 2.5}])
def test_frequencies_and_attention_factor_are_those_of_transformers(kind, length, more):
    config = config_of(kind, **more)
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, CPU, seq_len=length)
    own_config = config_from_hf(config.to_dict(), "config.json")
    assert own_config.rope_scaling.attention_factor == pytest.approx(factor, rel=1e-6)
    frequencies = scaled_frequencies(own_config.head_dim, own_config.rope_theta, own_config.rope_scaling, length)
    torch.testing.assert_close(frequencies, expected, **EXACT)


def test_vectors_are_stretched_by_the_attention_factor():
    scaling = config_from_hf(config_of("longrope", attention_factor=1.5).to_dict(), "x").rope_scaling
    table = RotaryTable(16, 500.0, scaling, max_positions=8, dtype=torch.float32, device=CPU)
    cos, _ = table.at(torch.tensor([0]))
    assert cos.tolist() == [[[1.5] * 16]]


@pytest.mark.parametrize("length", [TRAINED, LONGEST])
@torch.inference_mode()
def test_logits_equal_transformers_up_to_the_trained_length_and_beyond(reference_model, directory, length):
    weights, prompt = SafetensorsDirectory(directory), tokens_of(length)
    model = build_model(weights.config, weights, max_positions=length, dtype=torch.float32, device=CPU)
    layout = cache_layout(weights.config)
    store = allocate_storage(layout, num_blocks=[16], block_size=16, dtype=torch.float32, device=CPU)
    step = TorchAttention(store).begin_step([Span([list(range(16))], 0, length)])
    rows = torch.arange(length)
    expected = reference_model(input_ids=torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(model.forward(torch.tensor(prompt), rows, step, rows), expected, atol=5e-5, rtol=1e-5)


def test_answers_depend_neither_on_longer_requests_nor_on_the_prefix_cache(directory):
    prompts = [tokens_of(20), tokens_of(20) + tokens_of(100, seed=1), tokens_of(60, seed=2)]
    changes = {"max_model_len": LONGEST, "block_size": 4}
    alone = [answers(load_engine(engine_config(directory, **changes)), [prompt], 12)[0][0] for prompt in prompts]
    engine = load_engine(engine_config(directory, **changes))
    for _ in range(2):
        outputs, counts = answers(engine, prompts, 12)
        assert outputs == alone
    assert counts["cached_tokens"] > 100


def test_answers_are_scored_at_their_own_length(reference_model, directory, greedy):
    scorer = Scorer(open_checkpoint(directory), "float32", "cpu")
    for length in (TRAINED - 8, scorer._config.max_length - 1, TRAINED - 8):
        prompt = tokens_of(length)
        (token,), _ = greedy(reference_model, prompt, 1)
        score = scorer.score(Sample(id="a", prompt_ids=prompt, output_ids=[token]))
        assert (score.agreement, score.max_regret) == (1.0, 0.0)
