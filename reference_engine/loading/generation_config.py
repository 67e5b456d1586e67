"""Sampling defaults of a checkpoint, from its generation_config.json."""

from pathlib import Path
from typing import Annotated

import msgspec

from bakeoff.reference_engine.core.files import read_json
from bakeoff.reference_engine.errors import CheckpointError


class SamplingDefaults(msgspec.Struct, frozen=True):
    """Sampling parameters for requests that do not set them; the fields and bounds are those of the API."""

    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=-1)] = 0
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] = 1.0


def sampling_defaults(checkpoint: Path) -> SamplingDefaults:
    """Reads the values of generation_config.json, ignoring `do_sample` as vLLM does; neutral without that file.

    Raises:
        CheckpointError: a value is out of range.
    """
    path = checkpoint / "generation_config.json"
    if not path.exists():
        return SamplingDefaults()
    values = {name: value for name, value in read_json(path).items() if value is not None}
    try:
        return msgspec.convert(values, SamplingDefaults)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {error}; correct it or use --generation-config none") from error
