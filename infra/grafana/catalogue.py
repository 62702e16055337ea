"""All dashboards there are."""

from typing import Final

from infra.grafana import bulk, engine, overview, spot, webhooks
from infra.grafana.panels import Dashboard

DASHBOARDS: Final[tuple[Dashboard, ...]] = (
    overview.DASHBOARD,
    engine.DASHBOARD,
    bulk.DASHBOARD,
    webhooks.DASHBOARD,
    spot.DASHBOARD,
)
