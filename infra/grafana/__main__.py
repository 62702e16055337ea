"""`python -m infra.grafana`: write every dashboard's JSON, and remove what is declared no more."""

import sys
from pathlib import Path

from infra.grafana import build
from infra.grafana.catalogue import DASHBOARDS

FOLDER = Path(__file__).parent / "dashboards"


def main() -> int:
    wanted = {f"{dashboard.uid}.json": build.as_json(dashboard) for dashboard in DASHBOARDS}
    for path in FOLDER.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
