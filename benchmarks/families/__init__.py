"""What the server captures of a tiny model of each family, measured and written up: ``make families``."""
