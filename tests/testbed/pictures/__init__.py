"""Makes the pictures of the documentation from real agents (`scripts/pictures`)."""
