"""POST /v1/responses. A model is given whole conversations; `storing.py` puts them together."""

from nightshift.endpoints.responses.endpoint import Responses

__all__ = ["Responses"]
