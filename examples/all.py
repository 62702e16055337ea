"""Every example in one service: what `make examples` runs."""

from examples import digits, fraud, recommendation, search, summary, table, translation
from examples.harness.example import main

EXAMPLES = [module.EXAMPLE for module in (search, fraud, digits, translation, recommendation, summary, table)]

if __name__ == "__main__":
    main(*EXAMPLES)
