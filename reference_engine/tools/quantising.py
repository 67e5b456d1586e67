"""Quantises a checkpoint one decoder layer at a time: a layer, not the model, must fit in memory.

GPTQ and AWQ look at what the matrices get as inputs on a text. GPTQ's inputs come from the layers quantised so far, so
that a layer makes up for the errors before it; AWQ's from the plain model. The other methods look at the weights alone.
Embedding, norms, routers and head stay plain. Each finished layer is a file in the target, and the same command goes on
after the last one; config.json, which makes the target a checkpoint, comes last.
"""

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from reference_engine.engine.resolution import resolve_device
from reference_engine.errors import ConfigError
from reference_engine.loading.files import read_json, read_text
from reference_engine.loading.safetensors import SafetensorsDirectory
from reference_engine.models.decoder import layer_prefix
from reference_engine.models.shapes import weight_shapes
from reference_engine.quantization.activations import observed
from reference_engine.quantization.formats.base import CheckpointFormat, IntegerScheme
from reference_engine.quantization.formats.registry import new_format
from reference_engine.quantization.integer_matrix import IntegerMatrix
from reference_engine.quantization.names import CalibratedName, IntegerName
from reference_engine.tools.checkpoint_folder import copy_tokenizer, sync, write_json
from reference_engine.tools.layer_quantisers import INPUTS, Rounding, Tensors, quantised_layer
from reference_engine.tools.layer_stream import LayerStream
from reference_engine.tools.progress import Progress
from reference_engine.tools.transformers_model import check_directory, open_directory, pieces_of
from reference_engine.tools.unfinished import begin, check_new, digest

WORK = "quantising"
RECORD = "quantization.json"
CALIBRATED: tuple[CalibratedName, ...] = ("gptq", "awq")
_GROUPS = (128, 64, 32)
_ROUTER = ".gate.weight"  # chooses between experts whose scores may be nearly equal
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quantising:
    """Settings; the weights that result depend on all of them.

    Attributes:
        method: of `quantization.methods`, or of `CALIBRATED`.
        group_size: columns that share a scale; None for the largest of 128, 64 and 32 that divides the width of every
            matrix, and with 8 bits for a scale for each row.
        act_order: see `Rounding`; GPTQ only.
        asymmetric: whether GPTQ has zero points.
        calibration_tokens: tokens of the text to use.

    Raises:
        ConfigError: a value is out of range, or means nothing to the method.
    """

    method: IntegerName | CalibratedName
    group_size: int | None = None
    act_order: bool = False
    asymmetric: bool = False
    calibration_tokens: int = 32_768

    def __post_init__(self) -> None:
        if self.group_size is not None and (self.group_size < 32 or self.group_size % 32):
            raise ConfigError(f"--group-size must be a multiple of 32, not {self.group_size}")
        if self.method != "gptq" and (self.act_order or self.asymmetric):
            raise ConfigError("--act-order and --asymmetric are for --method gptq; leave them out")
        if self.calibration_tokens < 2:
            raise ConfigError(f"--calibration-tokens must be at least 2, not {self.calibration_tokens}")

    @property
    def is_calibrated(self) -> bool:
        """Whether the method looks at a text."""
        return self.method in CALIBRATED


def quantise(
    source: Path, target: Path, quantising: Quantising, *, text: Path | None, device: str = "auto", say: Say
) -> None:
    """Writes `target`: a checkpoint with a `quantization_config`, its tokenizer, and quantization.json.

    Args:
        source: plain checkpoint directory; for the methods of `CALIBRATED` of a family in
            `transformers_model.FAMILIES`.
        target: directory to create, or one that holds unfinished work of the same settings.
        quantising: settings.
        text: UTF-8 file to calibrate on; None for the standard input. Other methods than those of `CALIBRATED` do not
            read it.
        device: ``auto``, ``cpu`` or ``cuda``.
        say: is called with lines about the progress.

    Raises:
        CheckpointError: the source cannot be read, or the target holds something else.
        ConfigError: settings and model contradict each other, or Transformers is not installed.
        RequestError: the text cannot be read, or is too short.
    """
    check_new(target, WORK)
    check_directory(source)
    raw = read_json(source / "config.json")
    if "quantization_config" in raw:
        raise ConfigError(f"{source} is quantised already; give the plain checkpoint that it was made from")
    directory, place = SafetensorsDirectory(source), torch.device(resolve_device(device))
    rounding = _rounding(quantising, directory)
    encoding = _encoding(quantising, rounding, directory)
    words = read_text(text) if quantising.is_calibrated else None
    settings = {
        **dataclasses.asdict(quantising),
        "model": digest(source),
        "text": None if words is None else hashlib.sha256(words.encode()).hexdigest(),
        "device": place.type,
    }
    layers: _Layers = _PlainLayers(directory, rounding, place)
    if words is not None:
        pieces = pieces_of(open_directory(source), words, quantising.calibration_tokens)
        layers = _CalibratedLayers(LayerStream(directory, pieces, place, torch.float32), quantising, rounding)
    begin(target / WORK, settings)
    files = _written_layers(layers, encoding, target, directory.config.num_hidden_layers, say)
    _finish(directory, target, files, {**raw, "quantization_config": encoding.config()}, settings)
    say(f"wrote {target}: {_megabytes(target)} instead of {_megabytes(source)} MB")


def _rounding(quantising: Quantising, source: SafetensorsDirectory) -> Rounding:
    """Raises ConfigError if the group divides the width of no matrix, or not of all."""
    match quantising.method:
        case "int8" | "int8-zp":
            bits, group = 8, quantising.group_size
        case "int4" | "int4-zp" | "gptq" | "awq":
            bits, group = 4, quantising.group_size or _common_group(source)
    widths = _widths(source)
    if group is not None and any(width % group for width in widths):
        raise ConfigError(
            f"--group-size {group} does not divide the widths of the matrices, which are {sorted(widths)}"
        )
    is_symmetric = quantising.method in ("int8", "int4") or (quantising.method == "gptq" and not quantising.asymmetric)
    return Rounding(bits=bits, group=group, symmetric=is_symmetric, act_order=quantising.act_order)


def _common_group(source: SafetensorsDirectory) -> int:
    widths = _widths(source)
    for group in _GROUPS:
        if not any(width % group for width in widths):
            return group
    raise ConfigError(f"4 bits need widths that 32 divides, and those of this model are {sorted(widths)}; take 8 bits")


def _widths(source: SafetensorsDirectory) -> set[int]:
    """Inputs of the matrices of all layers."""
    shapes = weight_shapes(source.config)
    return {shape[1] for name, shape in shapes.items() if name.startswith("model.layers.") and _is_matrix(name, shape)}


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a layer's tensor is quantised."""
    return len(shape) == 2 and name.endswith(".weight") and not name.endswith(_ROUTER)


def _encoding(quantising: Quantising, rounding: Rounding, source: SafetensorsDirectory) -> CheckpointFormat:
    scheme = IntegerScheme(rounding.bits, rounding.group, rounding.symmetric, rounding.act_order)
    routers = [name.removesuffix(".weight") for name in source.names() if name.endswith(_ROUTER)]
    match quantising.method:
        case "gptq" | "awq" as name:
            return new_format(name, scheme, routers)
        case "int8" | "int8-zp" | "int4" | "int4-zp":
            return new_format("pack-quantized", scheme, routers)


class _Layers(Protocol):
    """Quantises layers one after the other."""

    def quantised(self, index: int) -> tuple[Tensors, dict[str, IntegerMatrix]]:
        """The plain tensors of a layer and its matrices, by their names in it."""
        ...

    def advance(self, index: int, read: Callable[[], Tensors]) -> None:
        """Computes what the layer after this one gets; `read` gives this layer's weights as they are stored now."""
        ...


class _PlainLayers:
    """Layers whose matrices are quantised by their weights alone; `_Layers`."""

    def __init__(self, source: SafetensorsDirectory, rounding: Rounding, device: torch.device) -> None:
        self._source, self._rounding, self._device = source, rounding, device

    def quantised(self, index: int) -> tuple[Tensors, dict[str, IntegerMatrix]]:
        """See `_Layers`."""
        prefix = layer_prefix(index)
        plain: Tensors = {}
        matrices: dict[str, IntegerMatrix] = {}
        for name in self._source.names():
            if name.startswith(prefix):
                tensor, own_name = self._source.get(name), name.removeprefix(prefix)
                if _is_matrix(name, tuple(tensor.shape)):
                    matrices[own_name.removesuffix(".weight")] = self._rounding.nearest(tensor.to(self._device))
                else:
                    plain[own_name] = tensor
        return plain, matrices

    def advance(self, index: int, read: Callable[[], Tensors]) -> None:
        """Nothing: no layer depends on another."""


class _CalibratedLayers:
    """Layers whose matrices are quantised by what they get as inputs; `_Layers`."""

    def __init__(self, stream: LayerStream, quantising: Quantising, rounding: Rounding) -> None:
        self._stream, self._rounding = stream, rounding
        self._is_awq = quantising.method == "awq"
        self._inputs = stream.inputs

    def quantised(self, index: int) -> tuple[Tensors, dict[str, IntegerMatrix]]:
        """See `_Layers`."""
        tensors = self._stream.tensors(index)
        layer = self._stream.layer(index, tensors)
        with observed(layer, INPUTS) as activations:
            self._stream.run(index, layer, self._inputs)
        matrices = quantised_layer("awq" if self._is_awq else "gptq", tensors, activations, self._rounding)
        return {
            name: tensor for name, tensor in tensors.items() if name.removesuffix(".weight") not in matrices
        }, matrices

    def advance(self, index: int, read: Callable[[], Tensors]) -> None:
        """See `_Layers`."""
        tensors = self._stream.tensors(index) if self._is_awq else read()
        self._inputs = self._stream.run(index, self._stream.layer(index, tensors), self._inputs)


def _written_layers(layers: _Layers, encoding: CheckpointFormat, target: Path, depth: int, say: Say) -> list[Path]:
    """Writes the layers that are not there yet."""
    files = [target / f"model-{index + 1:05}-of-{depth + 1:05}.safetensors" for index in range(depth)]
    progress = Progress(say, "layer", 0, depth)
    for index, file in enumerate(files):
        prefix = layer_prefix(index)
        if not file.exists():
            plain, matrices = layers.quantised(index)
            tensors = {f"{prefix}{name}": tensor for name, tensor in plain.items()}
            for name, matrix in matrices.items():
                parts = encoding.encode(f"{prefix}{name}", matrix)
                tensors |= {f"{prefix}{name}.{part}": tensor for part, tensor in parts.items()}
            _save(tensors, file)
        if index + 1 < depth:
            layers.advance(index, lambda file=file, prefix=prefix: _read_layer(file, prefix, encoding))
        progress.advance(index + 1)
    return files


def _save(tensors: Tensors, file: Path) -> None:
    """Writes a file that is there as a whole or not at all."""
    scratch = file.with_name(f".{file.name}")
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, scratch, metadata={"format": "pt"})  # Transformers refuses other formats
    scratch.chmod(0o644)  # safetensors creates files that only the owner can read
    sync(scratch)
    scratch.replace(file)


def _read_layer(file: Path, prefix: str, encoding: CheckpointFormat) -> Tensors:
    """The weights of a layer by their names in it, dequantised in float32."""
    stored = load_file(file)
    weights: Tensors = {}
    for name in stored:
        module, _, part = name.rpartition(".")
        if part == encoding.parts[0]:
            parts = {other: stored[key] for other in encoding.parts if (key := f"{module}.{other}") in stored}
            weights[f"{module}.weight"] = encoding.decode(module, parts).dequantised()
        elif f"{module}.{encoding.parts[0]}" not in stored or part not in encoding.parts:
            weights[name] = stored[name]
    return {name.removeprefix(prefix): weight for name, weight in weights.items()}


def _finish(
    source: SafetensorsDirectory,
    target: Path,
    files: list[Path],
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Writes what is not in layers, and makes the target a checkpoint."""
    rest = target / f"model-{len(files) + 1:05}-of-{len(files) + 1:05}.safetensors"
    prefixes = tuple(layer_prefix(index) for index in range(len(files)))
    _save({name: source.get(name) for name in source.names() if not name.startswith(prefixes)}, rest)
    weight_map: dict[str, str] = {}
    for file in (*files, rest):
        with safe_open(file, framework="pt") as handle:
            weight_map |= dict.fromkeys(handle.keys(), file.name)
    total = sum(file.stat().st_size for file in (*files, rest))
    write_json(target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    copy_tokenizer(source.path, target)
    write_json(target / RECORD, settings)
    scratch = target / WORK / "config.json"
    write_json(scratch, config)
    sync(scratch)
    scratch.replace(target / "config.json")
    shutil.rmtree(target / WORK)


def _megabytes(directory: Path) -> str:
    return f"{sum(file.stat().st_size for file in directory.glob('*.safetensors')) / 1e6:,.1f}"
