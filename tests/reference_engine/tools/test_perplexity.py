import json
import math

import pytest
import torch

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.errors import ConfigError, RequestError
from bakeoff.reference_engine.tools.evaluator import PerplexityMeter

TOKENS = [3 + (7 * i * i + 11 * i) % 250 for i in range(200)]


@pytest.fixture
def measure(tiny_config):
    """`measure(tokens, **settings)`: with the tiny model in float32."""

    def run(tokens, step_tokens=16, **changes):
        changes = {"num_blocks": None, "enable_prefix_caching": False} | changes
        return PerplexityMeter(tiny_config(**changes), step_tokens).measure(tokens)

    return run


def nats_of(model, tokens, visible=None):
    """Transformers' mean of -ln p; `visible`: [query, key], which tokens each token attends to."""
    length = len(tokens) - 1
    visible = torch.ones(length, length).tril().bool() if visible is None else visible[:length, :length]
    mask = torch.zeros(length, length).masked_fill(~visible, float("-inf"))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([tokens[:-1]]), attention_mask=mask[None, None]).logits[0]
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:])))


@pytest.mark.parametrize("step_tokens", [1, 7, 64, 500])
def test_it_is_that_of_transformers_whatever_the_step(measure, hf_model, step_tokens):
    result = measure(TOKENS, step_tokens)
    assert result.tokens == 199
    assert result.nats_per_token == pytest.approx(nats_of(hf_model, TOKENS), abs=1e-5)
    assert result.perplexity == pytest.approx(math.exp(result.nats_per_token))


def test_a_long_text_is_cut_into_pieces_that_do_not_see_each_other(measure, hf_model):
    result = measure(TOKENS, max_model_len=80)
    nats = [nats_of(hf_model, piece) * (len(piece) - 1) for piece in (TOKENS[:80], TOKENS[80:160], TOKENS[160:])]
    assert result.tokens == 79 + 79 + 39
    assert result.nats_per_token == pytest.approx(sum(nats) / result.tokens, abs=1e-5)


def test_a_last_token_on_its_own_is_left_out(measure, hf_model):
    result = measure(TOKENS[:161], max_model_len=80)
    assert result.tokens == 2 * 79
    assert result.perplexity == pytest.approx(measure(TOKENS[:160], max_model_len=80).perplexity)


@pytest.mark.parametrize(("window", "sinks"), [(20, 0), (20, 5), (64, 4)])
def test_a_window_is_a_masked_model_in_less_memory(measure, hf_model, window, sinks):
    query, key = torch.arange(200)[:, None], torch.arange(200)
    visible = (key <= query) & ((key > query - window) | (key < sinks))
    result = measure(TOKENS, 8, attention_window=window, attention_sinks=sinks, block_size=4)
    assert result.nats_per_token == pytest.approx(nats_of(hf_model, TOKENS, visible), abs=1e-5)
    assert result.kv_peak_bytes <= ((window + sinks + 8) // 4 + 2) * 4 * result.kv_bytes_per_token
    assert result.kv_peak_bytes < measure(TOKENS).kv_peak_bytes / 2


def test_rounding_costs_little_and_saves_what_is_documented(measure):
    exact = measure(TOKENS)
    assert exact.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert exact.kv_peak_bytes == 208 * exact.kv_bytes_per_token  # 13 blocks of 16 tokens
    runs = {kind: measure(TOKENS, kv_cache_dtype=kind) for kind in ("int8", "fp8", "int4")}
    assert [result.kv_bytes_per_token for result in runs.values()] == [2 * 2 * 2 * 18, 2 * 2 * 2 * 18, 2 * 2 * 2 * 12]
    off = {kind: abs(result.nats_per_token - exact.nats_per_token) for kind, result in runs.items()}
    assert 0 < off["int8"] < 0.03
    assert 0 < off["fp8"] < 0.05
    assert off["int8"] < off["int4"] < 0.4


def test_a_budget_reports_what_is_left(measure):
    exact, budgeted = measure(TOKENS), measure(TOKENS, ablation="heavy_hitter:64:32")
    assert exact.census is None
    assert budgeted.census.kept_share == pytest.approx((64 + 7) / 199)  # the last boundary is at 192
    assert budgeted.census.compact_bytes < budgeted.census.bytes / 2
    assert budgeted.perplexity != exact.perplexity
    assert measure(TOKENS, ablation="heavy_hitter:256:9").nats_per_token == pytest.approx(
        exact.nats_per_token, abs=1e-5
    )


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([], "0 tokens has nothing"), ([5], "1 tokens has nothing"), ([5, 999], "token id 999 is outside")],
)
def test_what_cannot_be_measured_is_refused(measure, tokens, message):
    with pytest.raises(RequestError, match=message):
        measure(tokens)


def test_a_cache_that_cannot_hold_a_piece_is_refused(measure):
    with pytest.raises(
        ConfigError, match="4 KV blocks are too few for 256 tokens at once; make --max-model-len smaller"
    ):
        measure(TOKENS, num_blocks=4)
    with pytest.raises(ConfigError, match="--step-tokens must be at least 1, not 0"):
        measure(TOKENS, 0)


def test_the_command_prints_one_line_of_json(checkpoint_dir, tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("hello world, hello hello world " * 9)
    line = ["perplexity", "--model", str(checkpoint_dir), "--text", str(text), "--threads", "1"]
    assert main(line) == 0
    exact = json.loads(capsys.readouterr().out)
    assert main([*line, "--kv-cache-dtype", "int8", "--ablation", "heavy_hitter:32:16"]) == 0
    budgeted = json.loads(capsys.readouterr().out)
    assert exact["tokens"] == budgeted["tokens"] > 100
    assert exact["perplexity"] > 1
    assert budgeted["kv_bytes_per_token"] < exact["kv_bytes_per_token"]
    assert 0 < budgeted["census"]["kept_share"] < 1


def test_a_text_that_cannot_be_read_is_status_2(checkpoint_dir, tmp_path, capsys):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("none", "bytes"):
        assert main(["perplexity", "--model", str(checkpoint_dir), "--text", str(tmp_path / name)]) == 2
        assert "cannot be read as UTF-8 text" in capsys.readouterr().err
