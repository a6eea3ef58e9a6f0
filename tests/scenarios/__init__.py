"""Real agent processes on loopback: what a user would see, and nothing else."""
