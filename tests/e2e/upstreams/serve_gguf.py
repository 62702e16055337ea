"""llama.cpp's server with a model: run with the Python of its environment.

python serve_gguf.py FILE MODEL_ID PORT CONTEXT_TOKENS SLOTS
"""

import signal
import sys

import xllamacpp


def main(file: str, model_id: str, port: int, context_tokens: int, slots: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.model_alias = {model_id}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = context_tokens * slots
    params.n_parallel = slots
    params.cpuparams.n_threads = 1
    params.use_jinja = True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
