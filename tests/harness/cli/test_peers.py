"""Commands of other load generators as ``bakeoff bench``: with the meaning that their own documents give them."""

import pytest

from bakeoff.harness.cli.peers import PEERS, hint, translated
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, VirtualWorld
from bakeoff.results import load
from tests.harness.cli.test_cli import in_process as bakeoff


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        (
            """vllm bench serve --backend openai --base-url http://h:8000 --model m --random-input-len 64
            --random-output-len 32 --num-prompts 200 --request-rate 4 --max-concurrency 16
            --goodput ttft:500 tpot:50""",
            """http://h:8000 --model m --input 64 --output 32 --requests 200 --rate 4 --slo ttft<500ms --slo tpot<50ms
            --max-in-flight 16""",
        ),
        (
            "vllm bench serve --model=m --port 9000 --num-prompts=100 --request-rate inf",
            """http://127.0.0.1:9000 --model m --requests 100 --input 1024 --output 128 --concurrency 100
            --rules together""",
        ),
        (
            """vllm bench serve --model m --dataset-name sharegpt --dataset-path s.json --max-concurrency 8
            --num-prompts 9""",
            "http://127.0.0.1:8000 --model m --workload s.json --concurrency 8 --requests 9 --rules together",
        ),
        (
            """aiperf profile -m t --endpoint-type chat --streaming -u localhost:8000 --request-count 50 --isl 128
            --osl 32 --request-rate 3 --arrival-pattern constant""",
            "http://localhost:8000 --model t --requests 50 --input 128 --output 32 --rate 3 --arrival constant",
        ),
        (
            """guidellm benchmark --target http://h:8000 --profile concurrent --rate 4,8 --max-seconds 30
            --data prompt_tokens=256,output_tokens=128""",
            "http://h:8000 --duration 30 --input 256 --output 128 --concurrency 4 --concurrency 8 --rules together",
        ),
        (
            """guidellm run --backend kind=openai_http,target=http://h:1,model=m --profile kind=poisson,rate=3
            --constraint kind=max_requests,count=40 --data kind=synthetic_text,prompt_tokens=5,output_tokens=6""",
            "http://h:1 --model m --rate 3 --requests 40 --input 5 --output 6",
        ),
        (
            "guidellm benchmark --target http://h:1 --rate-type synchronous",
            "http://h:1 --concurrency 1 --rules together",
        ),
    ],
)
def test_a_command_of_another_tool_is_ours(command: str, ours: str):
    arguments, notes = translated(command)
    wanted = " ".join(ours.split())
    assert sorted(" ".join(arguments).split(" --")) == sorted(wanted.split(" --"))
    assert notes[0].startswith("as: bakeoff bench http://")
    assert ("start together" in notes[1]) is ("--concurrency" in arguments), "an open loop has arrivals"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("guidellm benchmark --target http://h:1 --rate-type sweep", "cannot take a sweep: bakeoff search finds"),
        ("guidellm benchmark --target http://h:1 --rate-type poisson --rate 1,3", "takes one rate, not 1, 3"),
    ],
)
def test_several_measurements_in_one_are_refused(command: str, message: str):
    with pytest.raises(BadExperiment, match=message):
        translated(command)


@pytest.mark.parametrize(
    "command",
    [
        "vllm bench serve --backend openai-embeddings --endpoint /v1/embeddings --request-rate 3",
        "aiperf profile --url http://h:1 --endpoint-type embeddings --request-rate 3 --isl 9",
    ],
)
def test_embeddings_are_the_workload(command: str):
    arguments, _ = translated(command)
    assert arguments[arguments.index("--workload") + 1] == "embeddings"
    assert not {"--input", "--output"} & set(arguments)


def test_a_data_set_that_ours_lacks_is_said():
    assert translated("vllm bench serve --dataset-name sonnet")[1][-1].endswith(": --dataset-name sonnet")


@pytest.mark.parametrize(
    ("own", "message"),
    [(["--concurrency", "3"], "--concurrency is given beside"), (["--duration", "5"], "--duration is given beside"),
     (["http://h:2"], "--from has the server's address")],
)  # fmt: skip
def test_options_beside_a_command_do_not_contradict_it(
    own: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    command = "vllm bench serve --base-url http://h:1 --num-prompts 10 --max-concurrency 4"
    assert bakeoff("bench", *own, "--from", command) == 2
    assert message in capsys.readouterr().err


def test_what_ours_lacks_is_said():
    _, notes = translated("vllm bench serve --model m --ramp-up-strategy linear --lora-modules a b")
    assert notes[-1] == "left out, for ours has nothing like it: --ramp-up-strategy, --lora-modules"


@pytest.mark.parametrize(
    ("command", "message"), [("wrk -t 4", "--from knows"), ("vllm bench 'serve", "cannot be read")]
)
def test_a_command_of_no_known_tool_is_refused(command: str, message: str):
    with pytest.raises(BadExperiment, match=message):
        translated(command)


def test_every_option_that_ours_lacks_has_a_hint():
    for peer in PEERS:
        assert all(hint(option) for option in (*peer.options, *peer.needless))
    assert hint("--num-prompts=5") == "of vllm bench serve; ours is --requests"
    assert hint("--target") == "of guidellm; the address is the argument: bakeoff bench URL"
    assert hint("--nonsense") is None


def test_bench_runs_the_command(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    command = "vllm bench serve --model m --port 9 --random-input-len 8 --random-output-len 5 --num-prompts 30 --seed 7"
    words = ["--engine", "openai", "--tokenizer", "approximate", "--no-calibrate"]
    engine = VirtualEngine(service=PerToken(Fixed(0.05), Fixed(0.01)))
    with inside(VirtualWorld({"openai": engine})):
        assert bakeoff("bench", "--from", f"{command} --max-concurrency 3", *words) == 0
    assert "as: bakeoff bench http://127.0.0.1:9 --model m" in capsys.readouterr().err
    run = load(next((tmp_path / "runs").iterdir()))
    (trial,) = run.finished
    assert trial.record.load.label == "c=3"
    assert len(trial.inside) == 30
    assert run.manifest.experiment["seed"] == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-prompts", "5"], "bakeoff bench has no --num-prompts of vllm bench serve; ours is --requests"),
        (["--max-in-flight", "5"], "give --rate, or --concurrency alone"),
        (["--requests", "5", "--duration", "9"], "give one of them"),
        (["--from"], "--from needs a whole command"),
    ],
)
def test_a_mistake_is_answered_in_our_options(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert bakeoff("bench", "http://127.0.0.1:9", *words) == 2
    assert message in capsys.readouterr().err
