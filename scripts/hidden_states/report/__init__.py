"""The report of a run: its numbers, gathered from what the steps recorded, as one page and one table."""
