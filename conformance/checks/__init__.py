"""All checks, in the order they run: one module per area of OpenAI's API."""

from typing import Final

from conformance.checks import (
    batches,
    chat,
    completions,
    embeddings,
    errors,
    files,
    models,
    node,
    own,
    rates,
    responses,
    structured,
    uploads,
    webhooks,
)
from conformance.registry import Area

AREAS: Final[tuple[Area, ...]] = (
    models.AREA,
    files.AREA,
    batches.AREA,
    chat.AREA,
    structured.AREA,
    completions.AREA,
    responses.AREA,
    embeddings.AREA,
    uploads.AREA,
    webhooks.AREA,
    rates.AREA,
    errors.AREA,
    node.AREA,
    own.AREA,
)
