"""The time for which OpenMP's threads spin when they wait, which is decided when torch loads its runtime."""

from collections.abc import MutableMapping

SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPIN_COUNT = 2000
"""Pauses: 0.05 to 0.1 ms, about what falling asleep and being woken costs."""


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Lets waiting threads sleep after `SPIN_COUNT` pauses, unless the environment says how they wait.

    GNU's runtime would let them spin for 300,000, about 7 ms, in which they keep the core from others: from
    other processes, and from the thread they wait for. Call it before torch is imported, with `os.environ`;
    later it has no effect. (https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html)
    """
    if not any(name in environment for name in SPIN_VARIABLES):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
