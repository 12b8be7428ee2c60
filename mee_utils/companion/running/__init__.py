"""What is stale, what is run, and how: jobs, records, notebooks and their parameters."""
