"""/v1/schedules: plans of recurring runs."""
