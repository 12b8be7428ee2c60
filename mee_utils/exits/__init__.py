"""When to exit: confidence measures, threshold schedules, and the policy that joins them."""
