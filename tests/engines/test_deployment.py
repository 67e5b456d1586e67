"""Deployments: contradictory settings are refused before a launch, and secrets are hidden."""

import socket
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment
from bakeoff.engines.addresses import Balance
from bakeoff.engines.deployment import Container, Ssh

IMAGE = Container("image:1")
BOX = Ssh("box")


@pytest.mark.parametrize(
    ("deployment", "gpus"),
    [
        (Deployment(), "2"),
        (Deployment(url="http://127.0.0.1:8000/v1"), "2"),
        (Deployment(url="http://localhost:8000"), "2"),
        (Deployment(url="http://[::1]:8000"), "2"),
        (Deployment(url="http://192.0.2.7:8000"), ""),  # an address reserved for documentation (RFC 5737)
        (Deployment(ssh=BOX), ""),
        (Deployment(container=IMAGE), ""),
        (Deployment(container=Container("image:1", gpus="0,1")), "0,1"),
        (Deployment(container=Container("image:1", gpus="all")), None),
        (Deployment(container=Container("image:1", args=["--device", "nvidia.com/gpu=0"])), None),
    ],
)
def test_the_gpus_of_this_machine_that_an_engine_may_use(deployment: Deployment, gpus: str | None) -> None:
    assert deployment.gpus({"CUDA_VISIBLE_DEVICES": "2"}) == gpus


def test_every_gpu_where_nothing_says_which() -> None:
    assert Deployment().gpus({}) is None


def test_a_name_that_leads_nowhere_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr("socket.getaddrinfo", asked)
    assert Deployment(url="http://nowhere.invalid").gpus({}) == ""


def test_what_can_be_no_name_is_not_here() -> None:
    assert Deployment(url="http://a..b:8000").gpus({}) == ""


def test_an_address_of_this_machine_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"eth0": [SimpleNamespace(address="192.0.2.7")]})
    assert Deployment(url="http://192.0.2.7:8000").gpus({}) is None


@pytest.mark.parametrize(
    "deployment",
    [
        Deployment(),
        Deployment(url="http://x", headers={"X-Key": "v"}, api_key_env="KEY", served_model_name="m", ready_timeout_s=1),
        Deployment(port=9000, environment="vllm", args=["--max-num-batched-tokens", "8"], env={"HF_TOKEN": "v"}),
        Deployment(container=IMAGE, env={"HF_TOKEN": "v"}, port=9000),
        Deployment(container=Container("image:1", args=["--env", "HF_TOKEN", "-e", "A=b", "--shm-size", "1g"])),
        Deployment(replicas=2, balance=Balance.LEAST_IN_FLIGHT),
        Deployment(ssh=BOX, env={"OMP_NUM_THREADS": "2"}, program="/opt/bin/vllm"),
    ],
)
def test_ways_that_make_sense(deployment: Deployment) -> None:
    assert deployment.problem() is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"url": "http://x", "container": IMAGE}, "an engine has only one of url and container"),
        ({"url": "http://x", "container": IMAGE, "ssh": BOX}, "an engine has only one of url and container and ssh"),
        ({"url": "http://x", "port": 1}, "port cannot be set of an engine that runs already"),
        ({"url": "http://x", "env": {"A": "b"}, "args": ["--x"]},
         "args, env cannot be set of an engine that runs already"),
        ({"args": ["--api-key", "v"]}, "args: --api-key would show its value in the process list; give it in env"),
        ({"args": ["--hf_token=v"]}, "args: --hf_token would show its value in the process list; give it in env"),
        ({"container": Container("i", args=["-e", "HF_TOKEN=v"])},
         "container.args: HF_TOKEN would show its value in the process list; give it in env"),
        ({"container": Container("i", args=["--env=HF_TOKEN=v"])}, "container.args: HF_TOKEN would show its value"),
        ({"container": Container("i", args=["-eHF_TOKEN=v"])}, "container.args: HF_TOKEN would show its value"),
        ({"container": IMAGE, "environment": "vllm"}, "environment and program belong to a process of this machine"),
        ({"container": IMAGE, "program": "/bin/x"}, "environment and program belong to a process of this machine"),
        ({"ssh": BOX, "environment": "vllm"}, "environment belongs to this machine; set ssh.command"),
        ({"ssh": BOX, "env": {"HF_TOKEN": "v"}}, "env: a secret would show in the other host's process list"),
        ({"ssh": BOX, "inherit": ["HF_TOKEN"]}, "env: a secret would show in the other host's process list"),
        ({"ssh": Ssh("-oProxyCommand=touch /tmp/x")}, "ssh.host must name a host, and not begin with '-'"),
        ({"ssh": Ssh("")}, "ssh.host must name a host"),
        ({"url": "http://x", "inherit": ["A"]}, "inherit cannot be set of an engine that runs already"),
        ({"container": Container("i", "lxc")}, "container.runtime must be docker or podman"),
        ({"ready_timeout_s": 0.0}, "ready_timeout_s must be above 0"),
        ({"replicas": 2, "url": "http://x"}, "replicas are started as processes of this machine; leave out url, or"),
        ({"replicas": 2, "container": IMAGE}, "replicas are started as processes of this machine; leave out container"),
        ({"replicas": 2, "port": 9000}, "replicas have ports of their own; leave out port"),
        ({"balance": Balance.ROUND_ROBIN}, "balance divides requests among several replicas; give urls without a"),
    ],
)  # fmt: skip
def test_ways_that_do_not_are_told_in_one_line(given: dict[str, Any], complaint: str) -> None:
    problem = Deployment(**given).problem()
    assert problem is not None
    assert problem.startswith(complaint)
    assert "\n" not in problem


def test_it_is_read_from_plain_data_and_unknown_keys_are_refused() -> None:
    data = {"container": {"image": "i", "gpus": "all"}, "env": {"A": "b"}}
    assert msgspec.convert(data, Deployment) == Deployment(container=Container("i", gpus="all"), env={"A": "b"})
    with pytest.raises(msgspec.ValidationError, match="unknown field `gpu`"):
        msgspec.convert({"container": {"image": "i", "gpu": "all"}}, Deployment)


def test_it_knows_what_of_it_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_TEST_KEY", "of-the-environment")
    monkeypatch.setenv("BAKEOFF_TEST_LICENCE", "inherited")
    deployment = Deployment(
        url="https://me:pass%2Fword@x/v1?sig=of-the-query",
        headers={"X-Team": "of-a-header"},
        env={"HF_TOKEN": "of-the-file", "OMP_NUM_THREADS": "innocent"},
        api_key_env="BAKEOFF_TEST_KEY",
        inherit=["BAKEOFF_TEST_LICENCE", "BAKEOFF_TEST_ABSENT"],
    )
    secrets = set(deployment.secrets())
    assert {"pass/word", "pass%2Fword", "of-the-query", "of-a-header", "of-the-file", "of-the-environment"} <= secrets
    assert "inherited" in secrets
    assert "innocent" not in secrets
    assert "me" not in secrets, "a user's name is no secret beside a password"
    assert "token" in Deployment(url="https://token@x").secrets()
