"""Arithmetic in claim files: numbers, names, ``+ - * / **``, and functions of the planner's cost model.

Functions take the name of a model (``bakeoff plan``'s) first, then of a GPU if the result depends on the device:

- ``parameters(model)``, ``active_parameters(model)``
- ``weight_bytes(model, precision)``, ``kv_bytes(model, kv)`` (of one token),
  ``memory_bytes(model, sequences, context, precision, kv)``
- ``itl_floor_s(model, gpu, batch, context, precision, kv)``, ``ttft_floor_s(model, gpu, tokens, precision)``
- ``critical_batch(model, gpu, precision, context)``: infinite if decode is memory-bound at any batch
- ``decode_compute_share(model, gpu, batch, context)``: time of the products over that of the memory traffic
- ``prefill_compute_share(model, gpu, tokens)``: the same of a prompt
- ``bytes_share_of_attention(model, batch, context)``: KV reads over all bytes of a decode step
- ``attention_intensity(model, batch, context)``: operations per byte of the KV cache in a decode step
"""

import ast
import operator
from collections.abc import Callable, Mapping

from bakeoff.harness.sizing.device import critical_batch, is_compute_bound
from bakeoff.harness.sizing.gpus import gpu_table
from bakeoff.harness.sizing.model import Chunk, Machine, ModelCosts, floor_s, load_model, without_cache
from bakeoff.harness.sizing.precision import cache_named, precision_named
from bakeoff.harness.sizing.step_times import limits
from benchmarks.claims.interpreter.errors import BadClaim

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def evaluate(text: str, names: Mapping[str, float]) -> float:
    """Value of an expression.

    Args:
        text: checked by :func:`check`.
        names: value of each name.

    Raises:
        BadClaim: it names something unknown, or divides by zero.
        BadPlan: a model, GPU or precision is unknown.
    """
    try:
        return float(_value(ast.parse(text, mode="eval").body, names))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadClaim(f"'{text}' has no value: {error}") from error


def check(text: str, inputs: Mapping[str, float], *, are_inputs_complete: bool = False) -> str | None:
    """Why a text is not a valid expression; None if it is one.

    Args:
        text: to check.
        inputs: known names.
        are_inputs_complete: whether other names are a mistake.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return f"'{text}' is not an expression"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            return f"unknown function '{ast.unparse(node.func)}'; known: {', '.join(_FUNCTIONS)}"
        if not isinstance(node, _ALLOWED):
            return f"'{text}' has a part that is not allowed: {type(node).__name__}"
    unknown = names_in(text) - inputs.keys()
    return f"'{min(unknown)}' is not an input" if are_inputs_complete and unknown else None


def names_in(text: str) -> set[str]:
    """Names in an expression, functions excluded."""
    return {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)} - {*_FUNCTIONS}


_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.USub, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword,
    *_BINARY,
)  # fmt: skip


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            arguments = {str(keyword.arg): _argument(keyword.value, names) for keyword in keywords}
            return _FUNCTIONS[name](*(_argument(arg, names) for arg in args), **arguments)
        case _:
            raise TypeError(ast.unparse(node))


def _argument(node: ast.expr, names: Mapping[str, float]) -> float | str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _value(node, names)


def _costs(model: str, precision: str = "bf16", kv: str = "bf16") -> ModelCosts:
    return load_model(model).costs(precision_named(precision), cache_named(kv))


def _machine(gpu: str, precision: str = "bf16") -> Machine:
    table = gpu_table()
    if gpu not in table:
        raise BadClaim(f"unknown GPU '{gpu}'; known: {', '.join(table)}")
    return limits(table[gpu], precision_named(precision))


def _critical(model: str, gpu: str, precision: str = "bf16", context: float = 0) -> float:
    costs, machine = _costs(model, precision), _machine(gpu, precision)
    batch = critical_batch(lambda count: is_compute_bound(costs, machine, count, int(context)))
    return float("inf") if batch is None else batch


def _share(costs: ModelCosts, gpu: str, chunk: Chunk) -> float:
    step, machine = costs.step([chunk]), _machine(gpu)
    return (step.flops / machine.flops_per_s) / (step.bytes / machine.bytes_per_s)


def _attention_share(model: str, batch: float, context: float) -> float:
    costs = _costs(model)
    whole = costs.decode(int(batch), int(context)).bytes
    return (whole - without_cache(costs).decode(int(batch), int(context)).bytes) / whole


def _intensity(model: str, batch: float, context: float) -> float:
    """Operations of attention: those with a context less those without."""
    costs, past = _costs(model), int(context)
    pairs = costs.decode(int(batch), past).flops - costs.decode(int(batch), 0).flops
    return pairs / (costs.decode(int(batch), past).bytes - costs.decode(int(batch), 0).bytes)


def _parameters(model: str) -> float:
    return _costs(model).parameters


def _active_parameters(model: str) -> float:
    return load_model(model).active_parameters


def _weight_bytes(model: str, precision: str = "bf16") -> float:
    return _costs(model, precision).weight_bytes


def _kv_bytes(model: str, kv: str = "bf16") -> float:
    return _costs(model, kv=kv).kv_bytes_per_token


def _memory_bytes(model: str, sequences: float, context: float, precision: str = "bf16", kv: str = "bf16") -> float:
    return _costs(model, precision, kv).memory_bytes(int(sequences), int(context))


def _itl_floor_s(
    model: str, gpu: str, batch: float = 1, context: float = 0, *, precision: str = "bf16", kv: str = "bf16"
) -> float:
    return floor_s(_costs(model, precision, kv).decode(int(batch), int(context)), _machine(gpu, precision))


def _ttft_floor_s(model: str, gpu: str, tokens: float, precision: str = "bf16") -> float:
    return floor_s(_costs(model, precision).step([Chunk(int(tokens))]), _machine(gpu, precision))


def _decode_share(model: str, gpu: str, batch: float = 1, context: float = 0) -> float:
    return _share(_costs(model), gpu, Chunk(past=int(context), count=int(batch)))


def _prefill_share(model: str, gpu: str, tokens: float) -> float:
    return _share(_costs(model), gpu, Chunk(int(tokens)))


_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "parameters": _parameters,
    "active_parameters": _active_parameters,
    "weight_bytes": _weight_bytes,
    "kv_bytes": _kv_bytes,
    "memory_bytes": _memory_bytes,
    "itl_floor_s": _itl_floor_s,
    "ttft_floor_s": _ttft_floor_s,
    "critical_batch": _critical,
    "decode_compute_share": _decode_share,
    "prefill_compute_share": _prefill_share,
    "bytes_share_of_attention": _attention_share,
    "attention_intensity": _intensity,
}
