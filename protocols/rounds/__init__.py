"""The sum of one iteration: which chunk goes where; the control word, which travels in chunk 0."""
