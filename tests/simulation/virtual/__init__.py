"""Real shells in one process; only clock, network and the trainers' arithmetic are simulated."""
