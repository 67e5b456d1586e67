"""Workloads by name: those of Bakeoff, and those of other packages."""

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bakeoff.workloads import (
    BadOption,
    EndlessCache,
    PresetTraffic,
    Random,
    Replay,
    Seed,
    Tokenizer,
    UnknownWorkload,
    WorkloadError,
    plan_closed,
    plan_recorded,
    registry,
    workload,
    workload_names,
)
from bakeoff.workloads.sample import Sessions
from tests.workloads import example_workload

SEED = Seed.of("7")
Installer = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installer]:
    """Puts a package with one module and entry points on Python's path."""
    (tmp_path / "example_package.py").write_bytes(Path(example_workload.__file__).read_bytes())

    def installed(entry_points: str) -> None:
        folder = tmp_path / "example_package-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: example-package\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[bakeoff.workloads]\n{entry_points}\n")
        monkeypatch.syspath_prepend(tmp_path)
        registry._others.cache_clear()

    yield installed
    monkeypatch.undo()
    sys.modules.pop("example_package", None)
    registry._others.cache_clear()


def test_presets_come_first_and_then_what_reads_files() -> None:
    names = workload_names()
    assert names[0] == "agent-coding"
    assert names[-4:] == ("rerank", "sessions", "trace", "preset")
    assert len(set(names)) == len(names) == 20


def test_every_workload_that_needs_no_file_is_made_from_its_defaults() -> None:
    for name in workload_names():
        if name not in {"sessions", "trace", "preset"}:
            assert workload(name, {}).notes()[0].startswith(f"{name}: ")


def test_options_reach_the_workload() -> None:
    chat = workload("chat", {"scale": 0.5, "max_input_tokens": 100, "api": "completions"})
    assert isinstance(chat, PresetTraffic)
    assert (chat.name, chat.scale, chat.max_input_tokens, chat.api) == ("chat", 0.5, 100, "completions")
    assert workload("random", {"input_tokens": 7, "spread": 0.25}) == Random(7, 32, 0.25)
    assert workload("trace", {"path": "x.csv", "max_rows": 3}) == Replay("x.csv", max_rows=3)
    assert workload("sessions", {"path": "x.jsonl"}) == Sessions("x.jsonl")


@pytest.mark.parametrize("name", ["sessions", "trace", "preset"])
def test_what_reads_a_file_must_be_told_which(name: str) -> None:
    with pytest.raises(BadOption, match=f"workload '{name}': Object missing required field `path`"):
        workload(name, {})


def test_an_unknown_workload_names_the_nearest() -> None:
    with pytest.raises(UnknownWorkload) as caught:
        workload("randm", {})
    assert str(caught.value) == f"unknown workload 'randm'; did you mean 'random'? known: {', '.join(workload_names())}"
    assert isinstance(caught.value, WorkloadError)


def test_a_workload_of_another_package_is_used_like_our_own(install: Installer, small: Tokenizer) -> None:
    install("example = example_package:Countdown")
    assert workload_names()[-1] == "example"
    made = workload("example", {"first": 3, "output_tokens": 2})
    assert made.notes() == ["countdown: short questions, made up"]
    plan = list(plan_closed(made, small, SEED, 20))
    assert [planned.session.id for planned in plan] == [f"countdown-{k}" for k in range(20)]
    turns = [planned.session.turns[0] for planned in plan]
    questions = {message.content for turn in turns for message in turn.messages or ()}
    assert questions == {f"What comes before {number}?" for number in (1, 2, 3)}
    assert {turn.output_tokens for turn in turns} == {2}
    cache = EndlessCache()
    for turn in turns:
        text = small.render_chat([{"role": "user", "content": message.content} for message in turn.messages or ()])
        cache.add(small.encode(text))
        assert small.count(text) == turn.input_tokens
    assert plan == list(plan_closed(workload("example", {"first": 3, "output_tokens": 2}), small, SEED, 20))
    recorded = list(plan_recorded(made, small, SEED, duration_s=5.0, count=100, time_warp=2.0))
    assert [planned.session.id for planned in recorded] == [f"countdown-{k}" for k in range(len(recorded))]
    assert len(recorded) in {10, 11}


def test_its_options_are_checked_like_our_own(install: Installer) -> None:
    install("example = example_package:Countdown")
    with pytest.raises(BadOption, match=r"workload 'example' has no option 'frst'; did you mean 'first'\?"):
        workload("example", {"frst": 3})
    with pytest.raises(UnknownWorkload, match=r"unknown workload 'exampel'; did you mean 'example'\?"):
        workload("exampel", {})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere:Thing", "workload 'example' of nowhere:Thing cannot be loaded: No module named 'nowhere'"),
        ("example_package:Thing", "workload 'example' of example_package:Thing cannot be loaded: "),
        ("example_package:Iterator", "workload 'example' of example_package:Iterator must be a msgspec.Struct whose"),
        (
            "example_package",
            "workload 'example' of example_package must be a msgspec.Struct whose fields",
        ),
    ],
)
def test_a_package_that_is_broken_is_named(install: Installer, target: str, message: str) -> None:
    install(f"example = {target}")
    with pytest.raises(UnknownWorkload) as caught:
        workload("example", {})
    assert str(caught.value).startswith(message)


def test_another_package_cannot_take_the_place_of_our_own(install: Installer) -> None:
    install("random = example_package:Countdown\nchat = example_package:Countdown")
    assert isinstance(workload("random", {}), Random)
    assert isinstance(workload("chat", {}), PresetTraffic)


def test_other_packages_are_not_looked_at_for_a_workload_of_ours(install: Installer) -> None:
    """A package that cannot be loaded does not affect users of other workloads."""
    install("example = nowhere:Thing")
    assert importlib.util.find_spec("nowhere") is None
    assert workload("random", {}) == Random()


def test_the_example_stands_on_its_own(small: Tokenizer) -> None:
    sessions = list(itertools.islice(example_workload.Countdown().sessions(small, SEED), 40))
    starts = [session.start_s or 0.0 for session in sessions]
    assert starts == sorted(starts)
    assert len(Path(example_workload.__file__).read_text(encoding="utf-8").splitlines()) <= 33
