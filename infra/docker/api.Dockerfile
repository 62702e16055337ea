# The HTTP front end. No torch: it stays small and starts in a second. Also runs the migrations.
# The first stage is the same text in all Dockerfiles, so BuildKit builds the wheel once.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --require-hashes -r infra/requirements/build.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
COPY --from=wheel /wheels /wheels
COPY infra/requirements/api.txt /wheels/requirements.txt
RUN pip install --no-cache-dir --no-deps --require-hashes -r /wheels/requirements.txt \
    && pip install --no-cache-dir --no-deps /wheels/nightshift-*.whl
# Fails the build if a dependency installs torch.
RUN python -c "import sys, api.app; assert 'torch' not in sys.modules" && ! python -c "import torch" 2>/dev/null
RUN useradd --system --uid 10001 --create-home nightshift \
    && install --directory --owner nightshift --mode 0700 /var/lib/nightshift
USER 10001
WORKDIR /home/nightshift
ENV MALLOC_ARENA_MAX=1 ARROW_DEFAULT_MEMORY_POOL=system PYTHONUNBUFFERED=1 NIGHTSHIFT_DATA_DIR=/var/lib/nightshift NIGHTSHIFT_LOG_FORMAT=json
VOLUME /var/lib/nightshift
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
CMD ["uvicorn", "api.app:create_app", "--factory", "--host", "0.0.0.0", "--port", "8000", \
     "--http", "api.middleware.connections:BoundedHttp", "--backlog", "1024", \
     "--no-access-log", "--timeout-graceful-shutdown", "20"]
