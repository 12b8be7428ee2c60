"""What every other folder rests on: errors, files, and where models and corpora come from."""
