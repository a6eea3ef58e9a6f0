"""Everything that `scripts/test` runs under pytest."""
