"""What peers say to each other, and what each then decides.

Law: pure. No clock, socket, file, thread, environment, global randomness, torch, or iteration over
a set. Time comes in as a number, randomness as a passed `random.Random`; a machine takes an event
and returns effects. Bytes from peers are hostile until `codec` has accepted them.
"""
