"""`bakeoff lab machine`: rates by a clock that is injected, products of tiny matrices, and what the command prints."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.host import ceilings
from bakeoff.harness.host.ceilings import Size, measure, rates
from bakeoff.harness.host.environment import environment
from bakeoff.installation import how_to_install
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.machine.ceilings import Ceilings, store_ceilings, stored_ceilings

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")
SOME = [
    Ceilings("cpu", "Some CPU, 2 threads", 24 << 30, 14e9, 13e9, {"float32": 27e9, "bfloat16": 106e9}),
    Ceilings("cuda:0", "Some GPU", 141 << 30, 4.51e12, 4.3e12, {"bfloat16": 680e12, "float8_e4m3fn": 1400e12}),
]


class Work:
    """Calls that take a GPU 5 ms each and return before it has finished."""

    def __init__(self) -> None:
        self.now_s = self.busy_until_s = 0.0
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        self.busy_until_s = max(self.busy_until_s, self.now_s) + 0.005

    def wait(self) -> None:
        self.now_s = max(self.now_s, self.busy_until_s)

    def clock(self) -> float:
        return self.now_s


def test_rates_count_what_is_done_and_not_what_is_begun():
    work = Work()
    per_s = rates(work.call, work.wait, 0.1, work.clock)
    assert per_s == pytest.approx([200.0] * len(per_s))
    assert work.now_s == pytest.approx(0.11)
    assert len(per_s) < work.calls / 3, "later rounds are of several calls"


def test_the_first_call_counts_for_nothing_and_one_round_is_always_measured():
    work = Work()
    assert rates(work.call, work.wait, 0.0, work.clock) == pytest.approx([200.0])
    assert work.calls == 2


def test_a_device_is_measured_with_tensors_of_the_given_size():
    measured = measure(CPU, 0.0, Size(4096, 8))
    assert measured.device == "cpu"
    assert measured.threads == torch.get_num_threads()
    assert measured.memory_bytes > 1 << 20
    assert measured.read_bytes_per_s > 0
    assert measured.copy_bytes_per_s > 0
    assert set(measured.flops_per_s) == {"float32", "bfloat16"}
    assert min(measured.flops_per_s.values()) > 0
    assert set(measured.spread) == {"read", "copy", "float32", "bfloat16"}
    low, high = measured.spread["float32"]
    assert 0 < low <= measured.flops_per_s["float32"] <= high
    assert measured.spread["read"][1] == measured.read_bytes_per_s


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ceilings, "measure_machine", lambda seconds: SOME)


def test_the_table_has_a_row_for_each_device(measured: None, capsys: pytest.CaptureFixture[str]):
    assert guarded(make_app(), ["lab", "machine"]) == 0
    printed = capsys.readouterr()
    lines = [" ".join(line.split()) for line in printed.out.splitlines()]
    assert lines[0] == "device memory read copy float32 bfloat16 float8_e4m3fn"
    assert lines[2:] == [
        "cpu 24.0 GiB 14.0 GB/s 13.0 GB/s 27.0 GFLOP/s 106 GFLOP/s –",
        "cuda:0 141 GiB 4.51 TB/s 4.30 TB/s – 680 TFLOP/s 1,400 TFLOP/s",
        "cpu: Some CPU, 2 threads",
        "cuda:0: Some GPU",
    ]
    assert printed.err == "stored: runs/ceilings.json\n"


def test_json_has_every_figure(measured: None, capsys: pytest.CaptureFixture[str]):
    assert guarded(make_app(), ["lab", "machine", "--json"]) == 0
    devices: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [device["device"] for device in devices] == ["cpu", "cuda:0"]
    assert devices[1]["flops_per_s"]["float8_e4m3fn"] == 1400e12
    assert set(devices[0]) == set(Ceilings.__struct_fields__)


def test_ceilings_are_stored_beside_the_runs_of_their_machine(measured: None):
    assert guarded(make_app(), ["lab", "machine", "--out", "here"]) == 0
    here = environment()
    assert stored_ceilings(Path("here"), here) == SOME
    assert stored_ceilings(Path("here"), {**here, "cores": 99}) == []
    assert stored_ceilings(Path("nowhere"), here) == []


def test_ceilings_of_earlier_measurements_have_no_number_of_threads(tmp_path: Path):
    path = store_ceilings(tmp_path, {}, SOME[:1])
    text = path.read_text(encoding="utf-8")
    without, removed = re.subn(r',\s*"threads": null', "", text)
    path.write_text(without, encoding="utf-8")
    assert removed == 1
    assert stored_ceilings(tmp_path, {}) == SOME[:1]


def test_damaged_ceilings_are_refused_with_the_command_that_renews_them(tmp_path: Path):
    path = store_ceilings(tmp_path, {}, SOME)
    for text in ("{", path.read_text(encoding="utf-8").replace('"version": 1', '"version": 7')):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(RunUnreadable, match="measure it again: bakeoff lab machine"):
            stored_ceilings(tmp_path, {})


def test_without_torch_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delitem(sys.modules, "bakeoff.harness.host.ceilings")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert guarded(make_app(), ["lab", "machine"]) == 2
    assert capsys.readouterr().err == f"bakeoff: bakeoff lab machine needs torch; run: {how_to_install('engine')}\n"
