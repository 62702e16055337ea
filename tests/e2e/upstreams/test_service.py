"""The cases of a service with an engine of its own, with upstreams in place of it.

Left out are those in which no upstream has a part: webhooks, commands that look at jobs, who may read the
files of a service, the metrics of its processes, and a checkpoint that the worker cannot load.
"""

from tests.e2e.test_service import (  # noqa: F401
    test_a_batch_through_the_official_client_answers_every_row,
    test_a_table_goes_in_and_part_files_come_out,
    test_the_demo_is_answered_without_a_mistake,
    test_the_next_night_only_rows_that_changed_are_run,
    test_the_program_that_the_readme_shows_answers_a_chat_and_every_row,
    test_top_shows_the_worker_with_its_figures,
)
