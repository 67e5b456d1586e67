"""Chat templates get what Transformers gives them, and what they raise is one line that names the file."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads import NoTokenizer, Tokenizer
from bakeoff.workloads.chat_template import ChatTemplate
from bakeoff.workloads.errors import BadTokenizer

ASKED = [{"role": "user", "content": "Why <b>?"}]


def rendered(template: Any, folder: Path, **config: Any) -> str:
    return ChatTemplate(folder, {"chat_template": template, **config}).render(ASKED)


def test_it_has_the_functions_of_transformers(tmp_path: Path) -> None:
    assert rendered("{{ strftime_now('%Y') }}", tmp_path) == time.strftime("%Y")
    assert rendered("{{ {'b': '<é>', 'a': 1} | tojson }}", tmp_path) == '{"b": "<é>", "a": 1}'
    assert rendered("{{ messages | tojson(indent=1) }}", tmp_path) == json.dumps(ASKED, indent=1)
    assert rendered("{% generation %}{{ messages[0].role }}{% endgeneration %}!", tmp_path) == "user!"
    assert rendered("{% for m in messages %}{% break %}{% endfor %}x", tmp_path) == "x"


def test_variables_that_are_none_and_tokens_that_are_absent_can_be_tested(tmp_path: Path) -> None:
    assert rendered("{{ tools is none }} {{ documents is none }} [{{ bos_token }}]", tmp_path) == "True True []"
    assert (
        rendered("{{ bos_token }}{{ eos_token }}", tmp_path, bos_token="<s>", eos_token={"content": "</s>"})
        == "<s></s>"
    )
    assert rendered("{{ add_generation_prompt }}", tmp_path) == "True"


def test_of_several_the_default_is_used(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert rendered(named, tmp_path) == "plain"
    with pytest.raises(BadTokenizer, match="several chat templates and none is called default: tool_use; write"):
        rendered(named[:1], tmp_path)


def test_files_of_their_own_win(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert ChatTemplate(tmp_path, {}).render(ASKED) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert rendered("config", tmp_path) == "jinja"
    with pytest.raises(NoTokenizer, match="has no chat template; use a workload that sends completions"):
        ChatTemplate(tmp_path / "nowhere", {})


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('only\nassistants') }}", "only assistants"),
        ("{% if %}", "Expected an expression"),
        ("{{ nothing.of.it }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% for i in range(9999999) %}{% endfor %}", "Range too big"),
    ],
)
def test_whatever_it_raises_is_one_line(tmp_path: Path, template: str, reason: str) -> None:
    with pytest.raises(BadTokenizer) as raised:
        rendered(template, tmp_path)
    assert str(raised.value).startswith(f"the chat template of {tmp_path / 'tokenizer_config.json'} fails: ")
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "run git lfs pull"),
        ("{}", "is not a tokenizer: "),
    ],
)
def test_a_file_that_is_no_tokenizer_is_one_line(tmp_path: Path, content: str, advice: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BadTokenizer) as raised:
        Tokenizer(tmp_path)
    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_configuration_that_is_no_json_is_one_line(small: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(small._tokenizer.to_str())
    (tmp_path / "tokenizer_config.json").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(BadTokenizer, match=r"tokenizer_config\.json is not JSON: .*; it is the pointer"):
        Tokenizer(tmp_path).render_chat(ASKED)
