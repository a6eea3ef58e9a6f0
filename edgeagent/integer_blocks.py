"""Sums of gradients that do not depend on the order of addition: blocks of integers.

With `--exact`, what a micro-batch gives to a sum is rounded once, to a multiple of a power of two
that all devices know beforehand. From then on only integers are added, and integers have the same
sum in any order. So a sum has the same bits on one device as on seven, whoever computed what.

A vector is cut into blocks of `BLOCK` numbers. Each block has an exponent E, which is part of the
training state: E follows from the sums of earlier iterations (`trainer/exponents.py`), so every
device has it before the micro-batch is computed. The unit of the block is 2 to the power of
E + HEADROOM - BITS. Numbers below 2^(E + HEADROOM) are kept as int32. A block with larger ones, up
to 2^(E + WIDE_HEADROOM), or whose sum would be beyond int32, is "wide": it is kept as int64. If a
number is larger still, or not finite, the block is marked as lost, and the update is skipped on all
devices, as after an overflow in mixed precision.

In memory and on the wire a chunk of n blocks has 256 n numbers of 4 bytes and then n marks of 4
bytes, one for each block. They are int32 while sums are made. In a reduced chunk the numbers are
float32 again, and the marks stay. The int64 numbers of wide blocks lie beside the vector; on the
wire they follow the marks in ascending order of blocks.
"""

from __future__ import annotations

# The numbers of a block. The mark of a block adds 1/256 to the bytes that travel.
BLOCK = 256
# The 4-byte words that a block takes in a chunk: its numbers and its mark.
BLOCK_WORDS = BLOCK + 1
# The most blocks of a chunk, so that a chunk of wide blocks only fits into `MAX_CHUNK_BYTES`.
MOST_BLOCKS = 320
# Integers of one micro-batch have at most so many bits beside the sign, in int32.
BITS = 30
# A number may be larger than 2^E by this factor, as a power of two, and still be kept as int32. It
# trades precision (`BITS - HEADROOM` bits of the largest number of a usual block) for blocks that
# become wide when gradients grow from one iteration to the next.
HEADROOM = 5
# The same for int64: 16 bits are left for the sum over the most micro-batches of an iteration.
WIDE_HEADROOM = HEADROOM + 62 - 16 - BITS
# The bounds of E, within which units and sums can be written as float32.
LEAST_EXPONENT, MOST_EXPONENT = -90, 120

# The fields of a mark: E and the largest exponent of any micro-batch's numbers, both with `OFFSET`
# added so that 0 says that there is none, and two flags.
OFFSET = 512
FIELD = 0x3FF
LARGEST_SHIFT = 10
WIDE = 1 << 20
LOST = 1 << 21
ALL_BITS = (1 << 22) - 1
