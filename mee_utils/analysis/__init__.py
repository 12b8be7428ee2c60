"""What follows from traces and decoded outputs: statistics, one module a question."""
