"""Pure algorithms of the scheduler: from numbers they make a plan and say the reason for it.

These modules do no I/O, read no clock and use no randomness that was not passed in, so that equal
arguments give equal plans and every plan can be tested and replayed.
"""
