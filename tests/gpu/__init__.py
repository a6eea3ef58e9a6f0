"""What only a machine with a GPU can show; `scripts/gpu-check` runs it."""
