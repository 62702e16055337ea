"""How much of something that all tenants share one of them may have. Pure.

Which tenant's shard is claimed next is decided in `nightshift/jobs/priorities.py`.
"""


def fair_share(limit: int, tenants: int) -> int:
    """What each of so many tenants may have of a limit for all, while that limit is reached."""
    return limit // tenants


def may_take(amount: int, *, held: int, free: int) -> bool:
    """Whether a tenant that holds so much may take this much more: never more than is free before.

    So one tenant leaves half, and n tenants together one part in n + 1, to the next (the dynamic threshold of
    Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998, with its factor at 1).
    """
    return held + amount <= free
