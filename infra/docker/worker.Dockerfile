# The GPU side: a supervised Celery worker with its models in memory. On SIGTERM it drains for up to 25 seconds:
# give it at least 45 before SIGKILL.
#
# torch comes with CUDA. For a machine without a GPU, build with --build-arg REQUIREMENTS=worker-cpu.txt and
# --build-arg TORCH_INDEX= with the address of the index with PyTorch's CPU builds.
# The first stage is the same text in all Dockerfiles, so BuildKit builds the wheel once.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --require-hashes -r infra/requirements/build.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ARG TORCH_INDEX=""
ARG REQUIREMENTS=worker.txt
# Our CPU kernels, and what launches Triton's on CUDA, are compiled at the first start.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=wheel /wheels /wheels
COPY infra/requirements/$REQUIREMENTS /wheels/requirements.txt
ENV PIP_EXTRA_INDEX_URL=$TORCH_INDEX
RUN pip install --no-cache-dir --no-deps --require-hashes -r /wheels/requirements.txt \
    && pip install --no-cache-dir --no-deps /wheels/nightshift-*.whl
# The demo model, under a path that does not depend on the Python version.
RUN mkdir /models \
    && ln -s "$(python -c 'from nightshift.cli.demo import demo_model_path; print(demo_model_path())')" /models/demo_model
RUN useradd --system --uid 10001 --create-home nightshift \
    && install --directory --owner nightshift --mode 0700 /var/lib/nightshift
USER 10001
WORKDIR /home/nightshift
ENV MALLOC_ARENA_MAX=1 ARROW_DEFAULT_MEMORY_POOL=system PYTHONUNBUFFERED=1 NIGHTSHIFT_DATA_DIR=/var/lib/nightshift NIGHTSHIFT_LOG_FORMAT=json
VOLUME /var/lib/nightshift
# Where the hub's client keeps what it has downloaded, and the engine what it has compiled: worth a volume.
ENV HF_HOME=/var/lib/nightshift/huggingface NIGHTSHIFT_KERNEL_CACHE=/var/lib/nightshift/kernels
HEALTHCHECK --interval=30s --timeout=20s --start-period=10m CMD ["nightshift", "worker", "--check"]
CMD ["nightshift", "worker"]
