"""The all-reduce of one iteration: which chunk goes where, and the control word in chunk 0."""
