"""By the clock: the decoder against its peers, exit rules against full depth."""
