"""`nightshift top`: a service's figures, queue, workers and jobs, live in the terminal."""
