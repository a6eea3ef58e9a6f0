"""What a node knows of the network: who is alive, how fast links are, whom everybody waits for."""
