"""``kill -9`` of a run at random instants while it is copied to an object store.

``bakeoff bench`` measures four levels of a truth server and copies the run to moto's S3 server. It is killed at a
random instant of its duration. Each trial that it had printed must be in the store, and what is in the store must be
read: every file that its log names is there and whole. The cache of the reader is empty each time.
"""

import argparse
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import platformdirs
import s3fs
from moto.server import ThreadedMotoServer

from bakeoff import results
from bakeoff.engines import pick_port
from bakeoff.results.errors import ResultsError
from bakeoff.results.records import RunStatus
from benchmarks.bars import Bars, model_argument
from tests.acceptance.crash.harness_killed import Truth

LEVELS = (2, 4, 8, 16)
_TRIAL = re.compile(rb"^\[\d+/\d+\] ", re.MULTILINE)
_FIRST_S = 1.5
"""Seconds after which a run has begun at the earliest."""


def run_once(truth: Truth, model: str, name: str, kill_after_s: float | None) -> tuple[int, float]:
    """One run that is killed, or not; returns the trials that it printed, and its seconds."""
    words = [
        str(Path(sys.executable).with_name("bakeoff")), "bench", "--engine", "reference", "--workload", "random",
        "--url", f"http://127.0.0.1:{truth.port}", "--model", "truth", "--tokenizer", model, "--no-calibrate",
        *(word for level in LEVELS for word in ("--concurrency", str(level))),
        "--duration", "0.5", "--ramp", "0.2", "--out", f"s3://{name}/runs",
    ]  # fmt: skip
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "stderr").open("wb") as stderr:
            process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=stderr)
            try:
                process.wait(kill_after_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        printed = (Path(folder) / "stderr").read_bytes()
    return len(_TRIAL.findall(printed)), time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    model_argument(parser)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draws, bars = random.Random(arguments.seed), Bars()
    server, truth = ThreadedMotoServer("127.0.0.1", pick_port(), verbose=False), Truth()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it prints each request
    server.start()
    host, port = server.get_host_and_port()
    cache = tempfile.mkdtemp()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }  # fmt: skip
    platformdirs.user_cache_dir = lambda *_, **__: cache
    store = s3fs.S3FileSystem()
    try:
        store.mkdir("whole")
        trials, whole_s = run_once(truth, arguments.model, "whole", None)
        bars.add("trials of the undisturbed run", trials, "==", len(LEVELS))
        lost = unreadable = acknowledged = incomplete = 0
        for number in range(arguments.kills):
            bucket = f"kill-{number}"
            store.mkdir(bucket)
            instant = draws.uniform(_FIRST_S, whole_s)
            shown, _ = run_once(truth, arguments.model, bucket, instant)
            store.invalidate_cache()
            stored = 0
            for path in store.ls(f"{bucket}/runs") if store.exists(f"{bucket}/runs") else []:
                try:
                    run = results.load(f"s3://{path}")
                    run.check()
                    stored, incomplete = len(run.log.finished), incomplete + (run.status is RunStatus.INCOMPLETE)
                except ResultsError as error:
                    unreadable += 1
                    print(f"  {error}")
            lost, acknowledged = lost + max(0, shown - stored), acknowledged + shown
            print(f"killed after {instant:5.2f} s: {shown} trials printed, {stored} stored", flush=True)
            shutil.rmtree(cache, ignore_errors=True)
        print(f"{arguments.kills} kills: {acknowledged} trials acknowledged, {incomplete} runs cut off")
        bars.add("acknowledged trials", acknowledged, ">=", arguments.kills // 2)
        bars.add("acknowledged trials that the store lacks", lost, "==", 0)
        bars.add("copies that cannot be read", unreadable, "==", 0)
    finally:
        truth.stop()
        server.stop()
        shutil.rmtree(cache, ignore_errors=True)
    bars.finish()


if __name__ == "__main__":
    main()
