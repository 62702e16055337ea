"""Exit codes of our processes."""

from typing import Final

SIGNAL_EXIT_BASE: Final = 128  # a shell's way to say "ended by signal n"
NO_RESTART_EXIT: Final = 74  # drained on request; not restarted
NO_RESTART_LATE_EXIT: Final = 76  # likewise, past its time limit
UNAVAILABLE_EXIT: Final = 75  # EX_TEMPFAIL of sysexits.h: a dependency is away
CONFIGURATION_EXIT: Final = 78  # EX_CONFIG of sysexits.h: a restart cannot help
