"""Command line of the xllamacpp server against a fake of the package's parameters."""

import enum
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from bakeoff.engines.adapters import xllamacpp_server


def test_flags_set_the_fields_of_llama_cpps_parameters() -> None:
    words = (
        "-m /m.gguf --alias smol --host 0.0.0.0 --port 9 --metrics --slots --no-webui --fit off -c 64 -np 2 -b 32 "
        "-ub 16 -ctk q8_0 -ctv bf16 --seed 7 --no-cache-prompt -fa on -sm row -ts 1,1 -t 1 -tb 2 -ngl 99 "
        "--spec-type ngram-simple --spec-ngram-simple-size-m 5 -md /d.gguf --spec-draft-n-max 4 --cache-ram 0"
    )
    params = xllamacpp_server.parameters(package(), words.split(), "secret")
    assert (params.model.path, params.model_alias, params.hostnames, params.port) == (
        "/m.gguf",
        {"smol"},
        ["0.0.0.0"],
        9,
    )
    assert (params.endpoint_metrics, params.endpoint_slots, params.ui, params.fit_params) == (True, True, False, False)
    assert (params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch) == (64, 2, 32, 16)
    assert (params.cache_type_k, params.cache_type_v) == (GgmlType.GGML_TYPE_Q8_0, GgmlType.GGML_TYPE_BF16)
    assert (params.sampling.seed, params.cache_prompt, params.cache_ram_mib) == (7, False, 0)
    assert params.flash_attn_type is FlashAttention.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert (params.split_mode, params.tensor_split) == (SplitMode.LLAMA_SPLIT_MODE_ROW, [1.0, 1.0, 0.0, 0.0])
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads, params.n_gpu_layers) == (1, 2, 99)
    assert params.speculative.types == [Speculative.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    assert (params.speculative.ngram_simple.size_m, params.speculative.draft.n_max) == (5, 4)
    assert (params.speculative.draft.mparams.path, params.api_keys) == ("/d.gguf", ["secret"])
    assert params.kv_unified is False


def test_without_a_number_of_slots_it_is_as_the_program_would_be() -> None:
    params = xllamacpp_server.parameters(package(), [])
    assert (params.n_parallel, params.kv_unified, params.api_keys) == (4, True, [])


@pytest.mark.parametrize(("words", "layers"), [("auto", -1), ("all", -2), ("0", 0)])
def test_layers_on_gpus_have_two_names(words: str, layers: int) -> None:
    assert xllamacpp_server.parameters(package(), ["-ngl", words]).n_gpu_layers == layers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mmproj", "x"], "unrecognized arguments: --mmproj x"),
        (["-c", "many"], "--ctx-size cannot be many"),
        (["-ctk", "fp8"], "--cache-type-k cannot be fp8"),
        (["--fit", "maybe"], "--fit cannot be maybe"),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        xllamacpp_server.parameters(package(), words)
    assert message in capsys.readouterr().err


class GgmlType(enum.IntEnum):
    GGML_TYPE_F16 = 1
    GGML_TYPE_Q8_0 = 8
    GGML_TYPE_BF16 = 30


class SplitMode(enum.IntEnum):
    LLAMA_SPLIT_MODE_LAYER = 1
    LLAMA_SPLIT_MODE_ROW = 2


class FlashAttention(enum.IntEnum):
    LLAMA_FLASH_ATTN_TYPE_AUTO = -1
    LLAMA_FLASH_ATTN_TYPE_DISABLED = 0
    LLAMA_FLASH_ATTN_TYPE_ENABLED = 1


class Speculative(enum.IntEnum):
    COMMON_SPECULATIVE_TYPE_NONE = 0
    COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE = 6


def package() -> Any:
    """The part of package xllamacpp that the script uses."""

    def parameters() -> SimpleNamespace:
        draft = SimpleNamespace(n_max=3, mparams=SimpleNamespace(path=""))
        names = itertools.chain(*(fields.items() for fields in (xllamacpp_server._FIELDS, xllamacpp_server._SWITCHES)))
        plain = {path: None for _, (path, _) in names if "." not in path}
        return SimpleNamespace(
            **{**plain, "api_keys": [], "kv_unified": False, "tensor_split": [0.0] * 4, "cache_type_k": None},
            model=SimpleNamespace(path=""),
            sampling=SimpleNamespace(seed=0, ignore_eos=False),
            cpuparams=SimpleNamespace(n_threads=-1),
            cpuparams_batch=SimpleNamespace(n_threads=-1),
            speculative=SimpleNamespace(types=[], draft=draft, ngram_simple=SimpleNamespace(size_m=48)),
        )

    return SimpleNamespace(
        CommonParams=parameters, ggml_type=GgmlType, llama_split_mode=SplitMode,
        llama_flash_attn_type=FlashAttention, common_speculative_type=Speculative,
    )  # fmt: skip
