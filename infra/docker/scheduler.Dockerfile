# The scheduler. Any number may run; one of them leads.
# The first stage is the same text in all Dockerfiles, so BuildKit builds the wheel once.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --require-hashes -r infra/requirements/build.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
COPY --from=wheel /wheels /wheels
COPY infra/requirements/scheduler.txt /wheels/requirements.txt
RUN pip install --no-cache-dir --no-deps --require-hashes -r /wheels/requirements.txt \
    && pip install --no-cache-dir --no-deps /wheels/nightshift-*.whl
RUN useradd --system --uid 10001 --create-home nightshift \
    && install --directory --owner nightshift --mode 0700 /var/lib/nightshift
USER 10001
WORKDIR /home/nightshift
ENV MALLOC_ARENA_MAX=1 ARROW_DEFAULT_MEMORY_POOL=system PYTHONUNBUFFERED=1 NIGHTSHIFT_DATA_DIR=/var/lib/nightshift NIGHTSHIFT_LOG_FORMAT=json
VOLUME /var/lib/nightshift
ENV NIGHTSHIFT_SCHEDULER_METRICS_PORT=9100
EXPOSE 9100
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9100/metrics', timeout=2)"]
CMD ["python", "-m", "scheduler"]
