import json
import shutil

import pytest
import torch

from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.errors import CheckpointError, RequestError
from bakeoff.reference_engine.loading.chat_template import ChatTemplate
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory, read_config


@pytest.fixture
def copy(checkpoint_dir, tmp_path):
    return shutil.copytree(checkpoint_dir, tmp_path / "copy")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_directory_opens_whole(checkpoint_dir, hf_model):
    checkpoint = open_checkpoint(checkpoint_dir)
    assert checkpoint.config.num_hidden_layers == 2
    assert checkpoint.eos_token_ids == {2}
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(checkpoint.weights.get(name), hf_model.state_dict()[name])


def test_shards_are_read_through_their_index(tmp_path, hf_model, save_checkpoint):
    save_checkpoint(tmp_path, hf_model, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    weights = SafetensorsDirectory(tmp_path)
    for name in weights.names():
        assert torch.equal(weights.get(name), hf_model.state_dict()[name])
    first = next(tmp_path.glob("*.safetensors"))
    first.unlink()
    with pytest.raises(CheckpointError, match=rf"{first.name} is listed in model.safetensors.index.json but missing"):
        SafetensorsDirectory(tmp_path)


def test_generation_config_names_more_ends_of_sequence(copy):
    edit(copy / "generation_config.json", eos_token_id=[0, 2])
    assert read_config(copy).eos_token_ids == (0, 2)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "contains no config.json"),
        (lambda d: (d / "config.json").write_text("{"), "is not valid JSON"),
        (lambda d: (d / "config.json").write_text("[]"), "does not hold a JSON object"),
        (lambda d: (d / "model.safetensors").unlink(), r"no \*\.safetensors file"),
        (lambda d: (d / "model.safetensors").write_bytes(b"\x10" + b"\0" * 40), "damaged or cut short"),
        (lambda d: (d / "tokenizer.json").unlink(), "only checkpoints with a fast tokenizer"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), "cannot be parsed"),
        (lambda d: edit(d / "tokenizer_config.json", chat_template="{% for %}"), "not valid Jinja"),
        (
            lambda d: edit(d / "tokenizer_config.json", chat_template=[{"name": "default"}]),
            "chat_template must be text",
        ),
        (lambda d: edit(d / "tokenizer_config.json", chat_template=7), "chat_template must be text"),
        (lambda d: edit(d / "tokenizer_config.json", bos_token=5), "bos_token must be text"),
        (lambda d: edit(d / "tokenizer_config.json", eos_token={"text": "x"}), "eos_token must be text"),
        (lambda d: (d / "tokenizer_config.json").write_text("[" * 100_000), "is not valid JSON"),
        (lambda d: (d / "chat_template.jinja").write_bytes(b"\xff"), "is not UTF-8"),
    ],
)
def test_each_damage_is_one_clear_line(copy, break_it, message):
    break_it(copy)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(copy)
    assert "\n" not in str(caught.value)


def test_cut_safetensors_are_named_with_their_size(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: .*\({file.stat().st_size} bytes"):
        open_checkpoint(copy)


def test_a_template_file_and_a_template_list_are_found(copy):
    edit(copy / "tokenizer_config.json", chat_template=[{"name": "default", "template": "listed"}])
    assert open_checkpoint(copy).tokenizer.render_chat([]) == "listed"
    (copy / "chat_template.jinja").write_text("from a file")
    assert open_checkpoint(copy).tokenizer.render_chat([]) == "from a file"


def test_without_a_template_chat_points_to_completions(copy):
    edit(copy / "tokenizer_config.json", chat_template=None)
    tokenizer = open_checkpoint(copy).tokenizer
    assert tokenizer.chat_template is None
    with pytest.raises(RequestError, match="use /v1/completions"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_templates_see_special_tokens_and_what_the_caller_adds():
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}{{ mood }}", {"bos_token": "<s>"})
    assert template.render([{"content": "hi"}], mood="!") == "<s>hi!"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  x\n{% endif %}\n", "  x\n"),
        ("{{ {'ü': '<b>'} | tojson }}", '{"ü": "<b>"}'),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_templates_behave_as_in_transformers(source, expected):
    assert ChatTemplate(source, {}).render([]) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_a_template_that_refuses_or_misbehaves_is_a_request_error(source):
    with pytest.raises(RequestError, match="the chat template refuses"):
        ChatTemplate(source, {}).render([{"content": "x"}])


def test_a_text_is_read_with_its_own_line_ends(tmp_path):
    (tmp_path / "text").write_bytes("ä\r\nb\n".encode())
    assert read_text(tmp_path / "text") == "ä\r\nb\n"
