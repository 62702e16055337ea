"""`python -m nightshift.metrics > docs/metrics.md`"""

import sys

from nightshift.metrics.page import page

if __name__ == "__main__":
    sys.stdout.write(page())
