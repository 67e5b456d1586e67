"""The real runner around a model whose logits follow from the last token alone."""

import pytest
import torch

from bakeoff.reference_engine.engine.runner import ModelRunner
from bakeoff.reference_engine.errors import EngineUnavailableError
from bakeoff.reference_engine.sampling import Sampler, choose_on_device
from tests.reference_engine.stepping import Bench, request

VOCABULARY = 100
TABLE = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(4))
SAMPLING = (
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 1},
    {"seed": 2, "top_k": 20},
    {"seed": 3, "top_p": 0.9},
    {"seed": 4, "min_p": 0.05, "temperature": 1.5},
)


class TableExecutor:
    """Computes logits by looking them up."""

    def __init__(self):
        self.num_ahead = 0

    def execute(self, batch, read=None):
        token_ids = torch.tensor(batch.token_ids)
        if batch.previous is not None:
            self.num_ahead += 1
            token_ids = torch.where(token_ids < 0, batch.previous[(-1 - token_ids).clamp(min=0)], token_ids)
        return TABLE[token_ids[batch.wanted_rows]]


@pytest.fixture(params=["host", "device"])
def make_bench(request, monkeypatch):
    """Benches whose runner draws as on a CPU, or as on a GPU."""
    if request.param == "device":
        monkeypatch.setattr(ModelRunner, "_choose", lambda _, logits, sequences: choose_on_device(logits, sequences))

    def make(overlap):
        bench = Bench(ModelRunner(TableExecutor(), Sampler()))
        bench.engine.core.overlap = overlap
        return bench

    return make


def make_requests():
    return [request(str(i), prompt=[i + 1, i + 2], output=12, **params) for i, params in enumerate(SAMPLING)]


def outputs(requests):
    return [sequence.token_ids[sequence.prompt_len :] for sequence in requests]


def alone(make_bench, requests):
    for sequence in requests:
        make_bench(overlap=False).finish(sequence)
    return outputs(requests)


@pytest.mark.parametrize("overlap", [False, True])
def test_seeded_requests_get_the_same_tokens_alone_in_company_and_in_flight(make_bench, overlap):
    bench, together = make_bench(overlap), make_requests()
    bench.finish(*together)
    assert outputs(together) == alone(make_bench, make_requests())
    assert (bench.runner._executor.num_ahead > 8) is overlap


@pytest.mark.parametrize("cancels", [False, True])
def test_a_request_that_needs_the_host_changes_nothing_for_those_in_flight(make_bench, cancels):
    bench, (late, *together) = make_bench(overlap=True), make_requests()
    late = request("late", output=4, seed=7, logprobs=0)
    bench.add(*together)
    bench.step()
    bench.add(late)
    bench.step()  # launches the late one's prompt beside draws whose last tokens are in flight
    assert any(chunk.request is late for step in bench.engine.core._in_flight for chunk in step.step.chunks)
    if cancels:
        bench.engine.cancel("late")
    bench.finish()
    assert outputs(together) == alone(make_bench, make_requests()[1:])
    if not cancels:
        assert outputs([late]) == alone(make_bench, [request("late", output=4, seed=7, logprobs=0)])


def test_results_are_checked_before_they_are_used():
    """A step whose other rank has died has undefined results."""

    def check():
        raise EngineUnavailableError("rank 1 ended")

    bench = Bench(ModelRunner(TableExecutor(), Sampler(), None, check))
    with pytest.raises(EngineUnavailableError, match="rank 1 ended"):
        bench.finish(request("0", prompt=[1, 2], output=4))
