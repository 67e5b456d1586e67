"""A regression of known size: the same answers, later."""

import time

import pytest
import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.models.execution import SlowedExecutor


class Waiting:
    """Computes nothing, in 20 ms."""

    def __init__(self) -> None:
        self.storage = type("Storage", (), {"device": torch.device("cpu")})()
        self.logits = torch.zeros(2, 3)

    def execute(self, batch, read=None):
        assert batch == "batch"
        time.sleep(0.02)
        return self.logits


def seconds(executor) -> float:
    began = time.perf_counter()
    for _ in range(5):
        executor.execute("batch")
    return time.perf_counter() - began


def test_it_takes_so_much_longer_and_answers_the_same() -> None:
    plain = Waiting()
    slowed = SlowedExecutor(plain, 1.0)
    assert slowed.execute("batch") is plain.logits
    assert slowed.storage is plain.storage
    assert seconds(slowed) > 1.6 * 5 * 0.02


@pytest.mark.parametrize("share", [-0.1, 11.0])
def test_what_no_share_is(share: float) -> None:
    with pytest.raises(ConfigError, match=r"--ablation slow:.* is not among .* slow:SHARE \(to test gates; 0 to 10\)"):
        EngineConfig(model="m", ablation=f"slow:{share}")
