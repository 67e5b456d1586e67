"""Bar 6: sentinel secrets appear in no log, manifest, report, traceback or process list. For ``make bench-engines``.

Each way in which Bakeoff can be handed a secret is used with sentinels of its own: headers, address, environment
variable, experiment file, and what the shell had set already. The servers on the other side are as indiscreet as they
can be: they quote every header and the whole path in refusals, in errors inside streams and in their answers' metadata;
launched engines print their environment and command line before they serve, or before they fail. Meanwhile every
process's command line and every temporary file is read again and again.

A mark that is no secret travels the same ways: it must be found, or the search is blind.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bars import Bars, model_argument
from engines import pick_port

MARK = "plain-mark-that-is-no-secret"
SERVER = r'''
"""Usage: indiscreet.py PORT MANNER. Quotes what it is sent: refuse, stream; or crash, all it knows printed."""
import http.server, json, os, sys

port, manner = int(sys.argv[1]), sys.argv[2]
print("environment:", dict(os.environ), flush=True)
print("argv:", sys.argv, flush=True)
if manner == "crash":
    sys.exit("fatal: cannot go on with " + json.dumps(dict(os.environ)))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def quoted(self):
        return json.dumps({"path": self.path, "headers": dict(self.headers)})

    def do_GET(self):
        self.reply(200, "application/json", self.quoted().encode())

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        error = json.dumps({"error": {"message": "not allowed: " + self.quoted()}}).encode()
        if manner == "refuse":
            self.reply(401, "application/json", error)
        else:
            self.reply(200, "text/event-stream", b"data: " + error + b"\n\n")

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *what):
        print("asked:", self.quoted(), flush=True)


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''
CRASH = r'''
"""Loaded into the harness by PYTHONPATH: a bug whose message holds whatever it can reach."""
import engines.server_engine as seam

async def describe(self, server):
    raise RuntimeError(f"our bug, with {server.access.headers} and {server.access.query} in it")

seam.ServerEngine.describe = describe
'''


class Scene:
    """One experiment with its sentinels."""

    def __init__(self, name: str, engine: str, *, env: dict[str, str] | None = None, bug: bool = False) -> None:
        self.name = name
        self.engine = engine
        self.env = env or {}
        self.bug = bug


def asking(secret: Iterator[str], url: str) -> list[Scene]:
    """Every way in which requests carry one; ``url`` is an indiscreet server's ``host:port``."""
    found: list[Scene] = []
    for adapter in ("openai", "reference", "transformers"):
        headers = f'{{ authorization = "Bearer {next(secret)}", x-api-key = "{next(secret)}", x-mark = "{MARK}" }}'
        query = f"{url}/v1?api_key={next(secret)}&sig={next(secret)}"
        key = f'url = "http://{url}"\napi_key_env = "BAKEOFF_SENTINEL"'
        found += [
            Scene("headers", f'adapter = "{adapter}"\nurl = "http://{url}"\nheaders = {headers}'),
            Scene("user", f'adapter = "{adapter}"\nurl = "http://me:{next(secret)}@{url}/v1"'),
            Scene("query", f'adapter = "{adapter}"\nurl = "http://{query}"'),
            Scene("key", f'adapter = "{adapter}"\n{key}', env={"BAKEOFF_SENTINEL": next(secret)}),
        ]
    return found


def starting(secret: Iterator[str], url: str) -> list[Scene]:
    """Every way in which engines are told one, and what goes wrong with it."""
    inherited = {"HF_TOKEN": next(secret), "WANDB_API_KEY": next(secret), "DB_PASSWORD": next(secret)}
    told = f'env = {{ MY_TOKEN = "{next(secret)}", MY_SECRET = "{next(secret)}", MARK = "{MARK}" }}'
    of_url = f'url = "http://u:{next(secret)}@{url}?k={next(secret)}"\nheaders = {{ cookie = "{next(secret)}" }}'
    manners = [
        Scene(f"launched-{manner}", f'adapter = "transformers"\nprogram = "{{{manner}}}"\n{told}', env=inherited)
        for manner in ("crash", "refuse")
    ]
    return [
        *manners,
        Scene("argument", f'adapter = "transformers"\nargs = ["--api-key={next(secret)}"]'),
        Scene("option", f'adapter = "reference"\noptions = {{ api_key = "{next(secret)}" }}'),
        Scene("ssh", f'adapter = "reference"\nssh = {{ host = "x" }}\nenv = {{ API_TOKEN = "{next(secret)}" }}'),
        Scene("bug", f'adapter = "openai"\n{of_url}', bug=True),
    ]


def experiment(scene: Scene, model: str) -> str:
    return f"""
name = "{scene.name}"
repeats = 1
[model]
name = "sentinel"
path = "{model}"
[[engines]]
{scene.engine}
ready_timeout_s = 20
[workload]
name = "random"
options = {{ input_tokens = 16, output_tokens = 2 }}
[[loads]]
concurrency = 1
[trial]
duration_s = 0.3
min_requests = 2
warm_up_s = 5
[client]
calibrate = false
"""


class Watch(threading.Thread):
    """Reads every command line and every temporary file, over and over."""

    def __init__(self, secrets: list[str], scratch: Path) -> None:
        super().__init__(daemon=True)
        self._secrets = [secret.encode() for secret in secrets]
        self._scratch = scratch
        self._over = threading.Event()
        self.rounds = 0
        self.found: set[str] = set()

    def run(self) -> None:
        """Until it is stopped."""
        while not self._over.is_set():
            self.rounds += 1
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                self._look(path, "process list")
            with contextlib.suppress(OSError):  # folders go while they are walked
                for path in self._scratch.rglob("*"):
                    self._look(path, "temporary file")
            time.sleep(0.02)

    def _look(self, path: Path, where: str) -> None:
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            self.found |= {f"{where}: {secret.decode()}" for secret in self._secrets if secret in data}

    def stop(self) -> None:
        """End the last round."""
        self._over.set()
        self.join()


def start_server(script: Path, port: int, manner: str, log: Path) -> subprocess.Popen[bytes]:
    """An indiscreet server that runs already; its own log is not ours to mask."""
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, str(script), str(port), manner], stdout=output, stderr=output)


def program(folder: Path, script: Path, manner: str) -> Path:
    """A program that takes ``transformers serve``'s command line and is indiscreet."""
    path = folder / f"serve-{manner}"
    path.write_text(f'#!/bin/sh\nfor w in "$@"; do last="$w"; done\nexec {sys.executable} {script} "$last" {manner}\n')
    path.chmod(0o755)
    return path


def leaks(secrets: list[str], texts: dict[str, bytes]) -> list[str]:
    return [f"{place}: {secret}" for place, text in texts.items() for secret in secrets if secret.encode() in text]


async def answers(port: int) -> None:
    """Wait until something listens."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)


def run_scene(scene: Scene, folder: Path, model: str, programs: dict[str, Path]) -> dict[str, bytes]:
    """Run it as a user would; returns everything that it left, by place."""
    file, out, scratch = folder / f"{scene.name}.toml", folder / "runs", folder / "tmp"
    text = experiment(scene, model)
    for manner, path in programs.items():
        text = text.replace(f"{{{manner}}}", str(path))
    file.write_text(text)
    env = {**os.environ, **scene.env, "TMPDIR": str(scratch)}
    if scene.bug:
        env["PYTHONPATH"] = str(folder / "bug")
    bakeoff = Path(sys.executable).with_name("bakeoff")
    done = subprocess.run([bakeoff, "run", file, "--out", out], env=env, capture_output=True, check=False)
    left = {"stdout": done.stdout, "stderr": done.stderr}
    left |= {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    shutil.rmtree(out, ignore_errors=True)
    return {f"{scene.name}: {place}": data for place, data in left.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    model = parser.parse_args().model
    given = [f"sentinel-{number:02d}-{os.urandom(8).hex()}" for number in range(60)]
    secret = iter(given)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, scratch, bug = folder / "indiscreet.py", folder / "tmp", folder / "bug"
        scratch.mkdir()
        bug.mkdir()
        script.write_text(SERVER)
        (bug / "sitecustomize.py").write_text(CRASH)
        programs = {manner: program(folder, script, manner) for manner in ("crash", "refuse")}
        ports = {manner: pick_port() for manner in ("refuse", "stream")}
        servers = [start_server(script, port, manner, folder / f"{manner}.log") for manner, port in ports.items()]
        for port in ports.values():
            asyncio.run(answers(port))
        found = [scene for port in ports.values() for scene in asking(secret, f"127.0.0.1:{port}")]
        found += starting(secret, f"127.0.0.1:{ports['refuse']}")
        used = [text for text in given if any(text in s.engine or text in s.env.values() for s in found)]
        watch = Watch(used, scratch)
        watch.start()
        left: dict[str, bytes] = {}
        for number, scene in enumerate(found):
            scene.name = f"{scene.name}-{number}"
            left |= run_scene(scene, folder, model, programs)
        watch.stop()
        for server in servers:
            server.kill()
            server.wait()
    report(used, left, watch)


def report(used: list[str], left: dict[str, bytes], watch: Watch) -> None:
    bad = [*leaks(used, left), *sorted(watch.found)]
    for line in bad:
        print(line)
    marks = sum(MARK.encode() in data for data in left.values())
    traced = [place for place, data in left.items() if b"Traceback" in data]
    print(f"tracebacks, which must be masked: {', '.join(traced)}")
    kinds = {kind: sum(kind in place for place in left) for kind in ("manifest", "report.html", "engines/", "stderr")}
    print(f"searched {len(left)} files and outputs ({kinds}), {watch.rounds} rounds over processes and temporary files")
    bars = Bars()
    bars.add("sentinels", len(used), ">=", 30)
    bars.add("leaks", len(bad), "==", 0)
    bars.add("marks_that_are_no_secret_found", marks, ">=", 4)
    bars.add("tracebacks_seen", len(traced), ">=", 1)
    bars.finish()


if __name__ == "__main__":
    main()
