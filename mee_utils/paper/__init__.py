"""The papers: their statements, numbers and the bugs of their public code, beside ours."""
