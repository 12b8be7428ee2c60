"""Full-depth passes, kept: everything that exit rules can be replayed on."""
