"""The tokenizer counts as the engine counts, and renders the chat template as Transformers does."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken

from bakeoff.workloads import NoTokenizer, Tokenizer
from bakeoff.workloads.errors import BadTokenizer
from tests.workloads.small_tokenizers import LESSON, SPECIAL, checkpoint, trained

QUESTION = [{"role": "user", "content": "Why?"}]


def test_plain_text_is_counted_without_the_special_tokens_that_the_file_would_add(small: Tokenizer) -> None:
    text = "The lighthouse keeper writes in 2024."
    assert len(trained().encode(text).ids) == small.count(text) + 1, "the file's post-processor adds one"
    assert small.decode(small.encode(text)) == text
    assert small.count("") == 0


def test_a_prompt_begins_with_what_the_model_puts_before_every_text(small: Tokenizer) -> None:
    assert small.encode_prompt("the") == trained().encode("the").ids
    assert small.decode(small.encode_prompt("the")) == "<|endoftext|>the"
    assert small.encode_prompt("") == small.encode("<|endoftext|>")


def test_special_tokens_stand_for_themselves_longest_first(small: Tokenizer) -> None:
    assert small.special_tokens == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert {small.decode([token]) for token in small.special_ids} == set(small.special_tokens)


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("<|im_end|>", special=True, rstrip=True),
        AddedToken("<|im_end|>", special=True, lstrip=True),
        AddedToken("<|im_end|>", special=True, single_word=True),
    ],
    ids=["rstrip", "lstrip", "single_word"],
)
def test_special_tokens_that_depend_on_their_neighbours_are_not_relied_on(tmp_path: Path, token: AddedToken) -> None:
    inner = trained()
    inner.add_special_tokens([token])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.special_tokens == ()
    assert tokenizer.special_ids == frozenset()
    assert tokenizer.count("<|im_start|>") == 1, "they are tokens all the same"


def test_special_tokens_in_a_text_are_single_tokens_and_survive_decoding(small: Tokenizer) -> None:
    assert small.count("<|im_start|>") == 1
    assert small.decode(small.encode("<|im_start|>user")) == "<|im_start|>user"


def test_the_vocabulary_leaves_special_tokens_out(small: Tokenizer) -> None:
    assert not set(SPECIAL) & set(small.vocabulary)
    assert len(small.vocabulary) == trained().get_vocab_size() - len(SPECIAL)
    assert small.decode([small.vocabulary["Ġthe"]]) == " the"


def test_digits_are_tokens_of_their_own_only_where_the_file_says_so(small: Tokenizer, digits: Tokenizer) -> None:
    assert digits.count("2024") == 4
    assert small.count("2024") < 4


def test_truncation_and_padding_stored_in_the_file_do_not_falsify_counts(tmp_path: Path) -> None:
    inner = trained()
    inner.enable_truncation(max_length=16)
    inner.enable_padding(length=64)
    inner.save(str(tmp_path / "tokenizer.json"))
    honest = trained().encode(LESSON, add_special_tokens=False).ids
    assert Tokenizer(tmp_path).encode(LESSON) == honest
    assert Tokenizer(tmp_path).count("the") == 1


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoTokenizer, match=r"has no tokenizer\.json; give the folder of the model's tokenizer$"):
        Tokenizer(tmp_path)


def test_the_chat_template_is_rendered_ready_for_the_answer(small: Tokenizer) -> None:
    assert small.render_chat(QUESTION) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def test_a_separate_template_file_goes_before_the_one_in_the_config(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    assert Tokenizer(tmp_path).render_chat(QUESTION) == "<|im_start|>Why?<|im_end|>"


def test_templates_are_read_with_the_rules_of_transformers(tmp_path: Path) -> None:
    """Blocks remove the blanks of their line, and loops support break and continue."""
    template = "  {% for message in messages %}\n{{ message.content }}\n    {% break %}\n  {% endfor %}\nend"
    tokenizer = Tokenizer(checkpoint(tmp_path, template=template))
    assert tokenizer.render_chat([*QUESTION, *QUESTION]) == "Why?\nend"


def test_special_tokens_that_the_config_leaves_out_are_empty(tmp_path: Path) -> None:
    checkpoint(tmp_path, template="[{{ bos_token }}]{{ messages[0].content }}", bos_token=None)
    assert Tokenizer(tmp_path).render_chat(QUESTION) == "[]Why?"


@pytest.mark.parametrize("template", [None, 3])
def test_a_model_without_a_chat_template_is_told_what_to_use_instead(tmp_path: Path, template: object) -> None:
    tokenizer = Tokenizer(checkpoint(tmp_path, template=None, chat_template=template))
    with pytest.raises(NoTokenizer, match="has no chat template; use a workload that sends completions"):
        tokenizer.render_chat(QUESTION)


def test_a_bare_tokenizer_file_counts_but_has_no_template(tmp_path: Path) -> None:
    trained().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.count("the") == 1
    with pytest.raises(NoTokenizer, match="has no chat template"):
        tokenizer.render_chat(QUESTION)


def test_a_hostile_template_is_kept_in_its_sandbox(tmp_path: Path) -> None:
    tokenizer = Tokenizer(checkpoint(tmp_path, template="{{ ''.__class__.__mro__[1].__subclasses__() }}"))
    with pytest.raises(BadTokenizer, match="access to attribute '__class__' of 'str' object is unsafe"):
        tokenizer.render_chat(QUESTION)


@pytest.mark.model
def test_the_real_tokenizer_counts_as_the_library_does(smollm2: Tokenizer) -> None:
    file = smollm2.folder / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(file))
    assert smollm2.encode(LESSON) == library.encode(LESSON, add_special_tokens=False).ids
    assert smollm2.count("2024") == 4
    assert smollm2.render_chat(QUESTION).endswith("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
