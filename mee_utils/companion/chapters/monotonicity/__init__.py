"""Chapter 01: from which layer on predictions are final, and how confidence gets there."""
