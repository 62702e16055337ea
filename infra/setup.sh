#!/usr/bin/env bash
# Makes the development environment: infra/setup.sh DIRECTORY
# Uses uv if it can be installed (much faster), else pip. A configured directory of local wheels is passed to both:
# uv does not read PIP_FIND_LINKS.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$candidate; break
    fi
  done
fi
[ -n "$python" ] || { echo "setup: Python 3.11 or newer is needed and none was found on PATH; set PYTHON=/path/to/python3.11" >&2; exit 1; }

if [ ! -x "$venv/bin/python" ]; then
  echo "setup: making $venv with $($python --version)"
  if ! "$python" -m venv "$venv" 2>/dev/null; then
    rm -rf "$venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      echo "setup: this Python has no venv module; installing Debian's"
      { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null
    else
      echo "setup: this Python cannot make virtual environments: install python3-venv (apt-get install python3-venv)" >&2
      exit 1
    fi
    "$python" -m venv "$venv"
  fi
fi

links=()
[ -n "${PIP_FIND_LINKS:-}" ] && links=(--find-links "$PIP_FIND_LINKS")
# As pip does, uv trusts the machine's certificates, and that of pip's setting, which it does not read.
export UV_SYSTEM_CERTS=true
[ -n "${PIP_CERT:-}" ] && export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"

pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
uv_install() { "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "${links[@]}" "$@"; }
install() {
  if [ -x "$venv/bin/uv" ] && uv_install "$@"; then return; fi
  [ -x "$venv/bin/uv" ] && echo "setup: uv could not install; trying pip, which takes longer" >&2
  pip_install "$@"
}

echo "setup: installing the pinned dependencies (3.3 GB on disk, half of it torch and Triton)"
pip_install --require-hashes -r infra/requirements/build.txt || true
# Nothing but what the files name, each with its hash; infra/lock.sh makes them.
install --no-deps --require-hashes -r requirements.txt
# A local directory of wheels, or a further index of pip's, may have the build without CUDA.
if ! { uv_install --no-deps --require-hashes -r infra/requirements/torch-cpu.txt \
    || pip_install --no-deps --require-hashes -r infra/requirements/torch-cpu.txt; } 2>/dev/null; then
  echo "setup: no index here has torch without CUDA; installing PyPI's with its libraries (3 GB more)"
  install --no-deps --require-hashes -r infra/requirements/torch.txt -r infra/requirements/cuda.txt
fi
install --no-deps --no-build-isolation -e .
# For the tests of `nightshift conformance`, which skip the official Node client where it is not.
if command -v npm >/dev/null && ! (cd tests/node && timeout 60 npm ci --silent --no-audit --no-fund --fetch-retries=0 >/dev/null 2>&1); then
  echo "setup: npm could not install the Node client; its tests will be skipped"
fi
# Compile to bytecode once, here, rather than in every process of the first run at once.
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c "import api.app, scheduler.__main__, workers.composition, \
nightshift_engine.engine, transformers.models.llama.modeling_llama, moto.server, hypothesis"
echo "setup: ready"
