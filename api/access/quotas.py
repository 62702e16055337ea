"""A tenant's rates per minute: the POST requests with a JSON body, and the tokens of those that ask a model.

Applied where the body is read (`api/dependencies.py`), so that a new route needs nothing for it.
"""

from collections.abc import Mapping, Sequence

from api.access.authentication import Caller
from nightshift.broker.rate_limits import RateLimits
from nightshift.errors import TooManyRequests
from nightshift.jobs import JsonObject
from nightshift.tenants.quotas import Quotas
from nightshift.tenants.rates import Rate, Taken, duration_text, tokens_asked


async def take_rates(
    rate_limits: RateLimits, caller: Caller, body: JsonObject, size_bytes: int, headers: dict[str, str]
) -> None:
    """Count a request, and describe the tenant's rates in the headers of its answer.

    A request that is refused is not counted. Raises TooManyRequests.
    """
    rates = rates_of(caller.quotas, body, size_bytes)
    if not rates:
        return
    taken = await rate_limits.take(caller.tenant_id, rates)
    headers.update(rate_headers(taken))
    refused = [each for each in taken if not each.is_taken]
    if refused:
        raise _refusal(max(refused, key=lambda each: each.retry_in_s))


def rates_of(quotas: Quotas, body: JsonObject, size_bytes: int) -> list[Rate]:
    """What this request takes of the rates that are limited."""
    found = []
    if quotas.requests_per_minute is not None:
        found.append(Rate("requests", quotas.requests_per_minute, 1))
    asked = body.get("body")  # of an online request in POST /v1/jobs
    tokens = tokens_asked(asked if isinstance(asked, dict) else body, size_bytes)
    if quotas.tokens_per_minute is not None and tokens is not None:
        found.append(Rate("tokens", quotas.tokens_per_minute, tokens))
    return found


def rate_headers(taken: Sequence[Taken]) -> Mapping[str, str]:
    """OpenAI's."""
    headers = {}
    for each in taken:
        name, limit = each.rate.name, each.rate.limit
        headers[f"x-ratelimit-limit-{name}"] = str(limit)
        headers[f"x-ratelimit-remaining-{name}"] = str(each.remaining)
        headers[f"x-ratelimit-reset-{name}"] = duration_text(each.window.empty_in_s(limit))
    return headers


def _refusal(refused: Taken) -> TooManyRequests:
    rate, used = refused.rate, refused.window.used
    quota = f"{rate.name} per minute: the limit is {rate.limit}"
    if not rate.can_fit:
        return TooManyRequests(
            f"Request too large for {quota}, and this one may cost {rate.cost}. Send less text, allow a "
            "shorter answer, or send a batch, whose rows do not count.",
            retry_helps=False,
        )
    return TooManyRequests(
        f"Rate limit reached for {quota}, used are {used}, and this request needs {rate.cost}. "
        f"Try again in {duration_text(refused.retry_in_s)}, or ask an administrator for more.",
        retry_after_s=refused.retry_in_s,
    )
