"""The protocols: what peers say to each other, and what each of them then decides.

This package is pure, so that whole clusters can be simulated and every history can be repeated: it
uses no clock, socket, file, thread, environment, global randomness or torch, and never iterates
over a set. Time comes in as a number, and randomness as a `random.Random`; a machine takes an event
and returns effects. Bytes from peers are hostile until `codec` has accepted them.
"""
