"""Results of a job's rows: segments that hold them, parts of the output, the manifest, reuse."""
