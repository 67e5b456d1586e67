"""Sums over ranks in pieces, with streams and collectives that record what they are asked for."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from bakeoff.reference_engine.parallel import group as group_module
from bakeoff.reference_engine.parallel.group import Group, Shape

PIECE = 4


class Recorder:
    """Streams of a GPU and a process group of two equal ranks."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.current = "own"

    def stream(self, name: str) -> Any:
        def wait_stream(other: Any) -> None:
            self.calls.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait_stream)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        tensors[0].mul_(2)
        self.calls.append(f"sum {len(tensors[0])} on {self.current}")
        return SimpleNamespace(wait=lambda: None)

    def doubled(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls.append(f"compute {len(rows)} on {self.current}")
        return rows * 2


class OnGpu(torch.Tensor):
    """A tensor of the CPU that claims to be on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    fakes: dict[str, Callable[..., Any]] = {
        "current_stream": lambda: made.stream("own"), "Stream": lambda: made.stream("beside"), "stream": made.on,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(group_module, "_PIECE_ROWS", PIECE)
    return made


def two(recorder: Recorder) -> Group:
    return Group(0, Shape(2), HashStore(), lambda *_: recorder)


def on_gpu(rows: int) -> torch.Tensor:
    return torch.arange(rows * 3, dtype=torch.float32).view(rows, 3).as_subclass(OnGpu)


def test_a_piece_is_summed_on_a_stream_of_its_own_while_the_next_is_computed(recorder: Recorder) -> None:
    rows = on_gpu(2 * PIECE + 3)
    total = two(recorder).summed(recorder.doubled, rows)
    assert torch.equal(total, torch.as_tensor(rows) * 4)
    assert recorder.calls == [
        "compute 6 on own", "beside waits for own", "sum 6 on beside",
        "compute 5 on own", "beside waits for own", "sum 5 on beside",
        "own waits for beside",
    ]  # fmt: skip


@pytest.mark.parametrize(("rows", "in_pieces"), [(2 * PIECE - 1, True), (10 * PIECE, False)])
def test_few_rows_and_products_that_run_once_are_summed_as_a_whole(
    recorder: Recorder, rows: int, in_pieces: bool
) -> None:
    two(recorder).summed(recorder.doubled, on_gpu(rows), in_pieces=in_pieces)
    assert recorder.calls == [f"compute {rows} on own", f"sum {rows} on own"]


def test_there_are_at_most_four_pieces(recorder: Recorder) -> None:
    two(recorder).summed(recorder.doubled, on_gpu(10 * PIECE))
    assert [call for call in recorder.calls if call.startswith("sum")] == ["sum 10 on beside"] * 4
