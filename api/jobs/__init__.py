"""What both faces do with a job. Names no route."""
