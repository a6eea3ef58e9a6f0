"""Bounds of the transport that no protocol decision depends on (those are in protocols.limits).

Law: no literal bound elsewhere in this package. Sizes in bytes, times in seconds, counts plain.
"""

from __future__ import annotations

# What is held for a peer.
CONTROL_BUFFER_BYTES = 64 << 10  # receive buffer of a control connection
MAX_CONTROL_QUEUE_BYTES = 16 << 20  # a peer that lets more than this pile up is cut off
MAX_OPENINGS_PER_PEER = 4  # half-open links from one trusted peer
NONCE_BYTES = 32
LINK_NONCE_BYTES = 16
MAX_VERSIONS = 16
MAX_VERSION = 1 << 16

# Moving bulk bytes.
BULK_PIECE_BYTES = 128 << 10  # largest single write; about what may wait below us, twice
BULK_TURN_BYTES = 1 << 20  # most bytes written before the loop gets its turn
BULK_SCRATCH_BYTES = 256 << 10  # where dropped payloads go
NOTSENT_LOWAT_BYTES = 128 << 10  # kernel asks for more only below this much unsent data
WRITE_HIGH_WATER_BYTES = 128 << 10

# Listening.
ACCEPT_BACKLOG = 128
ACCEPT_RETRY_SECONDS = 0.5  # pause when the process is out of descriptors
PORTS_TRIED = 100

# Waiting.
TLS_CLOSE_SECONDS = 1.0  # for the peer's TLS goodbye
CLOSE_SECONDS = 2.0  # for the peer's confirmation of a close
END_SECONDS = 0.1  # between the ends of a link's two connections, when a process dies
FLUSH_SECONDS = 10.0  # for queued frames when closing with flush
DIAL_STAGGER_SECONDS = 0.25  # between two addresses of one peer
COMPLAINT_SECONDS = 10.0  # between two lines of the same kind
ADDRESS_SECONDS = 2.0  # between two looks at this device's addresses
HINT_RESOLVE_SECONDS = 3.0

# Discovery: anybody on the network can announce anything.
MAX_HINTS_KEPT = 1024
MAX_HINTS_AT_ONCE = 64
