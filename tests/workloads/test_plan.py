"""A plan is fixed by its seed, byte for byte, in every process; it streams, and times are divided exactly."""

import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from bakeoff.workloads import (
    BadOption,
    Constant,
    PlanHash,
    PlannedSession,
    Poisson,
    Random,
    Seed,
    Session,
    Tokenizer,
    Turn,
    plan_closed,
    plan_open,
    plan_recorded,
    workload,
)
from bakeoff.workloads.plan import plan_sha256

SEED = Seed.of("7")
# Changing these makes old and new runs incomparable: users must be told why.
PINNED = {
    "chat": "72aa792ea146fc6277e6763fbc106c90d793eee58d1f32b5a15dec2d42ea7686",
    "agentic-tools": "ae6005ee4109b9e9ab98069e429704aa4788b01b45668b446974d3dcae82f303",
    "rag": "59402eb0a305e2d748e1de547c8a7f0724543f7e61d0959a67f8bcf6cd73b2ce",
    "random": "e9affebd297538987887c63435682cb9ae1cc573a6abf28a8ba3f04703b147b7",
}
REAL_CHAT_SHA256 = "4c1c213d491eea507839eada050b7efda74d61cca3aa09cbd8b92c20722195ab"

IN_ANOTHER_PROCESS = """
import json, pathlib, sys
from tests.workloads.small_tokenizers import checkpoint
from tests.workloads.test_plan import PINNED, plan_of
from bakeoff.workloads import Seed, Tokenizer
from bakeoff.workloads.plan import plan_sha256
tokenizer = Tokenizer(checkpoint(pathlib.Path(sys.argv[1])))
print(json.dumps({name: plan_sha256(plan_of(name, tokenizer, Seed.of("7"))) for name in PINNED}))
"""


def plan_of(name: str, tokenizer: Tokenizer, seed: Seed) -> Iterator[PlannedSession]:
    """One plan of each kind: open, recorded and closed."""
    match name:
        case "chat":
            made = workload("chat", {"scale": 0.125})
            return plan_open(made, Poisson(2.0), tokenizer, seed, duration_s=60.0, count=40)
        case "agentic-tools":
            made = workload(name, {"scale": 0.02, "max_input_tokens": 1200})
            return plan_recorded(made, tokenizer, seed, duration_s=200.0, count=4, time_warp=2.0)
        case "rag":
            return plan_closed(workload(name, {"scale": 0.25}), tokenizer, seed, 15)
        case _:
            return plan_closed(Random(40, 10, 0.5), tokenizer, seed, 40)


class Recorded:
    """Sessions of three turns with the given start and think times."""

    def __init__(self, starts_s: list[float | None], think_s: float = 0.0) -> None:
        self._starts_s = starts_s
        self._think_s = think_s
        self.made = 0

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        del tokenizer, seed
        for number, start_s in enumerate(self._starts_s):
            self.made += 1
            later = Turn(2, 1, prompt="and", think_s=self._think_s)
            yield Session(f"s{number}", (Turn(1, 1, prompt="x"), later, later), start_s)

    def notes(self) -> list[str]:
        return []


@pytest.mark.parametrize("name", PINNED)
def test_the_hashes_of_plans_are_pinned(small: Tokenizer, name: str) -> None:
    assert plan_sha256(plan_of(name, small, SEED)) == PINNED[name]


@pytest.mark.model
def test_the_hash_of_a_plan_for_the_real_model_is_pinned(smollm2: Tokenizer) -> None:
    assert plan_sha256(plan_of("chat", smollm2, SEED)) == REAL_CHAT_SHA256


@pytest.mark.parametrize("hash_seed", ["0", "1", "4294967295"])
def test_another_process_with_another_hash_seed_plans_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, hash_seed: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path_factory.mktemp("tokenizer"))],
        env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout) == PINNED


@pytest.mark.slow
@pytest.mark.parametrize("name", PINNED)
def test_another_seed_is_another_plan_in_shape_or_in_words(small: Tokenizer, name: str) -> None:
    seeds = [SEED, Seed.of("8"), Seed("7", "8"), Seed("8", "7")]
    assert len({plan_sha256(plan_of(name, small, seed)) for seed in seeds}) == 4


def test_any_other_workload_or_schedule_has_another_hash(small: Tokenizer) -> None:
    plans = [
        plan_closed(Random(20), small, SEED, 10),
        plan_closed(Random(20), small, SEED, 9),
        plan_closed(Random(21), small, SEED, 10),
        plan_closed(Random(20, 31), small, SEED, 10),
        plan_closed(workload("chat", {"scale": 0.1}), small, SEED, 10),
        plan_open(Random(20), Constant(1.0), small, SEED, duration_s=100, count=10),
        plan_open(Random(20), Constant(2.0), small, SEED, duration_s=100, count=10),
        plan_open(Random(20), Poisson(1.0), small, SEED, duration_s=100, count=10),
    ]
    assert len({plan_sha256(plan) for plan in plans}) == len(plans)


def test_the_hash_is_over_everything_that_is_sent(small: Tokenizer) -> None:
    plan = list(plan_of("chat", small, SEED))
    plan_hash = PlanHash()
    for planned in plan:
        plan_hash.add(planned)
    expected = hashlib.sha256(b"".join(msgspec.json.encode(planned) for planned in plan)).hexdigest()
    assert plan_hash.hexdigest() == plan_sha256(iter(plan)) == expected


def test_a_closed_plan_is_the_first_sessions_without_a_schedule(small: Tokenizer) -> None:
    plan = list(plan_closed(Random(8), small, SEED, 5))
    assert [planned.session for planned in plan] == list(itertools.islice(Random(8).sessions(small, SEED), 5))
    assert {planned.offset_s for planned in plan} == {None}
    assert list(plan_closed(Random(8), small, SEED, 0)) == []


def test_an_open_plan_ends_before_its_duration_or_at_its_count(small: Tokenizer) -> None:
    plan = list(plan_open(Random(8), Constant(4.0), small, SEED, duration_s=2.0, count=100))
    assert [planned.offset_s for planned in plan] == [i / 4 for i in range(8)], "2.0 itself is too late"
    assert [planned.session.id for planned in plan] == [f"random-{i}" for i in range(8)]
    few = plan_open(Random(8), Constant(4.0), small, SEED, duration_s=1e9, count=3)
    assert [planned.offset_s for planned in few] == [0.0, 0.25, 0.5]


def test_a_plan_streams(small: Tokenizer) -> None:
    """Sessions are made when they are requested: no plan has to fit into memory."""
    endless = Recorded([float(k) for k in range(1000)])
    for plan in (
        plan_closed(endless, small, SEED, 10**9),
        plan_open(endless, Constant(1.0), small, SEED, duration_s=1e9, count=10**9),
        plan_recorded(endless, small, SEED, duration_s=1e9, count=10**9),
    ):
        before = endless.made
        assert [planned.session.id for planned in itertools.islice(plan, 3)] == ["s0", "s1", "s2"]
        assert endless.made - before == 3


def test_schedule_and_words_are_independent(small: Tokenizer) -> None:
    slow, fast = (
        list(plan_open(Random(8), Poisson(rate), small, SEED, duration_s=1e9, count=20)) for rate in (1.0, 9.0)
    )
    assert [planned.session for planned in slow] == [planned.session for planned in fast]
    other = list(plan_open(Random(8), Poisson(1.0), small, Seed("7", "b"), duration_s=1e9, count=20))
    assert [planned.offset_s for planned in other] == [planned.offset_s for planned in slow]
    assert [planned.session for planned in other] != [planned.session for planned in slow]


STARTS_S = [12.5, 12.5, 19.1, 300.7, 4000.3]


@pytest.mark.parametrize("time_warp", [1.0, 10.0, 100.0])
def test_a_warp_of_time_divides_offsets_and_think_times_exactly(small: Tokenizer, time_warp: float) -> None:
    source = Recorded([*STARTS_S], think_s=31.7)
    plan = list(plan_recorded(source, small, SEED, duration_s=1e9, count=100, time_warp=time_warp))
    assert [planned.offset_s for planned in plan] == [(start_s - 12.5) / time_warp for start_s in STARTS_S]
    thinks_s = [[turn.think_s for turn in planned.session.turns] for planned in plan]
    assert thinks_s == [[0.0, 31.7 / time_warp, 31.7 / time_warp]] * 5


def test_a_load_begins_with_its_first_session(small: Tokenizer) -> None:
    plan = plan_recorded(Recorded([3600.0, 3601.5]), small, SEED, duration_s=5, count=9)
    assert [planned.offset_s for planned in plan] == [0.0, 1.5]


def test_another_rate_leaves_think_times_alone(small: Tokenizer) -> None:
    """Users think no faster because others arrive more often."""
    source = Recorded([*STARTS_S], think_s=31.7)
    plan = list(plan_recorded(source, small, SEED, duration_s=1e9, count=100, time_warp=10.0, warp_thinking=False))
    assert [planned.offset_s for planned in plan] == [(start_s - 12.5) / 10 for start_s in STARTS_S]
    assert {turn.think_s for planned in plan for turn in planned.session.turns[1:]} == {31.7}


@pytest.mark.parametrize(("time_warp", "count", "expected"), [(1.0, 9, 3), (10.0, 9, 4), (100.0, 9, 5), (100.0, 2, 2)])
def test_a_recorded_plan_ends_with_the_load_after_warping_or_at_its_count(
    small: Tokenizer, time_warp: float, count: int, expected: int
) -> None:
    source = Recorded([*STARTS_S])
    plan = plan_recorded(source, small, SEED, duration_s=60, count=count, time_warp=time_warp)
    assert len(list(plan)) == expected


def test_presets_say_when_they_start_and_random_words_do_not(small: Tokenizer) -> None:
    chat = workload("chat", {"scale": 0.05})
    starts = [session.start_s or 0.0 for session in itertools.islice(chat.sessions(small, SEED), 10)]
    plan = plan_recorded(chat, small, SEED, duration_s=1e9, count=10)
    assert [planned.offset_s for planned in plan] == [start_s - starts[0] for start_s in starts]
    for silent in (Random(8), Recorded([1.0, None])):
        with pytest.raises(BadOption, match="has no start times; give the load an arrival process"):
            list(plan_recorded(silent, small, SEED, duration_s=9, count=9))
