"""Files, plain or gzip: row numbers as in an editor, and one line for every error."""

import gzip
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.traces import reading
from bakeoff.workloads.traces.reading import bad, blocks, lines, whole
from tests.workloads.traces.samples import SAMPLES, read, refusal, write


@pytest.mark.parametrize("name", SAMPLES)
def test_gzip_and_a_byte_order_mark_change_nothing(name: str, tmp_path: Path) -> None:
    plain = read(name, write(tmp_path / "trace.json", SAMPLES[name]))
    assert plain
    assert read(name, write(tmp_path / "trace.json.gz", SAMPLES[name])) == plain
    packed_without_saying_so = tmp_path / "trace"
    packed_without_saying_so.write_bytes(gzip.compress(SAMPLES[name].encode()))
    assert read(name, packed_without_saying_so) == plain
    if name != "sharegpt":  # a JSON document has no byte order mark
        assert read(name, write(tmp_path / "marked", b"\xef\xbb\xbf" + SAMPLES[name].encode())) == plain


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("claude-code", "sharegpt")])
def test_line_ends_blank_lines_and_a_missing_last_line_end_change_nothing(name: str, tmp_path: Path) -> None:
    plain = read(name, write(tmp_path / "plain", SAMPLES[name]))
    assert read(name, write(tmp_path / "crlf", SAMPLES[name].replace("\n", "\r\n"))) == plain
    assert read(name, write(tmp_path / "blank", SAMPLES[name].replace("\n", "\n\n"))) == plain
    assert read(name, write(tmp_path / "cut", SAMPLES[name].rstrip("\n"))) == plain


@pytest.mark.parametrize("name", SAMPLES)
def test_a_trace_can_be_read_again_and_again(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "trace", SAMPLES[name])
    assert read(name, path) == read(name, path)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_missing_file_is_one_line(name: str, tmp_path: Path) -> None:
    assert refusal(name, tmp_path / "absent").startswith(": does not exist; give ")


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("claude-code", "agentperf", "otel")])
def test_a_folder_in_place_of_a_file_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert refusal(name, tmp_path / "folder") == ": is a folder; this format needs a file"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_without_anything_is_one_line(name: str, tmp_path: Path) -> None:
    message = refusal(name, write(tmp_path / "empty", ""))
    assert message == ": is empty" or "is not valid JSON" in message
    blank = refusal(name, write(tmp_path / "blank", "\n \n"))
    assert blank.startswith((": is empty", ": has no ")) or "is not valid JSON" in blank


@pytest.mark.parametrize("name", SAMPLES)
def test_gzip_that_is_cut_off_is_one_line(name: str, tmp_path: Path) -> None:
    packed = gzip.compress(SAMPLES[name].encode())
    path = tmp_path / "trace.gz"
    path.write_bytes(packed[:-12])
    message = refusal(name, path)
    assert "gzip data is truncated or damaged" in message
    assert "fetch the file again" in message


@pytest.mark.parametrize("name", SAMPLES)
def test_gzip_with_a_flipped_byte_is_one_line(name: str, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(SAMPLES[name].encode()))
    packed[-6] ^= 0xFF  # in the checksum
    path = tmp_path / "trace.gz"
    path.write_bytes(packed)
    assert "gzip data is truncated or damaged (CRC check failed" in refusal(name, path)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_name_that_says_gzip_over_plain_text_is_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_text(SAMPLES[name])
    assert refusal(name, path) == ": ends in .gz but is not gzip; fetch it again or rename it"


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("claude-code", "sharegpt")])
def test_bytes_that_are_no_text_name_their_row(name: str, byte: bytes, tmp_path: Path) -> None:
    first, second, *rest = SAMPLES[name].encode().split(b"\n")
    message = refusal(name, write(tmp_path / "trace", b"\n".join([first, second[:5] + byte + second[5:], *rest])))
    fault = "has a NUL byte" if byte == b"\0" else "is not UTF-8 (byte 0xff)"
    assert message.startswith(f", row 2: {fault}")
    assert "save" in message


@pytest.mark.parametrize("byte", [b"\0", b"\xff", b"]"])
@pytest.mark.parametrize(("name", "place"), [("claude-code", ""), ("sharegpt", ", conversation 1")])
def test_a_document_that_is_no_json_is_one_line(name: str, place: str, byte: bytes, tmp_path: Path) -> None:
    content = SAMPLES[name].encode()
    at = content.index(b'"', 5) + 1 if byte != b"]" else 1
    message = refusal(name, write(tmp_path / "trace", content[:at] + byte + content[at:]))
    assert message.startswith(f"{place}: is not valid JSON: ")


def test_a_file_in_utf_16_says_how_to_save_it(tmp_path: Path) -> None:
    message = refusal("azure", write(tmp_path / "trace.csv", SAMPLES["azure"].encode("utf-16-le")))
    assert message == ", row 1: has a NUL byte; save it as text in UTF-8"


def test_a_line_of_megabytes_is_refused_before_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 1000)
    path = write(tmp_path / "trace", "short\n" * 3 + "x" * 3999 + "\nshort\n" + "y" * 9000)
    numbers = []
    with pytest.raises(BadTrace, match=r"row 6: is longer than 0 MiB; the file must have one request or session a "):
        numbers += [row for row, _ in lines(str(path), 4000)]
    assert [row for row, _ in lines(str(path), 9000)] == [1, 2, 3, 4, 5, 6]


def test_a_document_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "one.json", SAMPLES["claude-code"])
    monkeypatch.setattr(reading, "MAX_WHOLE_BYTES", 100)
    with pytest.raises(BadTrace, match=r"one\.json: is larger than 0 MiB, too large for the file of one session"):
        whole(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=30), max_size=40))
def test_blocks_are_the_file_and_lines_have_an_editors_numbers(text: list[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_BLOCK_BYTES", 64)
        path = write(tmp_path / "trace", ("\n".join(["first", *text])).encode().removeprefix(b"\xef\xbb\xbf"))
        whole_lines = path.read_bytes().split(b"\n")
        assert b"".join(block for _, block in blocks(str(path))).split() == path.read_bytes().split()
        by_number = dict(lines(str(path)))
    assert by_number == {i: line.strip() for i, line in enumerate(whole_lines, 1) if line.strip()}


def test_a_damaged_archive_names_the_row_up_to_which_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 2**14)
    rows = "".join(
        f'{{"timestamp": {20 * i}, "input_length": {i * 7919 % 9973 + 1}, "output_length": 5}}\n' for i in range(9999)
    )
    packed = gzip.compress(rows.encode())
    path = tmp_path / "trace.gz"
    path.write_bytes(packed[: len(packed) // 2])
    message = refusal("mooncake", path)
    row = int(message.split()[2].removesuffix(":"))
    assert message.startswith(f", row {row}: from about here its gzip data is truncated or damaged")
    assert 3000 < row < 6000


def test_json_that_nests_without_end_is_one_line(tmp_path: Path) -> None:
    message = refusal("questions", write(tmp_path / "trace", '{"prompt": "fine"}\n{"a": ' + "[" * 200_000 + "\n"))
    assert message == ", row 2: is not a request; its JSON is nested too deeply"


def test_a_message_stays_one_line_whatever_the_name_of_the_file() -> None:
    assert str(bad("a\nb.csv", 3, "is\nwrong")) == "a b.csv, row 3: is wrong"


def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "trace", SAMPLES["azure"])
    monkeypatch.setattr(Path, "open", refuse)
    assert refusal("azure", path) == ": cannot be read: Permission denied"


FILLINGS = {
    "mooncake": b'{"timestamp": 99, "input_length": 600, "output_length": 5}\n',
    "questions": b'{"prompt": "Alone?"}\n',
    "openai-jsonl": b'{"prompt": "Once", "max_tokens": 9}\n',
    "csv": b"1,2,3\n",
    "azure": b"\n",
    "burstgpt": b" ",
    "sharegpt": b" ",
    "claude-code": b" ",
}
"""The repeated content of each bomb after a valid beginning."""


def bomb(path: Path, beginning: str, filling: bytes, size_bytes: int = 10**8) -> Path:
    """A file that unpacks to about a thousand times its size: gzip members may be concatenated."""
    unit = filling * (2**20 // len(filling))
    member = gzip.compress(unit)
    path.write_bytes(gzip.compress(beginning.encode()) + member * (size_bytes // len(unit) + 1))
    return path


@pytest.mark.parametrize("name", FILLINGS)
def test_a_gzip_bomb_is_refused_in_one_line_before_its_rows_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = [0]

    class Counting(gzip.GzipFile):
        def readinto(self, buffer: Any) -> int:
            unpacked[0] += (count := super().readinto(buffer))
            return count

    monkeypatch.setattr(reading.gzip, "GzipFile", Counting)
    beginning = "[" if name == "sharegpt" else SAMPLES[name]
    message = refusal(name, bomb(tmp_path / "trace.json.gz", beginning, FILLINGS[name]))
    assert message == (
        ": decompresses to more than 100 times its size; if you trust it, decompress it first (gunzip) or set "
        "BAKEOFF_MAX_UNPACKED_MIB"
    )
    assert unpacked[0] <= 2 * 2**20


def test_a_bomb_takes_constant_memory(tmp_path: Path) -> None:
    path = bomb(tmp_path / "trace.gz", "", b"x", 10 * 10**9)  # one line of ten gigabytes
    tracemalloc.start()
    try:
        assert "decompresses to more than 100 times" in refusal("mooncake", path)
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()


def test_the_limit_can_be_raised_for_a_trusted_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = FILLINGS["questions"] * (3 * 2**19 // len(FILLINGS["questions"]))
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(rows))
    assert "decompresses to more than 100 times" in refusal("questions", path)
    monkeypatch.setenv("BAKEOFF_MAX_UNPACKED_MIB", "2")
    assert sum(1 for _ in lines(str(path))) == rows.count(b"\n")
    monkeypatch.setenv("BAKEOFF_MAX_UNPACKED_MIB", "ten")
    with pytest.raises(BadTrace, match=r"^BAKEOFF_MAX_UNPACKED_MIB must be a whole number of MiB, not 'ten'$"):
        next(lines(str(path)))


@pytest.mark.parametrize("name", [*SAMPLES])
def test_a_pickle_is_refused_and_never_loaded(name: str, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    message = refusal(name, write(tmp_path / "trace", pickle.dumps(Trap())))
    assert "\n" not in message
    assert not (tmp_path / "sprung").exists()
