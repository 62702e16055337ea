"""Sends sample events to webhook endpoints, while their tenant waits for the receiver's answer."""

from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from api.services.threads import BoundedCalls
from nightshift.errors import InvalidRequest
from nightshift.outbound.safe_http import BlockedUrl, EgressResponse, NoAnswer

SAMPLES_MAX: Final = 16  # under way in this process
SAMPLES_PER_TENANT_MAX: Final = 2  # a receiver may hang for 15 s
REFUSAL: Final = "Too many webhook tests are under way. Try again when they have ended."


class Poster(Protocol):
    """The method of `Egress` that a sample needs."""

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> EgressResponse: ...


class WebhookSamples:
    """Sends a few samples at a time. Created in its event loop."""

    def __init__(self, egress: Poster) -> None:
        self._egress = egress
        self._calls = BoundedCalls(SAMPLES_MAX, per_tenant=SAMPLES_PER_TENANT_MAX, refusal=REFUSAL)

    async def send(self, tenant_id: str, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """The status of the receiver's answer. Raises InvalidRequest without one, TooManyRequests."""
        try:
            answer = await self._calls.run(tenant_id, partial(self._egress.post, url, body, headers))
        except BlockedUrl as error:
            raise error.about("url") from error
        except NoAnswer as error:
            raise InvalidRequest(
                f"The webhook endpoint gave no answer: {error.message}", param="url", code="webhook_no_answer"
            ) from error
        return answer.status
