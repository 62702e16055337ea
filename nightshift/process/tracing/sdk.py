"""OpenTelemetry's SDK: it samples, batches and sends spans to a collector, over OTLP as http/protobuf.

`OTEL_BSP_MAX_QUEUE_SIZE` bounds its queue, and `OTEL_EXPORTER_OTLP_TIMEOUT` each sending.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from nightshift.process.tracing.attributes import PROCESS

CLOSE_S: Final = 3.0  # to send what is queued, as the process ends
SDK_SAYS_S: Final = 60.0  # between two lines of the exporter


def open_provider(process: str, environment: Mapping[str, str]) -> TracerProvider:
    """Opens the SDK for this process. Raises the SDK's errors about values that it cannot use."""
    logging.getLogger(OTLPSpanExporter.__module__).addFilter(_NowAndThen())
    own = {PROCESS: process}
    if not environment.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        own[SERVICE_NAME] = f"nightshift-{process}"
    provider = TracerProvider(resource=OneResource(Resource.create(own)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def close_provider(provider: TracerProvider) -> None:
    """Sends what has ended. The SDK would wait for as long as the collector takes."""
    closing = threading.Thread(target=provider.shutdown, name="traces-close", daemon=True)
    closing.start()
    closing.join(CLOSE_S)


class OneResource(Resource):
    """Hashed once: the SDK's encoder asks it of every span, and each time writes the attributes as JSON."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class _NowAndThen(logging.Filter):
    """Lets one line a minute through: the exporter would report every batch while the collector is away."""

    def __init__(self) -> None:
        super().__init__()
        self._says_at_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if (now_s := time.monotonic()) < self._says_at_s:
            return False
        self._says_at_s = now_s + SDK_SAYS_S
        return True
