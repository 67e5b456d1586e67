import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bakeoff.engines.models.store import GGUF_NAME
from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.gguf import GgufFile
from bakeoff.reference_engine.tools.convert import convert_gguf
from bakeoff.reference_engine.tools.gguf_copy import copy_gguf
from tests.reference_engine.loading.test_gguf import write_gguf

TYPES = {"bfloat16": ("BF16", 32), "float16": ("F16", 1), "float32": ("F32", 0)}


def quiet(_):
    pass


def nameless(path):
    """A file without any metadata."""
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(24))
    return path


@pytest.fixture
def source(tmp_path, hf_model, checkpoint_dir):
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer.backend
    return write_gguf(tmp_path / "q8.gguf", hf_model, tokenizer, quantize=gguf.GGMLQuantizationType.Q8_0)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_weights_are_bit_for_bit_those_of_the_checkpoint(source, tmp_path, dtype):
    copy_gguf(source, tmp_path / "copy.gguf", dtype=dtype, progress=quiet)
    convert_gguf(source, tmp_path / "out", dtype=dtype, progress=quiet)
    copied, converted = GgufFile(tmp_path / "copy.gguf"), load_file(tmp_path / "out" / "model.safetensors")
    assert set(copied.names()) == set(converted)
    for name, tensor in converted.items():
        assert torch.equal(copied.get(name), tensor.float()), name


@pytest.mark.parametrize(("dtype", "stored"), TYPES.items())
def test_matrices_have_the_type_and_norms_are_float32(source, tmp_path, dtype, stored):
    copy_gguf(source, tmp_path / "copy.gguf", dtype=dtype, progress=quiet)
    kind, number = stored
    reader = gguf.GGUFReader(tmp_path / "copy.gguf")
    types = {(len(tensor.shape), tensor.tensor_type.name) for tensor in reader.tensors}
    assert types == {(1, "F32"), (2, kind)}
    assert reader.fields["general.file_type"].contents() == number


def test_metadata_names_shapes_and_order_stay(source, tmp_path):
    copy_gguf(source, tmp_path / "copy.gguf", dtype="bfloat16", progress=quiet)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "copy.gguf")
    for name, field in before.fields.items():
        if name.startswith("GGUF.") or name in {"general.file_type", "general.quantization_version"}:
            continue
        assert after.fields[name].contents() == field.contents(), name
        assert after.fields[name].types == field.types, name
    assert [(t.name, list(t.shape)) for t in after.tensors] == [(t.name, list(t.shape)) for t in before.tensors]
    assert open_checkpoint(tmp_path / "copy.gguf").tokenizer.encode("hello world")


def test_rows_keep_llama_cpps_order(source, tmp_path):
    """Dequantised as they lie, the two files agree; only readers of checkpoints turn rows round."""
    copy_gguf(source, tmp_path / "copy.gguf", dtype="float32", progress=quiet)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "copy.gguf")
    for old, new in zip(before.tensors, after.tensors, strict=True):
        values = [gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in (old, new)]
        assert np.array_equal(*values), old.name


def test_the_command_takes_its_kind_from_the_targets_name(source, tmp_path):
    assert main(["convert", str(source), str(tmp_path / "out")]) == 0
    assert main(["convert", str(source), str(tmp_path / "out" / GGUF_NAME)]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert GgufFile(tmp_path / "out" / GGUF_NAME).config.dtype == "bfloat16"
    assert open_checkpoint(tmp_path / "out").weights.names(), "the folder is still a checkpoint"


def test_two_copies_are_the_same_bytes(source, tmp_path):
    for name in ("a.gguf", "b.gguf"):
        copy_gguf(source, tmp_path / name, dtype="bfloat16", progress=quiet)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_copy_that_fails_leaves_what_was_there(source, tmp_path, monkeypatch):
    target = tmp_path / "there" / "copy.gguf"
    target.parent.mkdir()
    target.write_bytes(b"of before")

    def stop(*_):
        raise RuntimeError("pulled the plug")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", stop)
    with pytest.raises(RuntimeError, match="plug"):
        copy_gguf(source, target, dtype="bfloat16", progress=quiet)
    assert target.read_bytes() == b"of before"
    assert list(target.parent.iterdir()) == [target]


def test_what_cannot_be_read_or_written_is_one_clear_error(source, tmp_path):
    (tmp_path / "torn.gguf").write_bytes(source.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cut short"):
        copy_gguf(tmp_path / "torn.gguf", tmp_path / "copy.gguf", dtype="bfloat16", progress=quiet)
    with pytest.raises(CheckpointError, match=r"general\.architecture is missing"):
        copy_gguf(nameless(tmp_path / "less.gguf"), tmp_path / "copy.gguf", dtype="bfloat16", progress=quiet)
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(CheckpointError, match="is a directory"):
        copy_gguf(source, tmp_path / "folder.gguf", dtype="bfloat16", progress=quiet)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder.gguf", "less.gguf", "q8.gguf", "torn.gguf"]


@pytest.mark.nightly
@pytest.mark.model
def test_the_real_models_gguf_has_the_weights_of_its_safetensors(model_folder):
    copied, converted = GgufFile(model_folder / GGUF_NAME), load_file(model_folder / "model.safetensors")
    assert set(copied.names()) == set(converted)
    for name, tensor in converted.items():
        assert torch.equal(copied.get(name), tensor.float()), name
