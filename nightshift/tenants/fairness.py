"""A tenant's part of a limit that all tenants share.

`nightshift/jobs/priorities.py` decides whose shard is claimed next.
"""


def fair_share(limit: int, tenants: int) -> int:
    """Each tenant's part of a common limit that has been reached."""
    return limit // tenants


def may_take(amount: int, *, held: int, free: int) -> bool:
    """Whether a tenant that holds `held` may take `amount` more: at most what is free before it.

    One tenant so leaves half, and n tenants one part in n + 1 (the dynamic threshold of Choudhury and Hahne,
    IEEE/ACM Transactions on Networking 6(2), 1998, with its factor at 1).
    """
    return held + amount <= free
