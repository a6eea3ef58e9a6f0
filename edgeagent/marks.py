"""What the trainer says in shared memory of where it stands, so that the agent knows it even if the
trainer has ended in the middle of something.

Each mark is one or more words of 64 bits. The trainer alone writes them.
"""

from __future__ import annotations

MARKS = 8  # words, not all of which are used
# The iteration + 1 while the trainer changes the state in shared memory, else 0.
MARK_APPLYING = 0
# How many updates that state has behind it.
MARK_ITERATION = 1
# The first of two words with a bitmap of the stripes whose slots are here, if these are divided.
MARK_STRIPES = 2
# Whether these slots have still to be stepped with the last update (`handover.Applied`).
MARK_OWED = 4
OWES_NOTHING = 0
OWES_STEP = 1
STEPS_NOW = 2  # it is in the middle of that step
# How many chunks that step has been made of, in ascending order, if it is owed still.
MARK_STEPPED_CHUNKS = 5
