"""Exit codes of our processes, and the time after which a second signal means haste."""

from typing import Final

SIGNAL_EXIT_BASE: Final = 128  # a shell's way to say "ended by signal n"
NO_RESTART_EXIT: Final = 74  # drained on request; not restarted
NO_RESTART_LATE_EXIT: Final = 76  # likewise, past its time limit
UNREACHABLE_EXIT: Final = 69  # EX_UNAVAILABLE of sysexits.h: the server does not answer
UNAVAILABLE_EXIT: Final = 75  # EX_TEMPFAIL of sysexits.h: a dependency is away
CONFIGURATION_EXIT: Final = 78  # EX_CONFIG of sysexits.h: a restart cannot help

HURRY_AFTER_S: Final = 1.0  # make and some shells repeat the terminal's signal; a person takes longer
