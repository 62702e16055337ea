"""The views, in the order of the navigation.

A new view is a module here with a `VIEW`, a template in `templates/`, and its name in this list.
"""

from typing import Final

from api.page.view import View
from api.page.views import (
    dead_letter,
    dead_letters,
    deliveries,
    delivery,
    job,
    jobs,
    key,
    keys,
    models,
    overview,
    usage,
    webhooks,
    worker,
    workers,
)

VIEWS: Final[tuple[View, ...]] = (
    overview.VIEW,
    jobs.VIEW,
    job.VIEW,
    dead_letters.VIEW,
    dead_letter.VIEW,
    deliveries.VIEW,
    delivery.VIEW,
    webhooks.VIEW,
    workers.VIEW,
    worker.VIEW,
    models.VIEW,
    usage.VIEW,
    keys.VIEW,
    key.VIEW,
)
