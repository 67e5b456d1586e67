"""gpt-oss' checkpoints with experts in MXFP4, as they are published, against a decoder of our own for the tests."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from bakeoff.reference_engine.engine.memory_estimate import estimate_memory
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.offline import load_engine
from tests.reference_engine.models.tiny_families import answers, engine_config, make_family

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
PROMPTS = [list(range(3, 60)), [7, 8, 9]]


def packed(stack):
    """A stack [experts, inputs, outputs] of weights as blocks and scales, and the weights that those mean."""
    generator = torch.Generator().manual_seed(stack.shape[1])
    experts, inputs, outputs = stack.shape
    codes = torch.randint(16, (experts, outputs, inputs), generator=generator)
    exponents = torch.randint(121, 126, (experts, outputs, inputs // 32), generator=generator)
    meant = torch.tensor(E2M1)[codes] * (2.0 ** (exponents - 127)).repeat_interleave(32, dim=2)
    halves = codes.view(experts, outputs, inputs // 32, 16, 2)
    blocks = halves[..., 0] + 16 * halves[..., 1]
    return blocks.to(torch.uint8), exponents.to(torch.uint8), meant.transpose(1, 2).contiguous()


@pytest.fixture(scope="module")
def published(tmp_path_factory, save_checkpoint):
    """A model and its checkpoint."""
    directory, model = tmp_path_factory.mktemp("gpt_oss"), make_family("gpt_oss")
    save_checkpoint(directory, model)
    tensors = load_file(directory / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"], meant = packed(tensors.pop(name))
        model.get_parameter(name).data.copy_(meant)
    save_file(tensors, directory / "model.safetensors")
    file = directory / "config.json"
    plain = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quantised = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": plain}}
    file.write_text(json.dumps(json.loads(file.read_text()) | quantised))
    return directory, model


@pytest.mark.parametrize("quantization", ["none", "auto", "stored"])
def test_greedy_tokens_equal_transformers_with_the_decoded_weights(published, greedy, quantization):
    directory, model = published
    outputs, _ = answers(load_engine(engine_config(directory, quantization=quantization)), PROMPTS, 8)
    assert outputs == [greedy(model, prompt, 8)[0] for prompt in PROMPTS]


def test_two_ranks_give_the_same_tokens(published, greedy, ranks_as_threads):
    directory, model = published
    # 96 inputs of an expert are three blocks, which two ranks cannot share: each decodes its part.
    engine = load_engine(engine_config(directory, quantization="stored", tensor_parallel_size=2))
    outputs, _ = answers(engine, PROMPTS, 8)
    engine.close()
    assert outputs == [greedy(model, prompt, 8)[0] for prompt in PROMPTS]


def test_the_estimate_of_memory_counts_four_bits_for_each_weight_of_an_expert(published):
    checkpoint = open_checkpoint(published[0])
    weights = {
        quantization: estimate_memory(
            resolve_config(engine_config(published[0], quantization=quantization), checkpoint.config),
            checkpoint,
            torch.device("cpu"),
        ).weights
        for quantization in ("stored", "none")
    }
    experts = 4 * 6 * 3 * 64 * 96
    assert weights["none"] - weights["stored"] == pytest.approx(experts * (4 - 4.25 / 8), rel=0.01)


def test_weights_can_be_made_up(published, tmp_path):
    (tmp_path / "config.json").write_text((published[0] / "config.json").read_text())
    outputs, _ = answers(load_engine(engine_config(tmp_path, load_format="dummy")), PROMPTS, 4)
    assert [len(tokens) for tokens in outputs] == [4, 4]


def test_blocks_that_do_not_fit_to_their_scales_are_refused(published, tmp_path):
    tensors = load_file(published[0] / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj_scales"))
    tensors[name] = tensors[name][:, :, :-1].contiguous()
    for file in published[0].iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="do not fit to scales"):
        load_engine(engine_config(tmp_path, quantization="stored"))


def test_mxfp4_of_another_family_is_refused(published, tmp_path):
    raw = json.loads((published[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="model_type 'llama' is not supported, only 'gpt_oss' is"):
        open_checkpoint(tmp_path, "dummy")
