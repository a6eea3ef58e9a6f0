"""Real shells in one process: only the clock, the network and the trainers' arithmetic are ours."""
