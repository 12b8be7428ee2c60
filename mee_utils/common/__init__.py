"""What every other folder rests on: errors, places and files."""
