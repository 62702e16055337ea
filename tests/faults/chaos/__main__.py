"""`python -m tests.faults.chaos`."""

import sys

from tests.faults.chaos.command import main

sys.exit(main())
