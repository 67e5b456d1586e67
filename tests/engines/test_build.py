"""Identification of an engine's code: every rebuild changes it, and nothing else does."""

import os
import subprocess
from pathlib import Path

import pytest

from bakeoff.engines.build import build_of, checkout, image_id
from bakeoff.engines.deployment import Container, Deployment, Ssh
from tests.engines.test_server_engine import small

COMMIT = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "c")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True)


@pytest.fixture(name="source")
def fixture_source(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "engine.py").write_text("FAST = True")
    (source / ".gitignore").write_text("*.log")
    git(source, "init", "--quiet")
    git(source, "add", ".")
    git(source, *COMMIT)
    return source


class TestPrograms:
    def made(self, folder: Path, content: bytes = b"build 1") -> Path:
        folder.mkdir(exist_ok=True)
        program = folder / "llama-server"
        program.write_bytes(content)
        program.chmod(0o755)
        return program

    def test_a_rebuilt_program_has_another_build(self, tmp_path: Path) -> None:
        """Size and time may be equal: a build may be copied with its times."""
        program = self.made(tmp_path / "bin")
        before, times = build_of(str(program)), program.stat()
        assert build_of(str(program)) == before
        self.made(tmp_path / "bin", b"build 2")
        os.utime(program, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert build_of(str(program)) != before
        self.made(tmp_path / "bin")
        assert build_of(str(program)) == before

    def test_a_rebuilt_library_changes_the_build(self, tmp_path: Path) -> None:
        """llama.cpp is in libllama.so, beside a small program."""
        program = self.made(tmp_path / "bin")
        library = tmp_path / "bin" / "libllama.so.0"
        library.write_bytes(b"kernels 1")
        before = build_of(str(program))
        library.write_bytes(b"kernels 2")
        assert build_of(str(program)) != before

    def test_it_is_found_on_path_as_it_will_be(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = self.made(tmp_path / "bin")
        monkeypatch.setenv("PATH", str(program.parent))
        assert build_of("llama-server") == build_of(str(program)) != {}
        assert build_of("vllm") == {}, "which the start will say"


class TestEnvironments:
    """A venv is identified by its packages, since all venvs share one interpreter."""

    def package(self, venv: Path, record: str = "vllm/engine.py,sha256=aa,9", direct_url: str | None = None) -> str:
        folder = venv / "lib" / "python3.11" / "site-packages" / "vllm-0.6.0.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.6.0\n")
        (folder / "RECORD").write_text(record)
        if direct_url is not None:
            (folder / "direct_url.json").write_text(direct_url)
        (venv / "pyvenv.cfg").touch()
        return str(TestPrograms().made(venv / "bin"))

    def test_the_same_version_installed_from_other_sources_is_another(self, tmp_path: Path) -> None:
        before = build_of(self.package(tmp_path / "venv"))
        assert build_of(self.package(tmp_path / "venv")) == before
        assert build_of(self.package(tmp_path / "venv", "vllm/engine.py,sha256=bb,9")) != before

    def test_an_editable_package_is_identified_by_its_checkout(self, tmp_path: Path, source: Path) -> None:
        program = self.package(tmp_path / "venv", "", f'{{"url": "file://{source}", "dir_info": {{"editable": true}}}}')
        before = build_of(program)
        assert before["sources"] == {"vllm": checkout(source)}
        (source / "engine.py").write_text("FAST = False")
        assert build_of(program) != before

    def test_an_editable_package_outside_a_checkout_is_never_equal(self, tmp_path: Path) -> None:
        url = f'{{"url": "file://{tmp_path}", "dir_info": {{"editable": true}}}}'
        program = self.package(tmp_path / "venv", "", url)
        assert build_of(program) != build_of(program)

    @pytest.mark.parametrize("url", ["{", "[]", '{"url": "https://x/y.whl", "archive_info": {}}'])
    def test_what_came_from_an_index_or_says_nothing_readable_is_not_linked(self, tmp_path: Path, url: str) -> None:
        assert build_of(self.package(tmp_path / "venv", direct_url=url))["sources"] == {}


class TestCheckouts:
    def test_a_commit_is_described_and_changes_are_told_apart(self, source: Path) -> None:
        clean = checkout(source)
        git(source, "tag", "v1")
        tagged = checkout(source)
        assert clean is not None
        assert len(clean) == 40
        assert tagged == f"v1-0-g{clean}"
        (source / "engine.py").write_text("FAST = 1")
        edited = checkout(source)
        (source / "engine.py").write_text("FAST = 2")
        edited_again = checkout(source)
        assert len({tagged, edited, edited_again}) == 3
        assert edited is not None
        assert edited.startswith(f"{tagged}-dirty-")
        (source / "engine.py").write_text("FAST = True")
        assert checkout(source) == tagged

    def test_a_new_file_is_a_change_and_an_ignored_one_is_none(self, source: Path) -> None:
        clean = checkout(source)
        (source / "run.log").touch()
        assert checkout(source) == clean
        (source / "kernel.cu").touch()
        assert checkout(source) != clean

    def test_another_commit_is_another(self, source: Path) -> None:
        before = checkout(source)
        (source / "engine.py").write_text("FAST = None")
        git(source, "add", ".")
        git(source, *COMMIT)
        assert checkout(source) != before

    def test_a_venv_inside_a_checkout_is_none(self, source: Path) -> None:
        (source / ".venv").mkdir()
        assert checkout(source / ".venv") is None
        assert checkout(source.parent) is None


class TestContainers:
    def test_the_digest_of_the_image_that_is_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = tmp_path / "docker"
        runtime.write_text('#!/bin/sh\n[ "$5" = vllm:latest ] && echo sha256:1234\n')
        runtime.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert image_id("docker", "vllm:latest") == "sha256:1234"
        assert image_id("docker", "vllm:gone") is None
        assert image_id("podman-that-is-not-here", "vllm:latest") is None
        assert small(container=Container("vllm:latest")).build() == {"image": "sha256:1234"}


@pytest.mark.parametrize("deployment", [Deployment(url="http://127.0.0.1:1"), Deployment(ssh=Ssh("box"))])
def test_a_remote_server_has_no_build(deployment: Deployment) -> None:
    assert small(url=deployment.url, ssh=deployment.ssh).build() == {}
