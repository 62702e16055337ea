"""POST /v1/responses, stateless: each request has its whole conversation, and no answer is stored."""

from nightshift.endpoints.responses.endpoint import Responses

__all__ = ["Responses"]
