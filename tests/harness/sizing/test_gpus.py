"""The table of GPUs: each figure has a source; users' files and measured machines; bad ones are refused."""

import json
import tomllib
from pathlib import Path

import pytest

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.gpus import chosen, gpu_table

OWN = """[gpus.mine]
title = "Mine"
memory_bytes = { value = 16e9, source = "box" }
bytes_per_s = { value = 1e12, source = "box" }
flops_per_s = { bf16 = { value = 1e14, source = "box" } }
"""
MACHINE = [
    {
        "device": "cpu", "name": "Some CPU, 2 threads", "memory_bytes": 24 << 30, "read_bytes_per_s": 14e9,
        "copy_bytes_per_s": 13e9, "flops_per_s": {"float32": 27e9, "bfloat16": 106e9},
    }
]  # fmt: skip


def test_the_table_has_the_gpus_that_are_rented_and_a_source_for_each_figure():
    table = gpu_table()
    assert list(table) == ["a10g", "l40s", "a100-40gb", "a100-80gb", "h100", "h200", "b200", "mi300x"]
    for gpu in table.values():
        assert {"memory_bytes", "bytes_per_s", "tdp_w", "link_bytes_per_s", "bytes_share", "flops_share"} <= set(
            gpu.sources
        )
        assert all(len(source.split(": ", 1)[1]) > 5 for source in gpu.sources.values())
        assert set(gpu.flops_per_s) >= {"fp32", "bf16", "int8"}


def test_peaks_are_cut_to_what_can_be_reached():
    h200, h100 = gpu_table()["h200"], gpu_table()["h100"]
    assert h200.bytes_per_s == pytest.approx(4.47e12, rel=1e-3)
    assert h200.flops_per_s["bf16"] == pytest.approx(678e12, rel=1e-3)
    assert h100.bytes_per_s == pytest.approx(0.9 * 3.35e12)
    assert "assumed" in h100.sources["bytes_share"]


def test_a_type_that_a_gpu_lacks_is_computed_in_bf16():
    a100 = gpu_table()["a100-80gb"]
    assert a100.flops("fp8") == a100.flops("bf16") == pytest.approx(0.7 * 312e12)
    assert a100.flops("int8") == 2 * a100.flops("bf16")


def test_fp32_has_a_rate_of_its_own_and_no_other_type_replaces_it(tmp_path: Path):
    assert gpu_table()["a100-80gb"].flops("fp32") == pytest.approx(0.7 * 19.5e12)
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    with pytest.raises(BadPlan, match=r"products of mine in fp32 are unknown; add flops_per_s\.fp32"):
        gpu_table(path)["mine"].flops("fp32")


def test_a_file_adds_gpus_and_has_precedence(tmp_path: Path):
    path = tmp_path / "own.toml"
    path.write_text(OWN + OWN.replace("gpus.mine", "gpus.H200"))
    table = gpu_table(path)
    assert table["mine"].bytes_per_s == 0.9e12
    assert table["h200"].title == "Mine"
    assert table["mine"].link_bytes_per_s is None


def test_the_shipped_table_is_a_template_for_a_users_file(tmp_path: Path):
    path = tmp_path / "copy.toml"
    path.write_bytes((Path(__file__).parents[3] / "harness/sizing/gpus.toml").read_bytes())
    assert gpu_table(path) == gpu_table()
    assert set(tomllib.loads(path.read_text())) == {"gpus"}


def test_a_measured_machine_is_taken_as_it_is(tmp_path: Path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(MACHINE))
    cpu = gpu_table(machine=path)["cpu"]
    assert (cpu.bytes_per_s, cpu.flops("bf16"), cpu.flops("fp8")) == (14e9, 106e9, 106e9)
    assert cpu.is_measured
    assert cpu.tdp_w is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus = 1", "Expected `object`"),
        ("[gpus", "own.toml:"),
        (OWN.replace("bytes_per_s", "speed"), "unknown field `speed`"),
        (OWN.replace(', source = "box" }', " }", 1), "missing required field `source`"),
        *((OWN.replace("1e12", odd), r"above 0, and finite.*bytes_per_s") for odd in ("0", "-1.0", "nan", "inf")),
        (OWN.replace("bf16 =", "int8 ="), "flops_per_s must have bf16 or fp16 or fp32"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(BadPlan, match=message) as error:
        gpu_table(path)
    assert "\n" not in str(error.value)


def test_files_that_are_not_there_and_no_machine_are_refused(tmp_path: Path):
    with pytest.raises(BadPlan, match="cannot read"):
        gpu_table(tmp_path / "none.toml")
    for machine in ({}, [MACHINE[0] | {"read_bytes_per_s": 0}], [MACHINE[0] | {"flops_per_s": {}}]):
        (tmp_path / "machine.json").write_text(json.dumps(machine))
        with pytest.raises(BadPlan, match="write it with bakeoff lab machine --json"):
            gpu_table(machine=tmp_path / "machine.json")


def test_unknown_names_are_refused():
    with pytest.raises(BadPlan, match="unknown GPU 'h300'; known: a10g"):
        chosen(gpu_table(), ["h200", "h300"])
    assert [gpu.name for gpu in chosen(gpu_table(), ["H200", "a10g", "h200"])] == ["h200", "a10g"]
    assert len(chosen(gpu_table(), [])) == 8
