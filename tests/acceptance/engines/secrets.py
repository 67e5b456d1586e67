"""Sentinel secrets appear in no log, manifest, report, traceback or process list.

Sentinels are passed to Bakeoff in every way that takes a secret: headers, address, environment variables, experiment
file, and variables that the shell had set already. The servers repeat all that they receive: they quote every header
and the whole path in refusals, in errors inside streams and in their answers' metadata; launched engines print their
environment and command line before they serve, or before they fail. During the runs, every process's command line and
every temporary file is read repeatedly.

A mark that is no secret is passed in the same ways. The search must find it, which shows that the search works.
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

from bakeoff.engines import pick_port
from benchmarks.bars import Bars, model_argument

MARK = "plain-mark-that-is-no-secret"
SERVER = r'''
"""Usage: indiscreet.py PORT refuse|stream|crash. Quotes all that it receives; ``crash`` prints it and exits."""
import http.server, json, os, sys

port, mode = int(sys.argv[1]), sys.argv[2]
print("environment:", dict(os.environ), flush=True)
print("argv:", sys.argv, flush=True)
if mode == "crash":
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
        if mode == "refuse":
            self.reply(401, "application/json", error)
        else:
            self.reply(200, "text/event-stream", b"data: " + error + b"\n\n")

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        print("asked:", self.quoted(), flush=True)


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''
CRASH = r'''
"""Loaded into the harness by PYTHONPATH: a bug whose message holds headers and query."""
import bakeoff.engines.server_engine as seam

async def describe(self, server):
    raise RuntimeError(f"our bug, with {server.access.headers} and {server.access.query} in it")

seam.ServerEngine.describe = describe
'''


class Case:
    """One experiment with its sentinels."""

    def __init__(self, name: str, engine: str, *, env: dict[str, str] | None = None, bug: bool = False) -> None:
        self.name = name
        self.engine = engine
        self.env = env or {}
        self.bug = bug


def request_cases(secret: Iterator[str], url: str) -> list[Case]:
    """Every way in which requests carry a secret; ``url`` is an indiscreet server's ``host:port``."""
    cases: list[Case] = []
    for adapter in ("openai", "reference", "transformers"):
        headers = f'{{ authorization = "Bearer {next(secret)}", x-api-key = "{next(secret)}", x-mark = "{MARK}" }}'
        query = f"{url}/v1?api_key={next(secret)}&sig={next(secret)}"
        key = f'url = "http://{url}"\napi_key_env = "BAKEOFF_SENTINEL"'
        cases += [
            Case("headers", f'adapter = "{adapter}"\nurl = "http://{url}"\nheaders = {headers}'),
            Case("user", f'adapter = "{adapter}"\nurl = "http://me:{next(secret)}@{url}/v1"'),
            Case("query", f'adapter = "{adapter}"\nurl = "http://{query}"'),
            Case("key", f'adapter = "{adapter}"\n{key}', env={"BAKEOFF_SENTINEL": next(secret)}),
        ]
    return cases


def launch_cases(secret: Iterator[str], url: str) -> list[Case]:
    """Every way in which an engine receives a secret, and the errors that may reveal it."""
    inherited = {"HF_TOKEN": next(secret), "WANDB_API_KEY": next(secret), "DB_PASSWORD": next(secret)}
    env = f'env = {{ MY_TOKEN = "{next(secret)}", MY_SECRET = "{next(secret)}", MARK = "{MARK}" }}'
    access = f'url = "http://u:{next(secret)}@{url}?k={next(secret)}"\nheaders = {{ cookie = "{next(secret)}" }}'
    launched = [
        Case(f"launched-{mode}", f'adapter = "transformers"\nprogram = "{{{mode}}}"\n{env}', env=inherited)
        for mode in ("crash", "refuse")
    ]
    return [
        *launched,
        Case("argument", f'adapter = "transformers"\nargs = ["--api-key={next(secret)}"]'),
        Case("option", f'adapter = "reference"\noptions = {{ api_key = "{next(secret)}" }}'),
        Case("ssh", f'adapter = "reference"\nssh = {{ host = "x" }}\nenv = {{ API_TOKEN = "{next(secret)}" }}'),
        Case("bug", f'adapter = "openai"\n{access}', bug=True),
    ]


def experiment(case: Case, model: str) -> str:
    return f"""
name = "{case.name}"
repeats = 1
[model]
name = "sentinel"
path = "{model}"
[[engines]]
{case.engine}
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
    """Searches every command line and every temporary file repeatedly."""

    def __init__(self, secrets: list[str], scratch: Path) -> None:
        super().__init__(daemon=True)
        self._secrets = [secret.encode() for secret in secrets]
        self._scratch = scratch
        self._stopping = threading.Event()
        self.rounds = 0
        self.leaks: set[str] = set()

    def run(self) -> None:
        """Search until :meth:`stop`."""
        while not self._stopping.is_set():
            self.rounds += 1
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                self._search(path, "process list")
            with contextlib.suppress(OSError):  # folders may be deleted during the walk
                for path in self._scratch.rglob("*"):
                    self._search(path, "temporary file")
            time.sleep(0.02)

    def _search(self, path: Path, place: str) -> None:
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            self.leaks |= {f"{place}: {secret.decode()}" for secret in self._secrets if secret in data}

    def stop(self) -> None:
        """Finish the current round and end."""
        self._stopping.set()
        self.join()


def start_server(script: Path, port: int, mode: str, log: Path) -> subprocess.Popen[bytes]:
    """Start an indiscreet server; its log is not searched, because Bakeoff does not write it."""
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, str(script), str(port), mode], stdout=output, stderr=output)


def program(folder: Path, script: Path, mode: str) -> Path:
    """Write a program that takes ``transformers serve``'s command line and starts an indiscreet server."""
    path = folder / f"serve-{mode}"
    path.write_text(f'#!/bin/sh\nfor w in "$@"; do last="$w"; done\nexec {sys.executable} {script} "$last" {mode}\n')
    path.chmod(0o755)
    return path


def leaks(secrets: list[str], texts: dict[str, bytes]) -> list[str]:
    return [f"{place}: {secret}" for place, text in texts.items() for secret in secrets if secret.encode() in text]


async def wait_for_server(port: int) -> None:
    """Wait until a server listens."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)


def run_case(case: Case, folder: Path, model: str, programs: dict[str, Path]) -> dict[str, bytes]:
    """Run a case through the command line; returns all outputs and files, by place."""
    file, out, scratch = folder / f"{case.name}.toml", folder / "runs", folder / "tmp"
    text = experiment(case, model)
    for mode, path in programs.items():
        text = text.replace(f"{{{mode}}}", str(path))
    file.write_text(text)
    env = {**os.environ, **case.env, "TMPDIR": str(scratch)}
    if case.bug:
        env["PYTHONPATH"] = str(folder / "bug")
    bakeoff = Path(sys.executable).with_name("bakeoff")
    done = subprocess.run([bakeoff, "run", file, "--out", out], env=env, capture_output=True, check=False)
    outputs = {"stdout": done.stdout, "stderr": done.stderr}
    outputs |= {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    shutil.rmtree(out, ignore_errors=True)
    return {f"{case.name}: {place}": data for place, data in outputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    model = parser.parse_args().model
    sentinels = [f"sentinel-{number:02d}-{os.urandom(8).hex()}" for number in range(60)]
    secret = iter(sentinels)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, scratch, bug = folder / "indiscreet.py", folder / "tmp", folder / "bug"
        scratch.mkdir()
        bug.mkdir()
        script.write_text(SERVER)
        (bug / "sitecustomize.py").write_text(CRASH)
        programs = {mode: program(folder, script, mode) for mode in ("crash", "refuse")}
        ports = {mode: pick_port() for mode in ("refuse", "stream")}
        servers = [start_server(script, port, mode, folder / f"{mode}.log") for mode, port in ports.items()]
        for port in ports.values():
            asyncio.run(wait_for_server(port))
        cases = [case for port in ports.values() for case in request_cases(secret, f"127.0.0.1:{port}")]
        cases += launch_cases(secret, f"127.0.0.1:{ports['refuse']}")
        used = [text for text in sentinels if any(text in case.engine or text in case.env.values() for case in cases)]
        watch = Watch(used, scratch)
        watch.start()
        outputs: dict[str, bytes] = {}
        for number, case in enumerate(cases):
            case.name = f"{case.name}-{number}"
            outputs |= run_case(case, folder, model, programs)
        watch.stop()
        for server in servers:
            server.kill()
            server.wait()
    report(used, outputs, watch)


def report(used: list[str], texts: dict[str, bytes], watch: Watch) -> None:
    leaked = [*leaks(used, texts), *sorted(watch.leaks)]
    for line in leaked:
        print(line)
    marks = sum(MARK.encode() in data for data in texts.values())
    traced = [place for place, data in texts.items() if b"Traceback" in data]
    print(f"tracebacks, which must be masked: {', '.join(traced)}")
    kinds = {kind: sum(kind in place for place in texts) for kind in ("manifest", "report.html", "engines/", "stderr")}
    print(
        f"searched {len(texts)} files and outputs ({kinds}), {watch.rounds} rounds over processes and temporary files"
    )
    bars = Bars()
    bars.add("sentinels", len(used), ">=", 30)
    bars.add("leaks", len(leaked), "==", 0)
    bars.add("marks_that_are_no_secret_found", marks, ">=", 4)
    bars.add("tracebacks_seen", len(traced), ">=", 1)
    bars.finish()


if __name__ == "__main__":
    main()
