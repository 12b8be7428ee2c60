"""README's findings, RESULTS.md and the pages behind it: text by people, numbers by name."""
