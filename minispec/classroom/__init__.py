"""Building the course's notebooks."""
