"""What comes of a job's rows: results, the segments that hold them, part files and the manifest."""
