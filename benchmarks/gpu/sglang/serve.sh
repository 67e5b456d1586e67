#!/usr/bin/env bash
# Starts SGLang for `served.py`: the first argument is the word "serve", the others are SGLang's.
# FlashInfer's autotuner and the grammar libraries would compile or import what the archive leaves out.
shift
export PYTHONPATH=/tmp/sglang-site TVM_FFI_CACHE_DIR=/tmp/sglang-site/.tvm-ffi PYTHONUNBUFFERED=1
exec python3 -m sglang.launch_server --grammar-backend none --mm-feature-transport cpu --disable-flashinfer-autotune "$@"
