"""A device that takes no share of the work while it runs on battery or is in use."""
