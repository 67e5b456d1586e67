"""Metadata of GGUF files, and choice of the file to serve."""

import struct
from pathlib import Path

import pytest

from bakeoff.engines.errors import BadOption, ModelNotFound
from bakeoff.engines.models.gguf import gguf_file, weights_dtype
from tests.engines.models.gguf_heads import gguf_head


@pytest.mark.parametrize(
    ("number", "dtype"), [(0, "float32"), (1, "float16"), (32, "bfloat16"), (3, "quantised"), (None, None)]
)
def test_the_type_of_the_weights_is_in_the_head(tmp_path: Path, number: int | None, dtype: str | None) -> None:
    assert weights_dtype(gguf_head(tmp_path / "m.gguf", number)) == dtype


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00", b"PK\x03\x04" + bytes(40)])
def test_what_is_no_gguf_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelNotFound, match=r"m\.gguf cannot be read as a GGUF file"):
        weights_dtype(tmp_path / "m.gguf")


@pytest.mark.parametrize("keep", range(24, 140, 7))
def test_a_head_that_is_cut_short_is_one_clear_error(tmp_path: Path, keep: int) -> None:
    whole = gguf_head(tmp_path / "m.gguf", 32).read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:keep])
    with pytest.raises(ModelNotFound, match="fetch or convert it again"):
        weights_dtype(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<QQ", 0, 2**40),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**62) + b"name",
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 2**50),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 2**50),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sI", 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 5000,
    ],
)
def test_a_count_that_the_file_cannot_hold_is_refused_at_once(body: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<I", 3) + body + bytes(64))
    with pytest.raises(ModelNotFound, match="fetch or convert it again"):
        weights_dtype(tmp_path / "m.gguf")


def test_a_file_is_itself_and_a_folder_its_only_one(tmp_path: Path) -> None:
    file = gguf_head(tmp_path / "m.gguf", 32)
    assert gguf_file(str(file), None) == gguf_file(str(tmp_path), "auto") == file


def test_of_a_model_in_parts_the_first_is_served(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        gguf_head(tmp_path / f"m-{part:05}-of-00003.gguf", 32)
    assert gguf_file(str(tmp_path), None).name == "m-00001-of-00003.gguf"


def test_a_type_chooses_among_several(tmp_path: Path) -> None:
    for name, number in (("a", 0), ("b", 32), ("c", 2)):
        gguf_head(tmp_path / f"{name}.gguf", number)
    assert gguf_file(str(tmp_path), "bfloat16").name == "b.gguf"
    with pytest.raises(BadOption) as caught:
        gguf_file(str(tmp_path), None)
    assert str(caught.value) == (
        f"{tmp_path} has several GGUF files: a.gguf (float32), b.gguf (bfloat16), c.gguf (quantised); "
        "set dtype, or path in [model], to one of them"
    )
    with pytest.raises(BadOption, match=r"none is float16: a\.gguf"):
        gguf_file(str(tmp_path), "float16")


def test_a_file_that_does_not_say_its_type_is_taken_at_its_word(tmp_path: Path) -> None:
    assert gguf_file(str(gguf_head(tmp_path / "m.gguf", None)), "bfloat16").name == "m.gguf"


@pytest.mark.parametrize("name", ["m.safetensors", "gone"])
def test_without_one_the_command_that_makes_it_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "m.safetensors").touch()
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(ModelNotFound, match=r"serves a \.gguf file, .*reference_engine convert SRC\.gguf"):
            gguf_file(str(path), None)
