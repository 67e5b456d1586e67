"""Runs SGLang's Rust client in SGLang's environment, without the package around it, which requires an engine."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

if __name__ == "__main__":
    folder = Path(sysconfig.get_paths()["purelib"], "sglang/srt/rust_extensions")
    spec = importlib.util.spec_from_file_location("_bench", next(folder.glob("_bench*.so")))
    assert spec is not None
    assert spec.loader is not None
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    extension.run_argv(["sglang-bench", *sys.argv[1:]])
