"""What this companion runs: profiles, experiments, measurements, notebooks and the results they store."""
