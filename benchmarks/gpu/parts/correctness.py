"""Errors of the kernels against float64, and of captured steps against eager ones."""

import random
from collections.abc import Iterator, Sequence

import torch
from torch.nn.functional import silu

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.attention.triton_backend import TritonAttention
from bakeoff.reference_engine.core.quantization_names import KvCacheDtypeName
from bakeoff.reference_engine.engine.graph_execution import GraphExecutor
from bakeoff.reference_engine.kernels.cuda import CudaKernels, replace_pending
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kernels.small_products import multiply
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, RELEASED, Visible, block_list
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.quantised import QuantisedStore, store_maker
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.models.execution import LocalExecutor
from bakeoff.reference_engine.models.linear import FloatLinear
from benchmarks.gpu.parts.model import TINY, batch_of, random_model, storage_for, tables_for

CUDA = torch.device("cuda")
KINDS: tuple[KvCacheDtypeName, ...] = ("auto", "int8", "fp8")
BLOCKS = 2000
Case = tuple[KvCacheDtypeName, int, int, int, int, Visible, torch.dtype]
"""Cache, heads of a group, key/value heads, elements of a head, block size, window and sinks, dtype."""
QUANTISED: list[Case] = [
    ("int8", 4, 8, 128, 16, EVERYTHING, torch.bfloat16),
    ("fp8", 4, 8, 128, 16, EVERYTHING, torch.bfloat16),
    ("int8", 7, 2, 96, 16, Visible(50, 5), torch.float16),
    ("fp8", 7, 2, 96, 16, Visible(50, 5), torch.float16),
    ("fp8", 2, 4, 256, 16, Visible(700, 70), torch.bfloat16),
    ("int8", 4, 2, 64, 16, Visible(33), torch.float32),
]  # fmt: skip
PLAIN_CASES: list[Case] = [
    ("auto", 4, 8, 128, 16, EVERYTHING, torch.bfloat16),
    ("auto", 3, 3, 64, 16, EVERYTHING, torch.bfloat16),
    ("auto", 1, 5, 80, 7, Visible(100), torch.bfloat16),
    ("auto", 7, 2, 96, 16, Visible(50, 5), torch.float16),
    ("auto", 2, 4, 256, 16, Visible(700, 70), torch.bfloat16),
    ("auto", 20, 1, 128, 1, EVERYTHING, torch.bfloat16),
    ("auto", 4, 2, 64, 16, Visible(33), torch.float32),
]  # fmt: skip
# Name, key/value heads of eight, elements of a head, window, bound of scores, learned sinks, queries towards sinks.
SCORED = [
    ("bounded scores", 4, 256, EVERYTHING, 5.0, False, False),
    ("learned sinks", 1, 64, EVERYTHING, None, True, False),
    ("learned sinks in a window", 1, 64, Visible(128), None, True, False),
    ("sinks seen from elsewhere", 2, 64, Visible(200, 4), None, False, True),
]  # fmt: skip
SCORED_KINDS: dict[str, tuple[KvCacheDtypeName, ...]] = {"sinks seen from elsewhere": ("auto", "fp8")}
"""Caches, where not the plain one alone."""


def error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest deviation, relative to the element and to a typical one of its row.

    The row matters, because attention over few keys gives larger elements than over many.
    """
    if not result.isfinite().all():
        return float("inf")
    exact = exact.double()
    return float(((result.double() - exact).abs() / (exact.abs() + exact.square().mean(-1, keepdim=True).sqrt())).max())


def random_rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=CUDA).bfloat16()


def rows_errors() -> Iterator[tuple[str, float]]:
    """Errors of operations on rows, of odd and of real sizes."""
    kernels = CudaKernels()
    for rows, dim in ((1, 4096), (3, 45), (64, 5120), (257, 576), (8192, 4096)):
        residual, x, weight = random_rows(rows, dim), random_rows(rows, dim), random_rows(dim)
        total = (residual.double() + x.double()).bfloat16()
        normed = kernels.add_rms_norm(residual, x, weight, 1e-5)
        wide = total.double()
        exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
        yield "add_rms_norm", max(error(residual, total), error(normed, exact))
        gates = 2 * random_rows(rows, 2 * dim)
        yield "silu_mul", error(kernels.silu_mul(gates), silu(gates[:, :dim].double()) * gates[:, dim:].double())
    for rows, heads, dim in ((1, 40, 128), (7, 5, 80), (300, 12, 64), (33, 9, 256)):
        whole, cos, signed_sin = random_rows(rows, heads + 3, dim), random_rows(rows, 1, dim), random_rows(rows, 1, dim)
        part = whole[:, :heads].double()
        exact = part * cos.double() + part.roll(dim // 2, -1) * signed_sin.double()
        yield "apply_rope", error(kernels.apply_rope(whole[:, :heads], cos, signed_sin), exact)
    for rows, dim in ((1, 128_256), (5, 49_152), (256, 128_256), (3, 7)):
        for scores in (torch.randn(rows, dim, device=CUDA), random_rows(rows, dim)):  # bf16 has ties
            yield "argmax", float((kernels.argmax(scores).cpu() != scores.cpu().float().argmax(-1)).sum())
    for rows in (0, 1, 33):
        weight, x = random_rows(1000, 512), random_rows(rows, 512)
        logits = FloatLinear(weight)(x)
        assert logits.dtype == torch.float32
        yield "float32 logits", error(logits, x.double() @ weight.double().T) if rows else 0.0
    for rows, outputs, inputs in (
        (1, 6144, 4096),
        (7, 4096, 14_336),
        (16, 28_672, 512),
        (33, 64, 1024),
        (64, 4096, 512),
    ):
        weight, x, bias = random_rows(outputs, inputs), random_rows(rows, inputs), random_rows(outputs)
        exact = x.double() @ weight.double().T
        yield "small products", error(multiply(x, weight, bias), exact + bias.double())
        yield "small products", error(multiply(x, weight, dtype=torch.float32), exact)
    token_ids, previous = torch.tensor([4, -2, -1], device=CUDA), torch.tensor([8, 9], device=CUDA)
    replace_pending(token_ids, previous)
    yield "replace_pending", float(token_ids.tolist() != [4, 9, 8])


def attention_errors() -> Iterator[tuple[str, float]]:
    """Errors for decodes, chunks and both, over a cache that holds NaN wherever nothing visible was written."""
    yield from case_errors(PLAIN_CASES + QUANTISED)
    rng = random.Random(0)
    long_past = CacheLayout((LayerLayout(8, 128, 128, EVERYTHING),))
    for kind in KINDS:
        found = attention_error(long_past, [(5, 1), (3300, 1100)], 4, 16, torch.bfloat16, kind)
        yield f"attention behind a long past, {kind}", found
    for name, kv_heads, dim, visible, soft_cap, has_sinks, looks_apart in SCORED:
        scoring = Scoring(soft_cap=soft_cap, sinks=2 * torch.randn(8, device=CUDA) if has_sinks else None)
        layout = CacheLayout((LayerLayout(kv_heads, dim, dim, visible),))
        for shape in (
            [(700, 1), (3, 1)],
            [(rng.randrange(900), 1) for _ in range(150)],
            [(2000, 1), (0, 1300), (90, 40)],
        ):
            for kind in SCORED_KINDS.get(name, ("auto",)):
                found = attention_error(
                    layout, shape, 8 // kv_heads, 16, torch.bfloat16, kind, scoring=scoring, looks_apart=looks_apart
                )
                yield f"attention, {name}, {kind}", found


def case_errors(cases: Sequence[Case]) -> Iterator[tuple[str, float]]:
    """Errors of six batches in each case; decodes come first, a chunk that is long enough for cuDNN last."""
    rng = random.Random(0)
    for number, (kind, group, kv_heads, dim, size, visible, dtype) in enumerate(cases):
        decodes = [[(rng.randrange(900), 1) for _ in range(count)] for count in (1, 3, 20, 150)]
        chunks = [(0, 1), (0, 300), (rng.randrange(700), 130), (5, 2), (0, 17)]
        mixed = [(0, 1), (1023, 1), (400, 1), (0, 1300), *chunks[1:], (3, 1)]
        for shape in (*decodes, chunks[1:], mixed):
            layout = CacheLayout((LayerLayout(kv_heads, dim, dim, visible),))
            end = ", long" if shape is mixed else ""
            yield f"attention {number}, {kind}{end}", attention_error(layout, shape, group, size, dtype, kind)


def attention_error(
    layout: CacheLayout,
    shape: list[tuple[int, int]],
    group: int,
    size: int,
    dtype: torch.dtype,
    kind: KvCacheDtypeName = "auto",
    *,
    scoring: Scoring = PLAIN,
    looks_apart: bool = False,
) -> float:
    layer = layout.layers[0]
    needed = sum(-(-(start + length) // size) for start, length in shape)
    storage = allocate_storage(
        layout, num_blocks=[needed], block_size=size, dtype=dtype, device=CUDA, make_store=store_maker(kind)
    )
    store = storage.stores[0]
    order = torch.randperm(needed).tolist()
    spans, exact, fresh, apart = [], [], [], []
    for part in store.parts:
        part.fill_(float("nan") if part.is_floating_point() else 0x7F)
    for start, length in shape:
        table = block_list(order.pop() for _ in range(-(-(start + length) // size)))
        heads = (group * layer.num_kv_heads, layer.num_kv_heads, layer.num_kv_heads)
        query, *cached = (torch.randn(start + length, count, layer.key_dim, device=CUDA).to(dtype) for count in heads)
        slots = torch.tensor([table[i // size] * size + i % size for i in range(start)], device=CUDA, dtype=torch.int64)
        store.write(slots, *(rows[:start] for rows in cached))
        fresh.append(torch.cat((query, *cached), dim=1)[start:])
        if isinstance(store, QuantisedStore):
            cached = [store.codec.decode(store.codec.encode(rows.float()), torch.float32) for rows in cached]
        apart.append(torch.randn(length, *query.shape[1:], device=CUDA).to(dtype) if looks_apart else query[start:])
        exact.append(exact_attention(query[start:], apart[-1], *cached, layer.visible, scoring))
        for index in layer.visible.out_of_window_blocks(start, size):
            table[index] = RELEASED
        spans.append(Span([table], start, length))
    query, key, value = torch.cat(fresh).split(heads, dim=1)
    towards_sinks = torch.cat(apart) if looks_apart else None
    attended = (
        TritonAttention(storage).begin_step(spans).attend(0, query, key, value, scoring, towards_sinks=towards_sinks)
    )
    return error(attended, torch.cat(exact))


def exact_attention(
    query: torch.Tensor,
    apart: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: Visible,
    scoring: Scoring,
) -> torch.Tensor:
    """Attention of a sequence's last tokens in float64: [tokens, heads · dim]."""
    tokens, heads, dim = query.shape
    place = torch.arange(len(keys), device=CUDA)
    now = place[len(keys) - tokens :, None]
    hidden = place > now
    if visible.window is not None:
        hidden |= (place <= now - visible.window) & (place >= visible.sinks)
    keys, values = (part.double().repeat_interleave(heads // part.shape[1], dim=1) for part in (keys, values))
    scores, others = (torch.einsum("qhd,khd->hqk", each.double(), keys) * dim**-0.5 for each in (query, apart))
    scores = torch.where(place < visible.sinks, others, scores)
    if scoring.soft_cap is not None:
        scores = scoring.soft_cap * (scores / scoring.soft_cap).tanh()
    weights = scores.masked_fill(hidden, float("-inf"))
    if scoring.sinks is not None:
        weights = torch.cat((weights, scoring.sinks.double()[:, None, None].expand(-1, tokens, 1)), dim=-1)
    weights = weights.softmax(dim=-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


def graph_errors(dtype: torch.dtype, steps: int = 24) -> Iterator[tuple[str, float]]:
    """Greedy decoding with graphs, in batches that shrink, grow and change order, against stock torch attention.

    Every third step also has a part of a prompt.

    Yields:
        The deviation of the logits of each step, and how many tokens differ; every second step's tokens reach the
        next one on the device alone.
    """
    model, lengths = random_model(TINY, dtype), [1, 9, 64, 17, 130, 33, 5, 400, 12]
    (prompt, *tables), blocks = tables_for(len(lengths) + 1, max(lengths) + steps), (len(lengths) + 1) * 40
    graph_storage, eager_storage = storage_for(TINY, blocks, dtype), storage_for(TINY, blocks, dtype)
    graphs = GraphExecutor(model, TritonAttention(graph_storage), max_rows=16, max_tokens=TINY.max_position_embeddings)
    eager = LocalExecutor(model, TorchAttention(eager_storage), eager_storage)
    rng = random.Random(1)
    rows = list(range(len(lengths)))
    prompts = [rng.randrange(TINY.vocab_size) for length in lengths for _ in range(length)]
    batch = batch_of(tables, [(0, length) for length in lengths], prompts)
    pending: torch.Tensor | None = None
    tokens: dict[int, int] = {}
    computed = 0  # of the prompt
    for step in range(steps):
        logits, expected = graphs.execute(batch), eager.execute(batch)
        assert logits is not None
        assert expected is not None
        yield f"graph logits {dtype}", error(logits, expected)
        logits, expected = logits[: len(rows)], expected[: len(rows)]
        chosen, pending = expected.argmax(dim=-1), CudaKernels().argmax(logits)
        # In 16 bits rounding may change a choice, so that tokens are compared in float32 only.
        yield "graph tokens", float((chosen != pending).sum()) if dtype == torch.float32 else 0.0
        tokens |= dict(zip(rows, chosen.tolist(), strict=True))
        for row in rows:
            lengths[row] += step > 0
        previous_rows, rows = rows, rng.sample(range(len(lengths)), rng.randint(1, len(lengths)))
        is_late = step % 2 and dtype == torch.float32
        ids = [-1 - previous_rows.index(row) if is_late and row in previous_rows else tokens[row] for row in rows]
        shape, of_step = [(lengths[row], 1) for row in rows], [tables[row] for row in rows]
        if step % 3 == 0:
            length = rng.randint(2, 40)
            shape, of_step = [*shape, (computed, length)], [*of_step, prompt]
            ids += [rng.randrange(TINY.vocab_size) for _ in range(length)]
            computed += length
        batch = batch_of(of_step, shape, ids, pending)
