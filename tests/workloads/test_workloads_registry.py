"""Workloads by name."""

import pytest

from workloads import WORKLOADS, Chat, Random, UnknownWorkload, WorkloadError, workload


def test_every_listed_workload_can_be_made_with_its_defaults() -> None:
    assert WORKLOADS == ("chat", "random")
    assert [workload(name, {}) for name in WORKLOADS] == [Chat(), Random()]


def test_options_reach_the_workload() -> None:
    assert workload("chat", {"scale": 0.5}) == Chat(scale=0.5)
    assert workload("random", {"input_tokens": 7, "spread": 0.25}) == Random(7, 32, 0.25)


def test_an_unknown_workload_names_the_nearest() -> None:
    with pytest.raises(UnknownWorkload) as caught:
        workload("randm", {})
    assert str(caught.value) == "unknown workload 'randm'; did you mean 'random'? known: chat, random"
    assert isinstance(caught.value, WorkloadError)
