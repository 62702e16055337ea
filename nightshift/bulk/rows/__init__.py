"""Input files to rows, rows to requests, results to files. No database, no model."""
