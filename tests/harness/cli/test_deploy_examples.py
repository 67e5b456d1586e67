"""The examples of docs/deploy: valid for Compose and Kubernetes, of commands that exist, as the image's user."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bakeoff.harness.cli import make_app

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docs/deploy/compose.yaml"
JOB = ROOT / "docs/deploy/kubernetes-job.yaml"
USER = int(re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[0])


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def parsed(words: list[str]) -> None:
    make_app().parse_args(words, exit_on_error=False, print_error=False)


def has_version(image: str) -> bool:
    return re.search(r":v?\d[\w.-]*$", image) is not None


@pytest.fixture
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


@pytest.fixture
def job() -> dict[str, Any]:
    return next(one for one in yaml.safe_load_all(JOB.read_text(encoding="utf-8")) if one["kind"] == "Job")


@pytest.fixture
def pod(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["template"]["spec"]


def test_compose_takes_it():
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_measures_its_server_once_it_is_healthy(services: dict[str, Any]):
    server, bakeoff = services["server"], services["bakeoff"]
    assert has_version(server["image"])
    assert "/health" in server["healthcheck"]["test"][-1]
    compile(server["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert bakeoff["depends_on"] == {"server": {"condition": "service_healthy"}}
    assert (COMPOSE.parent / bakeoff["build"] / "Dockerfile").resolve() == ROOT / "Dockerfile"
    parsed(bakeoff["command"])
    assert option(bakeoff["command"], "--max-foreign-share") == "1"
    assert bakeoff["command"][1] == "http://server:8000"
    assert bakeoff["volumes"] == [f"runs:{option(bakeoff['command'], '--out')}"]


def test_kubernetes_has_the_fields_that_it_requires(job: dict[str, Any], pod: dict[str, Any]):
    kinds = {one["kind"]: one for one in yaml.safe_load_all(JOB.read_text(encoding="utf-8"))}
    assert {kind: one["apiVersion"] for kind, one in kinds.items()} == {
        "PersistentVolumeClaim": "v1",
        "Job": "batch/v1",
    }
    assert set(job["spec"]) == {"backoffLimit", "activeDeadlineSeconds", "template"}
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert has_version(container["image"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    claim = kinds["PersistentVolumeClaim"]
    assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert set(claim["spec"]) == {"accessModes", "resources"}
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    assert set(resources["requests"]) == {"cpu", "memory"}


def test_the_job_measures_a_service_and_keeps_the_run(pod: dict[str, Any]):
    (container,) = pod["containers"]
    words = container["args"]
    parsed(words)
    assert option(words, "--max-foreign-share") == "1"
    assert re.fullmatch(r"http://[\w-]+\.[\w-]+\.svc\.cluster\.local:\d+", words[1])
    (kept,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "runs")
    assert option(words, "--out") == kept


def test_the_job_runs_as_the_user_of_the_image(pod: dict[str, Any]):
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert (context["runAsUser"], context["fsGroup"]) == (USER, USER)
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    writable = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {entry["value"] for entry in container["env"] if entry["name"] == "HOME"} <= writable
