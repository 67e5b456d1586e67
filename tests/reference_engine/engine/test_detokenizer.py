import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.reference_engine.engine.detokenizer import Detokenizer, StopMatcher
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def tokenizer(checkpoint_dir):
    return open_checkpoint(checkpoint_dir).tokenizer


def pieces(tokenizer, ids, **settings):
    detokenizer = Detokenizer(tokenizer, **settings)
    return [detokenizer.push(token) for token in ids] + [detokenizer.flush()]


def test_a_character_of_four_tokens_comes_out_whole_with_its_last(tokenizer):
    ids = tokenizer.encode("a😀b")
    assert len(ids) == 6
    assert pieces(tokenizer, ids) == ["a", "", "", "", "😀", "b", ""]


def test_a_cut_character_comes_out_broken_only_at_the_end(tokenizer):
    ids = tokenizer.encode("a😀")[:-1]
    assert pieces(tokenizer, ids)[:-1] == ["a", "", "", ""]
    assert set(pieces(tokenizer, ids)[-1]) == {"\ufffd"}


def test_bytes_that_can_be_no_character_do_not_hold_the_text_for_ever(tokenizer):
    stray = tokenizer.encode("😀")[-1]
    out = pieces(tokenizer, [stray] * 5 + tokenizer.encode("ok"))
    assert out == ["", "", "", "\ufffd", "\ufffd", "\ufffd\ufffd\ufffdo", "k", ""]
    assert len("".join(pieces(tokenizer, [stray] * 200))) == 200


def test_special_tokens_have_no_text_unless_asked(tokenizer):
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>")
    assert pieces(tokenizer, ids) == ["", "hello", "", ""]
    assert "".join(pieces(tokenizer, ids, skip_special_tokens=False)) == "<|im_start|>hello<|im_end|>"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40))
def test_the_pieces_add_up_to_the_text_and_none_is_half_a_character(tokenizer, text):
    ids = tokenizer.encode(text)
    parts = pieces(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    assert len(parts) == len(ids) + 1
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 265), max_size=30))
def test_any_ids_add_up_to_what_decoding_them_at_once_gives(tokenizer, ids):
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_stop_string_across_pieces_is_cut_out():
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece) for piece in ("one E", "N", "D two")] == [("one ", None), ("", None), ("", "END")]


def test_a_false_start_is_let_go():
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece) for piece in ("E", "Na", "EN")] == [("", None), ("ENa", None), ("", None)]
    assert matcher.flush() == "EN"


def test_the_earliest_of_several_stops_wins_and_may_be_kept():
    assert StopMatcher(["later", "now"]).push("a now b later") == ("a ", "now")
    assert StopMatcher(["now"], include=True).push("a now b") == ("a now", "now")


@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=3), st.integers(1, 4))
def test_cutting_a_text_into_pieces_changes_nothing_about_stops(text, stop, size):
    matcher, out, hit = StopMatcher([stop]), "", None
    for start in range(0, len(text), size):
        piece, hit = matcher.push(text[start : start + size])
        out += piece
        if hit:
            break
    assert (out + ("" if hit else matcher.flush()), hit is not None) == (text.split(stop)[0], stop in text)
