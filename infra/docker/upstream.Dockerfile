# A worker whose models run at OpenAI-compatible servers (docs/upstreams.md). No torch: to pull it takes 165 MB.
# The first stage is the same text in all Dockerfiles, so BuildKit builds the wheel once.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --require-hashes -r infra/requirements/build.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
COPY --from=wheel /wheels /wheels
COPY infra/requirements/upstream.txt /wheels/requirements.txt
RUN pip install --no-cache-dir --no-deps --require-hashes -r /wheels/requirements.txt \
    && pip install --no-cache-dir --no-deps /wheels/nightshift-*.whl
# Fails the build if a dependency is missing.
RUN python -c "import workers.app, workers.upstreams.opening"
RUN useradd --system --uid 10001 --create-home nightshift \
    && install --directory --owner nightshift --mode 0700 /var/lib/nightshift
USER 10001
WORKDIR /home/nightshift
ENV MALLOC_ARENA_MAX=1 ARROW_DEFAULT_MEMORY_POOL=system PYTHONUNBUFFERED=1 NIGHTSHIFT_DATA_DIR=/var/lib/nightshift NIGHTSHIFT_LOG_FORMAT=json
VOLUME /var/lib/nightshift
HEALTHCHECK --interval=30s --timeout=20s --start-period=60m CMD ["nightshift", "worker", "--check"]
CMD ["nightshift", "worker"]
