"""A plan is fixed by its seed, down to the last byte, in every process."""

import hashlib
import itertools
import os
import subprocess
import sys

import msgspec
import pytest

from workloads import Chat, Constant, Poisson, Random, Tokenizer, TrafficPlan, plan_closed, plan_open

# Change these only with a reason to tell everyone that old and new runs are no longer comparable.
CHAT_SHA256 = "12d38bc675d6b62a4e88b1b23c335fac6d16d80aa6f92c6c60db4d9547fc044c"
RANDOM_SHA256 = "e2c41e40b4805845bbaccd728e9cbca1fbfd380ce74ccf760a0f576b6d0356f5"
REAL_CHAT_SHA256 = "e4541446326d8df249e23a9efab293413d4f07d28a5cf72f0bdbb8d87fa42e86"

IN_ANOTHER_PROCESS = """
import pathlib, sys
from tests.workloads.small_tokenizers import checkpoint
from tests.workloads.test_workloads_plan import chat_plan, random_plan
from workloads import Tokenizer
tokenizer = Tokenizer(checkpoint(pathlib.Path(sys.argv[1])))
print(chat_plan(tokenizer, "7").sha256, random_plan(tokenizer, "7").sha256)
"""


def chat_plan(tokenizer: Tokenizer, seed: str) -> TrafficPlan:
    return plan_open(Chat(scale=0.125), Poisson(2.0), tokenizer, seed, duration_s=60.0, count=40)


def random_plan(tokenizer: Tokenizer, seed: str) -> TrafficPlan:
    return plan_closed(Random(40, 10, 0.5), tokenizer, seed, 40)


def test_the_hashes_of_two_plans_are_pinned(small: Tokenizer) -> None:
    assert chat_plan(small, "7").sha256 == CHAT_SHA256
    assert random_plan(small, "7").sha256 == RANDOM_SHA256


@pytest.mark.model
def test_the_hash_of_a_plan_for_the_real_model_is_pinned(smollm2: Tokenizer) -> None:
    assert chat_plan(smollm2, "7").sha256 == REAL_CHAT_SHA256


@pytest.mark.parametrize("hash_seed", ["0", "1", "4294967295"])
def test_another_process_with_another_hash_seed_plans_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, hash_seed: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path_factory.mktemp("tokenizer"))],
        env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [CHAT_SHA256, RANDOM_SHA256], done.stderr


def test_any_other_seed_workload_or_schedule_has_another_hash(small: Tokenizer) -> None:
    plans = [
        plan_closed(Random(20), small, "7", 10),
        plan_closed(Random(20), small, "8", 10),
        plan_closed(Random(20), small, "7", 9),
        plan_closed(Random(21), small, "7", 10),
        plan_closed(Random(20, 31), small, "7", 10),
        plan_closed(Chat(scale=0.1), small, "7", 10),
        plan_open(Random(20), Constant(1.0), small, "7", duration_s=100, count=10),
        plan_open(Random(20), Constant(2.0), small, "7", duration_s=100, count=10),
        plan_open(Random(20), Poisson(1.0), small, "7", duration_s=100, count=10),
    ]
    assert len({plan.sha256 for plan in plans}) == len(plans)


def test_the_hash_is_over_everything_that_is_sent(small: Tokenizer) -> None:
    plan = chat_plan(small, "7")
    assert plan.sha256 == hashlib.sha256(msgspec.json.encode(plan.sessions)).hexdigest()


def test_a_closed_plan_is_the_first_sessions_without_a_schedule(small: Tokenizer) -> None:
    plan = plan_closed(Random(8), small, "7", 5)
    assert [planned.session for planned in plan.sessions] == list(itertools.islice(Random(8).sessions(small, "7"), 5))
    assert {planned.offset_s for planned in plan.sessions} == {None}
    assert plan_closed(Random(8), small, "7", 0).sessions == ()


def test_an_open_plan_ends_before_its_duration(small: Tokenizer) -> None:
    plan = plan_open(Random(8), Constant(4.0), small, "7", duration_s=2.0, count=100)
    assert [planned.offset_s for planned in plan.sessions] == [i / 4 for i in range(8)], "2.0 itself is too late"
    assert [planned.session.id for planned in plan.sessions] == [f"random-{i}" for i in range(8)]


def test_an_open_plan_ends_at_its_count(small: Tokenizer) -> None:
    plan = plan_open(Random(8), Constant(4.0), small, "7", duration_s=1e9, count=3)
    assert [planned.offset_s for planned in plan.sessions] == [0.0, 0.25, 0.5]


def test_the_schedule_has_no_say_in_what_is_sent(small: Tokenizer) -> None:
    """Two loads of one experiment differ in their times only."""
    slow = plan_open(Random(8), Poisson(1.0), small, "7", duration_s=1e9, count=20)
    fast = plan_open(Random(8), Poisson(9.0), small, "7", duration_s=1e9, count=20)
    assert [planned.session for planned in slow.sessions] == [planned.session for planned in fast.sessions]
