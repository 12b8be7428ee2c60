"""Chapter 03: how many vocabulary entries a decision must score, what the others hold, what it costs."""
