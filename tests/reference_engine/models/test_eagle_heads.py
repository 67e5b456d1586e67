"""Drafts of EAGLE-3 heads change no token; a head drafts as it was trained, and other engines can read its files."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.core.speculation_settings import Speculation
from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.loading.safetensors import SafetensorsFiles
from bakeoff.reference_engine.models.eagle import default_taps, draft_tokens, read_config
from bakeoff.reference_engine.offline import LLM, load_engine
from bakeoff.reference_engine.tools.head_model import TrainableHead
from bakeoff.reference_engine.tools.transformers_model import load_model
from tests.reference_engine.eagle_heads import random_head
from tests.reference_engine.speculation.test_speculation import CASES, PROMPTS, SAMPLING, answers

SOME_TOKENS = torch.arange(3, 260, 2)


@pytest.fixture(scope="module")
def heads(tmp_path_factory, checkpoint_dir):
    """Folders: a head of all tokens, one of some, and one that begins its residual stream with the normed vector."""
    folder = tmp_path_factory.mktemp("heads")
    return {
        "all": random_head(folder / "all", checkpoint_dir),
        "some": random_head(folder / "some", checkpoint_dir, tokens=SOME_TOKENS),
        "normed": random_head(folder / "normed", checkpoint_dir, norm_before_residual=True, taps=(2, 0)),
    }


@pytest.fixture
def drafts_of(monkeypatch):
    """`drafts_of(engine)`: make an engine record its drafts by request; returns that record."""

    def note(engine):
        drafter = engine.core._runner._draft_model
        plain, drafts = drafter.draft, {}

        def draft(step, copies):
            made, left = plain(step, copies)
            rest = iter([] if made is None else made.tolist())
            for chunk in step.chunks:
                if chunk.drafts:
                    num_known = len(chunk.request.token_ids)
                    drafts.setdefault(chunk.request.request_id, []).append(
                        (num_known, [next(rest) for _ in chunk.drafts])
                    )
            return made, left

        monkeypatch.setattr(drafter, "draft", draft)
        return drafts

    return note


FEW = {"sampling": [SAMPLING[number] for number in (0, 2, 5, 7, 11)], "prompts": PROMPTS[:5]}
"""Greedy, drawn, truncated, penalised and watermarked; `answers` adds a grammar."""


@pytest.mark.parametrize(("case", "head"), [(case, "some") for case in CASES] + [("small blocks", "all")])
def test_answers_are_those_without_drafts(tiny_engine, heads, case, head):
    expected, _ = answers(tiny_engine(**CASES[case]), **FEW)
    engine = tiny_engine(**CASES[case], speculation=f"eagle:3:{heads[head]}", adaptive_speculation=False)
    tokens, counts = answers(engine, **FEW)
    assert tokens == expected
    assert counts["drafted"] > 100
    assert (counts["preemptions"] > 0) is (case in {"preempted", "swapped"})
    assert not engine.core._runner._draft_model._followed


def test_siblings_and_cached_prompts_get_the_same_answers(tiny_engine, heads):
    settings = {"num_blocks": 60, "block_size": 4, "max_num_seqs": 64}
    expected, _ = answers(tiny_engine(**settings), **FEW, n=3)
    engine = tiny_engine(**settings, speculation=f"eagle:4:{heads['all']}", adaptive_speculation=False)
    for _ in range(2):
        assert answers(engine, **FEW, n=3)[0] == expected


def test_steps_in_flight_and_adaptive_lengths_give_the_same_answers(tiny_engine, heads):
    """States are held while nothing is drafted, and entered in between."""
    expected, _ = answers(tiny_engine(), **FEW)
    engine = tiny_engine(speculation=f"eagle:4:{heads['all']}")
    engine.core.overlap = True
    assert answers(engine, **FEW)[0] == expected


def test_a_head_proposes_the_same_alone_in_company_and_in_pieces(tiny_engine, heads, drafts_of):
    prompts = [[5 + (place * (number + 2)) % 11 for place in range(11 + number)] for number in range(3)]

    def drafted(chosen, **settings):
        engine = tiny_engine(speculation=f"eagle:3:{heads['some']}", adaptive_speculation=False, **settings)
        drafts = drafts_of(engine)
        for number in chosen:
            engine.add(Request(str(number), prompts[number], SamplingParams(max_tokens=20, temperature=0.0)))
        while engine.has_work:
            engine.step()
        return drafts

    alone = {name: places for number in range(3) for name, places in drafted([number]).items()}
    assert all(len(places) > 10 for places in alone.values())
    assert drafted(range(3)) == alone
    assert drafted(range(3), max_num_batched_tokens=8, max_num_seqs=4) == alone


@torch.inference_mode()
@pytest.mark.parametrize("name", ["all", "some", "normed"])
def test_a_head_drafts_as_it_is_trained(tiny_engine, checkpoint_dir, hf_model, heads, drafts_of, name):
    """The engine's chains over a paged cache are those of the module that is trained, whole texts at once."""
    engine = tiny_engine(speculation=f"eagle:3:{heads[name]}", adaptive_speculation=False, block_size=4)
    drafts, prompt = drafts_of(engine), [5, 9, 6, 11, 7, 200, 31]
    request = Request("a", prompt, SamplingParams(max_tokens=24, temperature=0.0))
    engine.add(request)
    while engine.has_work:
        engine.step()
    source = SafetensorsFiles(heads[name])
    config = read_config(json.loads((heads[name] / "config.json").read_text()), "there")
    head = TrainableHead(config, 0)
    head.load_state_dict({name: source.get(name) for name in source.names() if name not in ("d2t", "t2d")})
    tokens = draft_tokens(source, config, "there")
    compared = 0
    for num_known, drafted in drafts["a"]:
        text = request.token_ids[:num_known]
        for place, draft in enumerate(drafted):
            ids = torch.tensor([[*text, *drafted[:place]]])
            states = hf_model(input_ids=ids, output_hidden_states=True, use_cache=False)
            last = hf_states_behind_the_last_layer(hf_model, ids)
            chosen = [last if depth == 2 else states.hidden_states[depth] for depth in config.taps]
            outputs = head(torch.cat(chosen, dim=-1), hf_model.model.embed_tokens(ids), place + 1)[place]
            row = int(head.lm_head(outputs[0, num_known - 2]).argmax())
            assert draft == (row if tokens is None else int(tokens[row]))
            compared += 1
    assert compared > 40


def hf_states_behind_the_last_layer(model, ids):
    """Transformers returns them only after the norm."""
    states = []
    handle = model.model.norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0].clone()))
    model(input_ids=ids, use_cache=False)
    handle.remove()
    return states[0]


def test_residual_rejection_takes_its_drafts(tiny_engine, heads):
    engine = tiny_engine(speculation=f"eagle:2:{heads['some']}", ablation="residual_drafts", adaptive_speculation=False)
    _, counts = answers(engine, **FEW)
    assert 0 < counts["accepted"] < counts["drafted"]


# Files


def test_files_are_in_the_layout_of_speculators(heads, checkpoint_dir):
    """The names and fields that speculators 0.9 and vLLM read (transformers_utils/configs/speculators)."""
    config = json.loads((heads["some"] / "config.json").read_text())
    assert config["speculators_model_type"] == config["speculators_config"]["algorithm"] == "eagle3"
    (method,) = config["speculators_config"]["proposal_methods"]
    assert method["proposal_type"] == config["speculators_config"]["default_proposal_method"] == "greedy"
    assert method["speculative_tokens"] == 3
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": str(checkpoint_dir), "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["num_hidden_layers"], layer["head_dim"]) == ("llama", 1, 16)
    assert (config["draft_vocab_size"], layer["vocab_size"]) == (len(SOME_TOKENS), 266)
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert config["norm_before_residual"] is False
    tensors = load_file(heads["some"] / "model.safetensors")
    assert tensors["t2d"].dtype == torch.bool
    assert tensors["t2d"].nonzero()[:, 0].tolist() == SOME_TOKENS.tolist()
    assert tensors["d2t"].dtype == torch.int64
    assert (tensors["d2t"] + torch.arange(len(SOME_TOKENS))).tolist() == SOME_TOKENS.tolist()
    assert tensors["fc.weight"].shape == (64, 192)
    assert tensors["layers.0.self_attn.q_proj.weight"].shape == (64, 128)
    assert {"layers.0.hidden_norm.weight", "norm.weight", "lm_head.weight"} < tensors.keys()
    assert not {"d2t", "t2d"} & load_file(heads["all"] / "model.safetensors").keys()


def test_depths_are_those_of_vllm_unless_the_model_is_shallow():
    assert default_taps(30) == (2, 15, 27)
    assert default_taps(7) == (2, 3, 4)
    assert [default_taps(depth) for depth in (1, 2, 6)] == [(0, 1), (0, 1, 2), (0, 3, 6)]


DAMAGED = {
    "a missing tensor": ({"drop": ["norm.weight"]}, "tensor norm.weight is missing"),
    "a wrong shape": ({"reshape": ["fc.weight"]}, r"fc.weight is \[65, 192\], where .* imply \[64, 192\]"),
    "a map that is too long": ({"tokens": SOME_TOKENS, "draft_vocab_size": 128}, r"lm_head|d2t"),
    "a map to nowhere": ({"tokens": torch.tensor([3, 4, 4])}, "do not choose 3 of the 266 tokens"),
    "depths of another model": ({"taps": (0, 1, 3)}, "depths 0, 1, 3, the model has 2 layers"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_head_is_one_line(tiny_config, checkpoint_dir, tmp_path, case):
    settings, line = DAMAGED[case]
    head = random_head(tmp_path / "head", checkpoint_dir, **settings)
    with pytest.raises((CheckpointError, ConfigError), match=line) as caught:
        load_engine(tiny_config(speculation=f"eagle:3:{head}"))
    assert "\n" not in str(caught.value)


CONFIGS = {
    "speculators_model_type is 'mtp', not 'eagle3'": {"speculators_model_type": "mtp"},
    "norm_before_fc True is not supported": {"norm_before_fc": True},
    "num_hidden_layers 2 is not supported": {"transformer_layer_config": {"num_hidden_layers": 2}},
    "model_type 'qwen3' is not supported": {"transformer_layer_config": {"model_type": "qwen3"}},
    "a hidden size of 32, .* has 64": {"transformer_layer_config": {"hidden_size": 32}},
    "a vocabulary of 300, .* has 266": {"transformer_layer_config": {"vocab_size": 300}},
}


@pytest.mark.parametrize("line", CONFIGS)
def test_a_head_of_another_kind_or_model_is_refused(tiny_config, heads, tmp_path, line):
    config = json.loads((heads["all"] / "config.json").read_text())
    for name, value in CONFIGS[line].items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(heads["all"] / "model.safetensors")
    with pytest.raises((CheckpointError, ConfigError), match=line):
        load_engine(tiny_config(speculation=f"eagle:3:{tmp_path}"))


def test_what_a_head_cannot_do_is_refused(tiny_config, heads):
    for obstacle in ({"tensor_parallel_size": 2}, {"attention_window": 8}):
        with pytest.raises(ConfigError, match="--speculation eagle does not work with --"):
            tiny_config(speculation=f"eagle:3:{heads['all']}", **obstacle)
    with pytest.raises(ConfigError, match="eagle needs a head: eagle:TOKENS:FOLDER"):
        Speculation.parse("eagle:3")
    with pytest.raises(CheckpointError, match="no such folder"):
        load_engine(tiny_config(speculation="eagle:3:/no/such"))


def test_the_offline_engine_takes_a_dictionary(checkpoint_dir, heads):
    settings = {"dtype": "float32", "num_blocks": 64, "threads": 1}
    speculation = {"method": "eagle", "model": str(heads["all"]), "num_tokens": 4}
    greedy, answers = SamplingParams(max_tokens=9, temperature=0.0), []
    for given in ("", speculation):
        with LLM(checkpoint_dir, **settings, speculation=given) as llm:
            answers.append(llm.generate(["hello hello"], greedy))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("settings", [{"max_num_batched_tokens": 17, "max_num_seqs": 8}, {"quantization": "int8"}])
def test_prompts_are_scored_and_weights_quantised_beside_a_head(checkpoint_dir, heads, settings):
    settings = {"dtype": "float32", "num_blocks": 64, "threads": 1, "adaptive_speculation": False, **settings}
    asking, prompt = SamplingParams(max_tokens=9, temperature=0.0, prompt_logprobs=2), list(range(5, 75))
    answers = []
    for speculation in ("", f"eagle:3:{heads['some']}"):
        with LLM(checkpoint_dir, **settings, speculation=speculation) as llm:
            answers += llm.generate([prompt], asking)
    assert len(answers[0].prompt_logprobs) == len(prompt) - 1
    assert answers[0] == answers[1]


def test_an_embedding_of_its_own_is_read(tiny_engine, checkpoint_dir, heads, tmp_path, drafts_of):
    """The model's own embedding gives the same drafts, and another embedding gives different ones."""
    embedding = load_model(checkpoint_dir, torch.device("cpu")).get_input_embeddings().weight.detach()
    drafts = []
    for name, factor in (("shared", None), ("same", 1.0), ("other", -1.0)):
        folder = random_head(tmp_path / name, checkpoint_dir)
        if factor is not None:
            add_tensor(folder, "embed_tokens.weight", factor * embedding)
        engine = tiny_engine(speculation=f"eagle:3:{folder}", adaptive_speculation=False)
        drafts.append(drafts_of(engine))
        engine.add(Request("a", [5, 6, 7], SamplingParams(max_tokens=12, temperature=0.0)))
        while engine.has_work:
            engine.step()
    assert drafts[0] == drafts[1] != drafts[2]


def add_tensor(folder, name, tensor):
    file = folder / "model.safetensors"
    save_file({**load_file(file), name: tensor}, file, metadata={"format": "pt"})
