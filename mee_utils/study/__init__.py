"""What this companion runs: profiles, experiments, sweeps, notebooks and the results they store."""
