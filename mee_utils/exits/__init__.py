"""When to exit (floor 2): confidence measures, threshold schedules, and the policy that joins them."""
