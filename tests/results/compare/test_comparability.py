"""What must be equal between two sides, and what need not be."""

from typing import Any

import msgspec
import pytest

from bakeoff.results.compare.comparability import difference, digest
from bakeoff.results.log.run_log import Manifest
from bakeoff.results.records import Slo
from tests.results.builders import Sheet, manifest

GPU = {"name": "H200", "uuid": "GPU-1", "memory_bytes": 150 * 2**30, "driver": "580.1"}
WITH_GPU = {"cpu": "Xeon", "cores": 8, "memory_bytes": 64 * 2**30, "gpus": [GPU], "kernel": "6.1"}


def run(environment: dict[str, Any] | None = None, **changes: Any) -> Manifest:
    made = manifest(Sheet(), [])
    return msgspec.structs.replace(made, environment=environment or WITH_GPU, **changes)


def test_two_gpus_of_one_model_are_alike() -> None:
    other = WITH_GPU | {"gpus": [GPU | {"uuid": "GPU-2"}], "memory_bytes": 64 * 2**30 - 4096, "kernel": "6.2"}
    assert difference([run(), run(other)]) is None
    assert digest(run()) == digest(run(other))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment": WITH_GPU | {"gpus": [GPU | {"driver": "590.2"}]}}, "gpus ("),
        ({"environment": WITH_GPU | {"gpus": [GPU, GPU]}}, "gpus ("),
        ({"environment": WITH_GPU | {"memory_bytes": 32 * 2**30}}, "memory_gib (64 and 32)"),
        ({"experiment": {"trial": {"cache": "warm"}}}, "trial.cache (unset and warm)"),
        ({"experiment": {"trial": {"max_requests": 10}}}, "trial.max_requests (unset and 10)"),
        ({"experiment": {"client": {"workers": 2}}}, "client.workers (unset and 2)"),
        ({"experiment": {"client": {"transport": "aiohttp"}}}, "client.transport (unset and aiohttp)"),
        ({"experiment": {"quality": {"logprobs": True}}}, "quality.logprobs (unset and True)"),
        ({"slo": Slo(ttft_s=0.1)}, "slo.ttft_s (0.2 and 0.1)"),
    ],
)
def test_what_must_be_equal(changes: dict[str, Any], reason: str) -> None:
    others = run(**changes)
    assert (difference([run(), run(), others]) or "").startswith(reason)
    assert digest(run()) != digest(others)


def test_the_timeout_that_was_the_default_is_that_of_a_run_that_does_not_state_it() -> None:
    """A file with it was stored without it, and is stored with it since the default depends on the window."""
    stated = [run(experiment={"trial": {"timeout_s": timeout_s}}) for timeout_s in (120.0, 60.0)]
    assert difference([run(), stated[0]]) is None
    assert digest(run()) == digest(stated[0])
    assert difference([run(), stated[1]]) == "trial.timeout_s (unset and 60.0)"


def test_what_touches_no_figure_need_not_be_equal() -> None:
    labels: dict[str, Any] = {"name": "other", "repeats": 9, "client": {"calibrate": False}, "quality": {"samples": 2}}
    assert difference([run(experiment=labels), run()]) is None
    assert difference([run()]) is None
