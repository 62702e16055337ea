"""The names of all attributes. Those of OpenTelemetry are stable ones, except `gen_ai.*`: see `gen_ai.py`."""

from typing import Final

# OpenTelemetry's: https://opentelemetry.io/docs/specs/semconv/
ERROR_TYPE: Final = "error.type"  # a code, or an exception's type
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"  # a template, without ids and without a query
HTTP_STATUS: Final = "http.response.status_code"
SERVER_ADDRESS: Final = "server.address"  # a webhook's receiver; its path may be a secret

# Ours.
PROCESS: Final = "nightshift.process"  # an attribute of the resource: api, scheduler, worker
REQUEST_ID: Final = "nightshift.request.id"  # as in the header x-request-id
TENANT: Final = "nightshift.tenant"
JOB: Final = "nightshift.job"
JOB_STATE: Final = "nightshift.job.state"
PRIORITY: Final = "nightshift.priority"
SHARD: Final = "nightshift.shard"  # its id
SHARD_NO: Final = "nightshift.shard.no"
TERM: Final = "nightshift.term"  # which lease of it
WORKER: Final = "nightshift.worker"
TAKEOVER_TERM: Final = "nightshift.takeover.term"  # the term of the lease before, which did not end the shard
TAKEOVER_WORKER: Final = "nightshift.takeover.worker"  # who had it
TAKEOVER_CAUSE: Final = "nightshift.takeover.cause"  # how it ended: an ExitCause, or handed_back, …
OUTCOME: Final = "nightshift.outcome"
PAGE: Final = "nightshift.plan.page"
ROW: Final = "nightshift.row"  # from 0 in its shard
ROW_TRIES: Final = "nightshift.row.tries"
ROW_STATUS: Final = "nightshift.row.status"  # as HTTP has it
ROWS: Final = "nightshift.rows"
ROWS_FAILED: Final = "nightshift.rows.failed"
ROWS_REUSED: Final = "nightshift.rows.reused"
FIRST_SHARD: Final = "nightshift.part.first_shard"
FILES: Final = "nightshift.part.files"
EVENT: Final = "nightshift.event"  # its id, as in the header webhook-id
EVENT_TYPE: Final = "nightshift.event.type"
ATTEMPT: Final = "nightshift.attempt"  # from 1
