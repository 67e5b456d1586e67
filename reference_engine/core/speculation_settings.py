"""The setting `--speculation`: the drafting method."""

import dataclasses
from typing import Literal, Self, get_args

from bakeoff.reference_engine.errors import ConfigError

MethodName = Literal["ngram", "draft", "early_exit", "eagle"]
MOST_TOKENS = 16
"""Most drafts of a sequence in one step; the probability that all are accepted is small long before."""
_FORM = (
    "METHOD:TOKENS[:MODEL or LAYERS], such as ngram:4, draft:3:path/to/model, early_exit:2:12 or eagle:4:path/to/head"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Speculation:
    """A drafting method and its bounds.

    Attributes:
        method: `ngram` copies what followed the same tokens earlier in prompt or answer; `draft` asks a smaller model;
            `early_exit` asks the first layers of the model itself; `eagle` asks an EAGLE-3 head, which reads the
            model's hidden states.
        num_tokens: drafts of a sequence in one step, at most.
        model: of `draft`: Hugging Face checkpoint directory or .gguf file with the same tokenizer; of `eagle`: a
            directory in the layout of the speculators project.
        layers: of `early_exit`.

    Raises:
        ConfigError: a value outside these bounds.
    """

    method: MethodName
    num_tokens: int
    model: str | None = None
    layers: int | None = None

    def __post_init__(self) -> None:
        if self.method not in get_args(MethodName):
            raise ConfigError(f"--speculation knows {', '.join(get_args(MethodName))}, not {self.method!r}")
        if not 1 <= self.num_tokens <= MOST_TOKENS:
            raise ConfigError(f"--speculation drafts 1 to {MOST_TOKENS} tokens a step, not {self.num_tokens}")
        if self.method == "draft" and not self.model:
            raise ConfigError("--speculation draft needs a model: draft:TOKENS:MODEL")
        if self.method == "eagle" and not self.model:
            raise ConfigError("--speculation eagle needs a head: eagle:TOKENS:FOLDER; bakeoff models eagle trains one")
        if self.method == "early_exit" and not self.layers:
            raise ConfigError("--speculation early_exit needs a number of layers: early_exit:TOKENS:LAYERS")
        if self.method == "ngram" and (self.model or self.layers):
            raise ConfigError(f"--speculation ngram takes no model and no layers; drop {self.model or self.layers!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `METHOD:TOKENS[:MODEL or LAYERS]`.

        Raises:
            ConfigError: the text has another form.
        """
        method, _, rest = text.partition(":")
        tokens, _, drafter = rest.partition(":")
        is_exit = method == "early_exit" and bool(drafter)
        if not tokens.isdecimal() or (is_exit and not drafter.isdecimal()):
            raise ConfigError(f"--speculation is {_FORM}, not {text!r}")
        model, layers = (None, int(drafter)) if is_exit else (drafter or None, None)
        return cls(method, int(tokens), model, layers)  # type: ignore[arg-type]  (checked there)

    def __str__(self) -> str:
        parts = (self.method, str(self.num_tokens), self.model, str(self.layers) if self.layers else None)
        return ":".join(filter(None, parts))
