"""The views, in the order of the navigation.

A new view is a `VIEW` in a module here, a template in `templates/`, and an entry in this list.
"""

from typing import Final

from api.page.view import View
from api.page.views import (
    dead_letters,
    deliveries,
    job,
    jobs,
    keys,
    models,
    overview,
    schedules,
    usage,
    webhooks,
    workers,
)

VIEWS: Final[tuple[View, ...]] = (
    overview.VIEW,
    jobs.VIEW,
    job.VIEW,
    schedules.VIEW,
    schedules.SCHEDULE_VIEW,
    dead_letters.VIEW,
    dead_letters.DEAD_LETTER_VIEW,
    deliveries.VIEW,
    deliveries.DELIVERY_VIEW,
    webhooks.VIEW,
    workers.VIEW,
    workers.WORKER_VIEW,
    models.VIEW,
    usage.VIEW,
    keys.VIEW,
    keys.KEY_VIEW,
)
