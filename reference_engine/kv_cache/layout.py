"""What each layer of a model stores for each token, and how long it keeps it."""

import dataclasses
import functools
from collections.abc import Sequence

from bakeoff.reference_engine.core.quantization_names import KvCacheDtypeName
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, Visible

GROUP = 32
"""Most elements of a row that share a step in an INT4 cache; arXiv:2402.02750 uses the same."""
_SCALE_BYTES = 2  # bfloat16


def row_bytes(kind: KvCacheDtypeName, dim: int) -> int | None:
    """Bytes of a row of `dim` elements, scales included; None for `auto`, whose elements have the engine's dtype."""
    if kind == "auto":
        return None
    return dim // 2 + 2 * -(-dim // GROUP) * _SCALE_BYTES if kind == "int4" else dim + _SCALE_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class LayerLayout:
    """One layer's keys and values.

    Attributes:
        num_kv_heads: heads with keys and values of their own.
        key_dim: elements of one head's key.
        value_dim: elements of one head's value.
        visible: which earlier tokens the layer sees.
        value_in_key: the value is the first `value_dim` elements of the key and is not kept again (multi-head latent
            attention, DeepSeek-V2, arXiv:2405.04434).
        shares: the earlier layer whose keys and values it uses instead of keeping its own (cross-layer attention,
            arXiv:2405.12981); None for its own.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    visible: Visible = EVERYTHING
    value_in_key: bool = False
    shares: int | None = None

    @property
    def elements_per_token(self) -> int:
        """Elements that one token adds to the cache in this layer."""
        if self.shares is not None:
            return 0
        return self.num_kv_heads * (self.key_dim + (0 if self.value_in_key else self.value_dim))


@dataclasses.dataclass(frozen=True)
class CacheLayout:
    """The layers of a model, in groups that see the same tokens and therefore share their block tables.

    Attributes:
        layers: those of this process.
        whole: all layers of the model, where a process has a part of them only; None for `layers`.
    """

    layers: tuple[LayerLayout, ...]
    whole: tuple[LayerLayout, ...] | None = None

    @functools.cached_property
    def groups(self) -> Sequence[Visible]:
        """One entry for each group of the model, in the order of their first layers."""
        return list(dict.fromkeys(layer.visible for layer in self.whole or self.layers))

    def part(self, layers: range) -> "CacheLayout":
        """Some consecutive layers of the model; none may use keys and values of a layer outside."""
        return CacheLayout(self.layers[layers.start : layers.stop], self.layers)

    def group_of(self, layer: int) -> int:
        """The number of a layer's group."""
        return self.groups.index(self.layers[layer].visible)

    def elements_per_token(self, group: int) -> int:
        """Elements that one token adds to the cache in all layers of a group."""
        visible = self.groups[group]
        return sum(layer.elements_per_token for layer in self.layers if layer.visible == visible)


def windowed(layout: CacheLayout, window: int, sinks: int) -> CacheLayout:
    """The same layers, limited to the latest `window` tokens and the first `sinks` ones.

    Unlike StreamingLLM (arXiv:2309.17453), which counts positions within the kept tokens, tokens keep their positions
    in the text. The difference matters only beyond the length that a model was trained for, which this engine refuses.
    A layer whose own window is smaller keeps it.
    """
    visible = Visible(window, sinks)
    return CacheLayout(
        tuple(
            layer
            if layer.visible.window is not None and layer.visible.window <= window
            else dataclasses.replace(layer, visible=visible)
            for layer in layout.layers
        )
    )
