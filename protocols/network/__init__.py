"""What a node knows of the network: who is alive, how fast links are, and who holds others up."""
