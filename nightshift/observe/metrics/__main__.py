"""`python -m nightshift.observe.metrics > docs/metrics.md`"""

import sys

from nightshift.observe.metrics.page import page

if __name__ == "__main__":
    sys.stdout.write(page())
