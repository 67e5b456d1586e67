"""Products with chosen experts under Triton's interpreter, which multiplies bfloat16 as if it were integers."""

import pytest
import torch
from triton.runtime import interpreter

from bakeoff.reference_engine.kernels import grouped_products
from bakeoff.reference_engine.kernels.code_words import Words
from bakeoff.reference_engine.kernels.grouped_products import add_weighed, group, multiply_gathered, multiply_scattered
from bakeoff.reference_engine.quantization import coded_linear, mxfp4
from bakeoff.reference_engine.quantization.rounding import absmax, zero_point

EXPERTS, OUTPUTS, INPUTS = 5, 70, 40


def routed(tokens, choices):
    rates = torch.rand(tokens, EXPERTS)
    rates[:, 3] = 0  # an expert that nobody chooses, between others
    return rates.topk(choices, dim=1).indices


@pytest.fixture
def small_tiles(monkeypatch):
    tiles = [tile._replace(inputs=32) for tile in grouped_products._TILES]
    monkeypatch.setattr(grouped_products, "_TILES", tiles)


@pytest.fixture
def in_order(monkeypatch):
    """Sums in the order of the inputs; OpenBLAS, on some processors, sums the columns of one tile in several orders."""

    def create_dot(_, a, b, d, *precision):
        products = a.data[:, :, None].astype(d.data.dtype) * b.data[None]
        return interpreter.TensorHandle(products.sum(axis=1) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("own", [range(EXPERTS), range(2, 4), range(1)], ids=str)
@pytest.mark.parametrize(("tokens", "choices"), [(0, 2), (1, 2), (37, 3), (90, 4)])
def test_products_and_sums_equal_those_of_each_expert(own, tokens, choices):
    rows, chosen = torch.randn(tokens, INPUTS), routed(tokens, choices)
    weights, bias = torch.randn(len(own), OUTPUTS, INPUTS), torch.randn(len(own), OUTPUTS)
    back, shares = torch.randn(len(own), INPUTS, OUTPUTS), torch.rand(tokens, choices)
    exact = torch.zeros(tokens, INPUTS, dtype=torch.float64)
    for token in range(tokens):
        for choice in range(choices):
            expert = int(chosen[token, choice]) - own.start
            if 0 <= expert < len(own):
                inner = weights[expert].double() @ rows[token].double() + bias[expert].double()
                exact[token] += shares[token, choice].double() * (back[expert].double() @ inner)

    groups = group(chosen, own)
    inner = multiply_gathered(rows, weights, bias, groups, batch_invariant=False)
    values = multiply_scattered(inner, back, None, groups, batch_invariant=False)
    total = add_weighed(values, shares, chosen, own)
    torch.testing.assert_close(total.double(), exact, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("own", [range(EXPERTS), range(2, 4)], ids=str)
@pytest.mark.parametrize(("tokens", "choices"), [(0, 2), (1, 2), (90, 4)])
@pytest.mark.parametrize(
    ("quantise", "bias"),
    [
        (lambda weight: absmax(weight, 8, 96), True),
        (lambda weight: absmax(weight, 4, 32), False),
        (lambda weight: zero_point(weight, 4, 32), True),
        (mxfp4.quantised, False),
    ],
    ids=["int8", "int4", "int4-zp", "mxfp4"],
)
def test_products_with_codes_equal_those_with_their_numbers(monkeypatch, quantise, bias, tokens, choices, own):
    """Experts whose zeros are whole numbers beside one whose are not."""
    monkeypatch.setattr(coded_linear, "has_triton", lambda device: True)
    matrices = [quantise(torch.randn(128, 96) / 9).to(torch.device("cpu"), torch.float16) for _ in own]
    if getattr(matrices[-1], "offsets", None) is not None:
        matrices[-1].offsets[3, 1] += matrices[-1].scales[3, 1] / 3
    weights = Words.stacked([matrix.linear(None).weight for matrix in matrices])
    rows, chosen = torch.randn(tokens, 96).half(), routed(tokens, choices)
    biases = torch.randn(len(own), 128).half() if bias else None
    groups = group(chosen, own)
    inner = multiply_gathered(rows, weights, biases, groups, batch_invariant=False)
    for place, pair in enumerate(groups.order.tolist()):
        expert = int(chosen.flatten()[pair]) - own.start
        if 0 <= expert < len(own):
            exact = matrices[expert].dequantised().double() @ rows[pair // choices].double()
            exact += biases[expert] if bias else 0
            torch.testing.assert_close(inner[place].double(), exact, atol=8e-3, rtol=4e-3)
    values = multiply_scattered(rows[groups.order // choices], weights, biases, groups, batch_invariant=False)
    is_own = ((chosen >= own.start) & (chosen < own.stop)).flatten()
    assert torch.equal(values[groups.order][is_own[groups.order]], inner[is_own[groups.order]])


@pytest.mark.usefixtures("in_order")
def test_bits_of_a_token_depend_on_no_other_token_if_they_must_not():
    rows, weights, chosen = torch.randn(200, 160).half(), torch.randn(EXPERTS, OUTPUTS, 160).half(), routed(200, 2)
    # The halves of a tile of 128 inputs cancel out, those of tiles of 64 exactly: a tile of another width shows.
    rows[:, 64:128], weights[..., 64:128] = rows[:, :64], -weights[..., :64]

    def products(first, count, *, batch_invariant=True):
        groups, part = group(chosen[first : first + count], range(EXPERTS)), rows[first : first + count]
        gathered = multiply_gathered(part, weights, None, groups, batch_invariant=batch_invariant)
        return gathered[groups.order.argsort()].view(count, 2, OUTPUTS)

    whole = products(0, 200)
    for first, count in ((0, 1), (77, 1), (100, 64)):
        assert torch.equal(products(first, count), whole[first : first + count])
    assert not torch.equal(products(0, 200, batch_invariant=False), whole)
