"""Sends test events to webhook endpoints, while their tenant waits for the receiver's answer."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

from anyio import CapacityLimiter, to_thread

from nightshift.errors import InvalidRequest, TooManyRequests
from nightshift.outbound.safe_http import BlockedUrl, EgressResponse, NoAnswer

TESTS_MAX: Final = 16  # under way in this process
TESTS_PER_TENANT_MAX: Final = 2  # a receiver may hang for 15 s


class Poster(Protocol):
    """What a test needs of `Egress`."""

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> EgressResponse: ...


class WebhookTests:
    """In threads of its own, so that hanging receivers delay no other request. Created in its event loop."""

    def __init__(self, egress: Poster) -> None:
        self._egress = egress
        self._limiter = CapacityLimiter(TESTS_MAX)
        self._under_way: Counter[str] = Counter()  # by tenant

    async def send(self, tenant_id: str, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """The status of the receiver's answer. Raises InvalidRequest without one, TooManyRequests."""
        if self._under_way[tenant_id] >= TESTS_PER_TENANT_MAX or self._under_way.total() >= TESTS_MAX:
            raise TooManyRequests("Too many webhook tests are under way. Try again when they have ended.")
        self._under_way[tenant_id] += 1
        try:
            answer = await to_thread.run_sync(self._egress.post, url, body, headers, limiter=self._limiter)
        except BlockedUrl as error:
            raise error.about("url") from error
        except NoAnswer as error:
            raise InvalidRequest(
                f"The webhook endpoint gave no answer: {error.message}", param="url", code="webhook_no_answer"
            ) from error
        finally:
            self._under_way[tenant_id] -= 1
            self._under_way += Counter()  # drops the zeros
        return answer.status
