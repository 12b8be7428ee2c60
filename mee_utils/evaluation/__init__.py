"""Statistics and analyses of traces, in numpy (floor 4; nothing here knows torch)."""
