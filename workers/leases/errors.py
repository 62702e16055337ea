"""What ends the work of a lease."""


class LeaseLost(Exception):
    """Another worker may have the shard: nothing more may be written for it."""
