"""Quantises a checkpoint one decoder layer at a time: a layer, not the model, must fit in memory.

Methods are in `quantisation_methods`; some use the inputs of the matrices on a text. GPTQ's inputs come from the layers
quantised so far, so a layer compensates for earlier errors; those of AWQ and SmoothQuant come from the plain model.
Embedding, norms, routers and head stay plain, as do matrices whose width the method's blocks do not divide, and within
a budget the layers that `bit_budget` chooses. Each finished layer is a file in the target, and the same command resumes
after the last one; config.json, which makes the target a checkpoint, comes last.
"""

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bakeoff.reference_engine.core.files import read_json, read_text
from bakeoff.reference_engine.engine.resolution import resolve_device
from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.models.names import ROUTERS, layer_prefix
from bakeoff.reference_engine.models.shapes import weight_shapes
from bakeoff.reference_engine.quantization.activations import observed
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat, IntegerScheme, Scheme, stored_modules
from bakeoff.reference_engine.quantization.formats.registry import layered_format
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.tools.bit_budget import cheapest, layer_costs
from bakeoff.reference_engine.tools.checkpoint_folder import copy_tokenizer, whole_file, write_json
from bakeoff.reference_engine.tools.layer_quantisers import INPUTS, LayerQuantiser, Tensors
from bakeoff.reference_engine.tools.layer_stream import LayerStream
from bakeoff.reference_engine.tools.progress import Progress
from bakeoff.reference_engine.tools.quantisation_methods import Quantising
from bakeoff.reference_engine.tools.transformers_model import check_directory, open_directory, pieces_of
from bakeoff.reference_engine.tools.unfinished import begin, check_new, digest

WORK = "quantising"
RECORD = "quantization.json"
_WEIGHT = ".weight"
Say = Callable[[str], None]


def quantise(
    source: Path, target: Path, quantising: Quantising, *, text: Path | None, device: str = "auto", say: Say
) -> None:
    """Writes `target`: a checkpoint with a `quantization_config`, its tokenizer, and quantization.json.

    Args:
        source: plain checkpoint directory; for methods that need a text of a family in `transformers_model.FAMILIES`.
        target: directory to create, or one that holds unfinished work with the same settings.
        quantising: settings.
        text: UTF-8 file to calibrate on; None for the standard input. Methods that need no text do not read it.
        device: ``auto``, ``cpu`` or ``cuda``.
        say: called with lines of progress.

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
    if missing := weight_shapes(directory.config).keys() - set(directory.names()):
        raise CheckpointError(
            f"{source}: it stores {min(missing)} under another name or in a stack with others; checkpoints like this "
            "one cannot be quantised"
        )
    plan = quantising.plan(_widths(directory).values())
    plain = _plain_modules(directory, plan.scheme)
    depth = directory.config.num_hidden_layers
    words = read_text(text) if quantising.needs_text else None
    settings = {
        **dataclasses.asdict(quantising),
        "model": digest(source),
        "text": None if words is None else hashlib.sha256(words.encode()).hexdigest(),
        "device": place.type,
    }
    pieces = None if words is None else pieces_of(open_directory(source), words, quantising.calibration_tokens)
    begin(target / WORK, settings)
    encoding, chosen = plan.encoding(plain), [plan.scheme] * depth
    if pieces is not None and quantising.budget_mb is not None:
        assert isinstance(plan.scheme, IntegerScheme)  # other settings were refused
        budget = _Budget(round(quantising.budget_mb * 1e6), plan.scheme, target / WORK / "layers.json")
        names = budget.names(directory, pieces, plain, place)
        chosen = [budget.schemes.get(name) for name in names]
        encoding = layered_format(chosen, plain)
        settings |= {"layers": names}
        say(", ".join(f"{names.count(name)} layers {name}" for name in dict.fromkeys(names)))
    layers: _Layers = _PlainLayers(directory, chosen, frozenset(plain), place)
    if pieces is not None and plan.layer is not None:
        layers = _CalibratedLayers(LayerStream(directory, pieces, place, torch.float32), plan.layer)
    files = _written_layers(layers, encoding, target, depth, say)
    _finish(directory, target, files, {**raw, "quantization_config": encoding.config()}, settings)
    say(f"wrote {target}: {_megabytes(target)} instead of {_megabytes(source)} MB")


def _widths(source: SafetensorsDirectory) -> dict[str, int]:
    """Input widths of the matrices of all layers, by name of module."""
    return {
        name.removesuffix(_WEIGHT): shape[1]
        for name, shape in weight_shapes(source.config).items()
        if name.startswith("model.layers.") and len(shape) == 2 and not name.endswith(ROUTERS)
    }


def _plain_modules(source: SafetensorsDirectory, scheme: Scheme) -> list[str]:
    """Linear layers that stay plain, besides the head.

    Raises:
        ConfigError: all stay plain.
    """
    widths = _widths(source)
    unsuited = [module for module, width in widths.items() if not scheme.suits(width)]
    if len(unsuited) == len(widths):
        distinct = sorted(set(widths.values()))
        raise ConfigError(f"blocks of the method divide none of the widths {distinct} of the matrices; choose another")
    return [*(name.removesuffix(_WEIGHT) for name in source.names() if name.endswith(ROUTERS)), *unsuited]


class _Budget:
    """Chooses how each layer is quantised so that the weights stay within a number of bytes.

    Args:
        nbytes: limit for all weights.
        scheme: the smallest one.
        file: stores the choice once it was measured.
    """

    def __init__(self, nbytes: int, scheme: IntegerScheme, file: Path) -> None:
        self._nbytes, self._file = nbytes, file
        self.schemes = {"int8": IntegerScheme(8, None), "int4": scheme}

    def names(
        self,
        source: SafetensorsDirectory,
        pieces: Sequence[Sequence[int]],
        plain: Collection[str],
        device: torch.device,
    ) -> list[str]:
        """For each layer, one of `schemes` or `bit_budget.PLAIN`."""
        if not self._file.exists():
            prefixes = tuple(layer_prefix(index) for index in range(source.config.num_hidden_layers))
            matrices = [module for module in _widths(source) if module not in plain]
            within = [
                [name.removeprefix(prefix) for name in matrices if name.startswith(prefix)] for prefix in prefixes
            ]
            rest = sum(source.get(name).nbytes for name in source.names() if not name.startswith(prefixes))
            names = cheapest(layer_costs(source, pieces, self.schemes, within, device), self._nbytes - rest)
            with whole_file(self._file) as scratch:
                write_json(scratch, {"names": names})
        return list(read_json(self._file)["names"])


class _Layers(Protocol):
    """Quantises layers in order."""

    def quantised(self, index: int) -> tuple[Tensors, Mapping[str, QuantisedMatrix]]:
        """The plain tensors of a layer and its matrices, by their names in it."""
        ...

    def advance(self, index: int, read: Callable[[], Tensors]) -> None:
        """Computes the inputs of the next layer; `read` returns this layer's weights as now stored."""
        ...


class _PlainLayers:
    """Layers whose matrices are quantised by their weights alone; `_Layers`."""

    def __init__(
        self,
        source: SafetensorsDirectory,
        schemes: Sequence[Scheme | None],
        plain: Collection[str],
        device: torch.device,
    ) -> None:
        self._source, self._schemes, self._plain, self._device = source, schemes, plain, device

    def quantised(self, index: int) -> tuple[Tensors, Mapping[str, QuantisedMatrix]]:
        prefix, scheme = layer_prefix(index), self._schemes[index]
        plain: Tensors = {}
        matrices: dict[str, QuantisedMatrix] = {}
        for name in self._source.names():
            if name.startswith(prefix):
                tensor, module = self._source.get(name), name.removesuffix(_WEIGHT)
                if scheme is not None and tensor.ndim == 2 and module != name and module not in self._plain:
                    matrices[module.removeprefix(prefix)] = scheme.nearest(tensor.to(self._device))
                else:
                    plain[name.removeprefix(prefix)] = tensor
        return plain, matrices

    def advance(self, index: int, read: Callable[[], Tensors]) -> None:
        """Does nothing: layers are independent."""


class _CalibratedLayers:
    """Layers whose matrices are quantised by their inputs; `_Layers`."""

    def __init__(self, stream: LayerStream, quantiser: LayerQuantiser) -> None:
        self._stream, self._quantiser = stream, quantiser
        self._inputs = stream.inputs
        self._outputs: list[torch.Tensor] | None = None  # of the last quantised layer, before quantisation

    def quantised(self, index: int) -> tuple[Tensors, Mapping[str, QuantisedMatrix]]:
        tensors = self._stream.tensors(index)
        layer = self._stream.layer(index, tensors)
        with observed(layer, INPUTS, has_products=self._quantiser.needs_products) as activations:
            self._outputs = self._stream.run(index, layer, self._inputs)
        matrices = self._quantiser.quantised(tensors, activations)
        plain = {name: tensor for name, tensor in tensors.items() if name.removesuffix(_WEIGHT) not in matrices}
        return plain, matrices

    def advance(self, index: int, read: Callable[[], Tensors]) -> None:
        outputs, self._outputs = self._outputs, None
        if outputs is None or self._quantiser.is_sequential:
            tensors = read() if self._quantiser.is_sequential else self._stream.tensors(index)
            outputs = self._stream.run(index, self._stream.layer(index, tensors), self._inputs)
        self._inputs = outputs


def _written_layers(layers: _Layers, encoding: CheckpointFormat, target: Path, depth: int, say: Say) -> list[Path]:
    """Writes the missing layers."""
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
    """Writes a file atomically."""
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(file) as scratch:
        save_file(contiguous, scratch, metadata={"format": "pt"})  # Transformers refuses other formats
        scratch.chmod(0o644)  # safetensors creates files that only the owner can read


def _read_layer(file: Path, prefix: str, encoding: CheckpointFormat) -> Tensors:
    """The weights of a layer by their names in it, dequantised to float32."""
    weights = load_file(file)
    for module, names in stored_modules(weights, encoding.parts).items():
        matrix = encoding.decode(module, {part: weights.pop(name) for part, name in names.items()})
        assert not isinstance(matrix, torch.Tensor)  # a quantised matrix was written
        weights[f"{module}{_WEIGHT}"] = matrix.to(torch.device("cpu"), torch.float32).dequantised()
    return {name.removeprefix(prefix): weight for name, weight in weights.items()}


def _finish(
    source: SafetensorsDirectory,
    target: Path,
    files: list[Path],
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Writes the tensors outside of layers, and completes the checkpoint."""
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
    with whole_file(target / "config.json") as scratch:
        write_json(scratch, config)
    shutil.rmtree(target / WORK)


def _megabytes(directory: Path) -> str:
    return f"{sum(file.stat().st_size for file in directory.glob('*.safetensors')) / 1e6:,.1f}"
