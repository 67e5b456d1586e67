#!/usr/bin/env bash
# Collects real SGLang 0.5.17 for a machine without network that has Python 3.12, torch 2.11 for CUDA 13 and a Hopper
# GPU: an archive of the installed packages, in parts of at most 45 MB, and a script that unpacks them there.
#   prepare.sh DEST [EXTRA]     about 500 MB of downloads, two minutes; DEST/1/part.0, DEST/2/part.1, …, DEST/install.sh
# EXTRA is a folder whose files go on top, such as kernels that SGLang has compiled at its first start. On the GPU
# machine, put the parts into /tmp/sglang-parts and run install.sh; the packages are then in /tmp/sglang-site.
set -euo pipefail
dest=${1:?usage: prepare.sh DEST [EXTRA]}; here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dest"; dest=$(cd "$dest" && pwd); extra=${2:+$(cd "$2" && pwd)}
platforms=(); for n in 39 38 36 35 34 32 31 28 27 26 24 17 12 5; do platforms+=(--platform "manylinux_2_${n}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --no-deps --no-compile --no-cache-dir --only-binary=:all: --python-version 3.12 \
        --implementation cp --abi cp312 --abi abi3 --abi none "${platforms[@]}" --target "$tmp/site" -r "$here/wheels.txt"
cd "$tmp/site"
# Of the kernels, an H200 loads sm90/common_ops and flash_ops; the others are for other GPUs and models.
rm -rf bin sgl_kernel/sm100 sgl_kernel/flashmla_ops.*so sgl_kernel/infllm_ops.*so sglang/multimodal_gen xgrammar/lib/*.a
for library in sgl_kernel/flash_ops.abi3.so sgl_kernel/sm90/common_ops.abi3.so; do
  python3 "$here/kept_code.py" "$library"
done
if [ -n "$extra" ]; then cp -r "$extra/." .; fi
tar -C "$tmp/site" --owner=0 --group=0 -cf - . | nice -n 10 xz -2 -T1 > "$tmp/site.tar.xz"
split -b 45000000 -d -a 1 "$tmp/site.tar.xz" "$tmp/part."
for part in "$tmp"/part.?; do n=$((${part##*.} + 1)); mkdir -p "$dest/$n"; mv "$part" "$dest/$n/"; done
sum=$(cat "$dest"/?/part.? | sha256sum | cut -d' ' -f1)
cat > "$dest/install.sh" <<S
set -e; cd /tmp/sglang-parts
cat part.? > site.tar.xz && rm part.?; echo "$sum  site.tar.xz" | sha256sum -c -
mkdir -p /tmp/sglang-site
python3 -c 'import tarfile; tarfile.open("site.tar.xz", "r|xz").extractall("/tmp/sglang-site", filter="fully_trusted")'
rm site.tar.xz
S
du -sh "$dest"/*
