"""A raw log that several processes decode: the requests of one process, byte for byte, whatever stops a process."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bakeoff.engines import Deployment, dialect
from bakeoff.harness.client.decode import log as decoding
from bakeoff.harness.client.decode.log import MIN_PARTS, Decoder, Part, Setup, decode_log, decoded_lines
from bakeoff.harness.client.wire.orders import Format
from bakeoff.harness.host.threads import in_thread
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import Phase, StreamEnd, StreamRecord

VLLM = Format("vllm", {})
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":%s}]}\n\n'


def stream(number: int) -> StreamRecord:
    return StreamRecord(
        index=number, phase=Phase.MEASURED, session=f"s{number}", turn=0, planned_ns=1000 * number,
        ended_ns=1000 * number + 900, sent_ns=1000 * number + 1, status=200, end=StreamEnd.COMPLETE,
        read_ns=[1000 * number + 300, 1000 * number + 600], reads=[EVENT % b"null", EVENT % b'"length"'],
    )  # fmt: skip


def refuse(*_: object) -> None:
    raise AssertionError("this process must not decode, or start another")


@pytest.fixture
def folder(tmp_path: Path) -> TrialFolder:
    trial = TrialFolder(tmp_path)
    for worker in range(2):
        with FrameAppender(trial.stream_log(worker)) as log:
            for number in range(3):
                log.append(stream(2 * number + worker))
    return trial


def decoded(folder: TrialFolder, part_bytes: int, nodes: Sequence[Decoder] = (), cores: int = 2) -> list[int]:
    asyncio.run(
        decode_log(
            folder, dialect("vllm", {}, Deployment()), None, VLLM,
            in_thread=in_thread, cores=cores, nodes=nodes, part_bytes=part_bytes,
        )
    )  # fmt: skip
    assert not list(folder.path.glob(".requests*")), "no part is left"
    return [request.index for request in folder.read_decoded()]


def test_processes_give_the_bytes_of_one(folder: TrialFolder, monkeypatch: pytest.MonkeyPatch):
    assert decoded(folder, 1 << 20) == [0, 2, 4, 1, 3, 5]
    alone = (folder.path / "requests.jsonl").read_bytes()
    folder.remove_requests()
    monkeypatch.setattr(decoding, "decode_part", refuse)
    assert decoded(folder, 1) == [0, 2, 4, 1, 3, 5]
    assert (folder.path / "requests.jsonl").read_bytes() == alone


@pytest.mark.parametrize("done", [0, 1, 3])
def test_what_a_process_leaves_is_decoded_here(folder: TrialFolder, done: int, monkeypatch: pytest.MonkeyPatch):
    """The first process ends at its first part, the second after some."""
    ended: list[Part] = []

    async def by_process(setup: Setup, waiting: object) -> Part | None:
        assert setup == Setup(VLLM, None)
        for number, part in enumerate(waiting):  # type: ignore[var-annotated,arg-type]
            if not ended or number == done:
                ended.append(part)
                return part
            decoding.decode_part(part, dialect("vllm", {}, Deployment()), None)
        return None

    monkeypatch.setattr(decoding, "_by_process", by_process)
    assert decoded(folder, 1) == [0, 2, 4, 1, 3, 5]
    assert len(ended) >= 1


def test_processes_that_cannot_start_leave_the_parts_here(folder: TrialFolder, monkeypatch: pytest.MonkeyPatch):
    def refuse_start(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(decoding, "child_process", refuse_start)
    assert decoded(folder, 1) == [0, 2, 4, 1, 3, 5]


class Node:
    """A node, which is lost after some parts."""

    def __init__(self, parts: int) -> None:
        self.left = parts

    async def decode(self, setup: bytes, frames: bytes) -> bytes | None:
        """Decode as a node does."""
        self.left -= 1
        return decoded_lines(setup, frames) if self.left >= 0 else None


@pytest.mark.parametrize("parts", [0, 2, 9])
def test_nodes_decode_what_they_can_and_the_rest_is_decoded_here(
    folder: TrialFolder, monkeypatch: pytest.MonkeyPatch, parts: int
):
    def refuse_start(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    decoded(folder, 1 << 20)
    alone = (folder.path / "requests.jsonl").read_bytes()
    folder.remove_requests()
    monkeypatch.setattr(decoding, "child_process", refuse_start)
    node = Node(parts)
    assert decoded(folder, 1, [node], cores=1) == [0, 2, 4, 1, 3, 5]
    assert (folder.path / "requests.jsonl").read_bytes() == alone
    assert node.left == (9 - 6 if parts == 9 else -1)


@pytest.mark.parametrize(
    ("setup", "frames"),
    [
        (Setup(Format("nobody", {}), None), b""),
        (Setup(VLLM, "/no/such/folder"), b""),
        (Setup(VLLM, None), b"\x00\x00\x00\x01\xc1"),
    ],
    ids=["an unknown adapter", "no tokenizer there", "damaged frames"],
)
def test_a_node_that_cannot_decode_says_so(setup: Setup, frames: bytes):
    assert decoded_lines(msgspec.json.encode(setup), frames) is None


def test_a_damaged_log_is_refused_and_no_part_is_left(folder: TrialFolder, monkeypatch: pytest.MonkeyPatch):
    async def by_process(_: Setup, waiting: object) -> Part | None:
        return next(waiting, None)  # type: ignore[call-overload]

    monkeypatch.setattr(decoding, "_by_process", by_process)
    log = folder.stream_log(0)
    log.write_bytes(log.read_bytes().replace(b"\xa5phase", b"\xc1phase", 1))
    with pytest.raises(RunUnreadable, match="damaged"):
        decoded(folder, 1)
    assert not list(folder.path.glob(".requests*"))
    assert not folder.has_requests()


def test_a_short_log_starts_no_process(folder: TrialFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decoding, "_by_process", refuse)
    whole = sum(log.stat().st_size for log in folder.path.glob("*.frames"))
    assert decoded(folder, whole // (MIN_PARTS - 2)) == [0, 2, 4, 1, 3, 5]
