import socket

import pytest

from bakeoff.reference_engine.__main__ import build_parser, main
from bakeoff.reference_engine.core.config import EngineConfig


def test_flags_and_fields_have_the_same_names_and_defaults():
    options = vars(build_parser().parse_args(["serve", "--model", "m"]))
    assert options.pop("command") == "serve"
    assert options.pop("api_key") is None  # no part of the configuration, which the server tells
    assert EngineConfig(**options) == EngineConfig(model="m")


def test_flags_reach_their_fields():
    line = "--port 0 --max-model-len 99 --ablation static_batching --num-blocks 7 --dtype float32 --threads 1"
    config = config_of(line)
    assert (config.port, config.max_model_len, config.ablations.static_batching) == (0, 99, True)
    assert (config.num_blocks, config.dtype, config.threads) == (7, "float32", 1)


@pytest.mark.parametrize(
    ("line", "wanted"), [("", True), ("--enable-prefix-caching", True), ("--no-enable-prefix-caching", False)]
)
def test_a_switch_is_a_flag_and_its_opposite(line, wanted):
    assert config_of(line).enable_prefix_caching is wanted


def config_of(line):
    options = vars(build_parser().parse_args(["serve", "--model", "m", *line.split()]))
    del options["command"], options["api_key"]
    return EngineConfig(**options)


def one_error_line(capsys):
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


def test_a_model_that_is_not_there_is_status_2(capsys, tmp_path):
    assert main(["serve", "--model", str(tmp_path / "none")]) == 2
    assert "no such model" in one_error_line(capsys)


def test_a_cut_gguf_is_status_2_for_both_commands(capsys, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 40)
    assert main(["convert", str(path), str(tmp_path / "out")]) == 2
    assert "its header counts" in one_error_line(capsys)
    assert main(["serve", "--model", str(path), "--port", "0"]) == 2
    assert "its header counts" in one_error_line(capsys)


def test_an_empty_key_is_no_open_server(capsys, checkpoint_dir):
    assert main(["serve", "--model", str(checkpoint_dir), "--port", "0", "--api-key", ""]) == 2
    assert "--api-key is empty" in one_error_line(capsys)


def test_a_taken_port_is_status_2(capsys, checkpoint_dir):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--model", str(checkpoint_dir), "--port", str(port)]) == 2
    assert f"127.0.0.1:{port} is in use" in one_error_line(capsys)


def test_an_address_that_is_not_ours_is_status_2(capsys, checkpoint_dir):
    assert main(["serve", "--model", str(checkpoint_dir), "--host", "192.0.2.1", "--port", "0"]) == 2
    assert "cannot listen on 192.0.2.1" in one_error_line(capsys)


def test_contradicting_flags_are_status_2(capsys, checkpoint_dir):
    line = ["serve", "--model", str(checkpoint_dir), "--port", "0", "--max-model-len", "9999"]
    assert main(line) == 2
    assert "--max-model-len 9999 is more than" in one_error_line(capsys)
