"""The views, in the order of the navigation.

A new view is a module here with a `VIEW`, a template in `templates/`, and its name in this list.
"""

from typing import Final

from api.page.view import View
from api.page.views import job, jobs, overview

VIEWS: Final[tuple[View, ...]] = (
    overview.VIEW,
    jobs.VIEW,
    job.VIEW,
)
