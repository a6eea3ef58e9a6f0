"""Bounds of the transport that no protocol decision depends on (those are in `protocols.limits`).

All bounds of this package are here, so that what a peer can cost can be seen at one place. Names
tell the unit: `BYTES`, `SECONDS`; other numbers are counts.
"""

from __future__ import annotations

# Memory held for a peer.
CONTROL_BUFFER_BYTES = 64 << 10  # receive buffer of a control connection
MAX_CONTROL_QUEUE_BYTES = 16 << 20  # if more waits to be sent, the peer is cut off
MAX_OPENINGS_PER_PEER = 4  # half-open links from one trusted peer; the oldest is given up
MAX_SILENT_PER_PEER = 12  # its connections that have not said yet what they are for
NONCE_BYTES = 32  # of a join connection
LINK_NONCE_BYTES = 16  # tells which connections belong together
MAX_VERSIONS = 16  # protocol versions that one hello may offer
MAX_VERSION = 1 << 16

# Sending and receiving bulk frames.
BULK_PIECE_BYTES = 128 << 10  # largest single write; about twice as much may wait below it
JOINED_BYTES = 16 << 10  # one copy of so much is cheaper than another TLS record and system call
BULK_TURN_BYTES = 1 << 20  # bytes written before the event loop may do other work
BULK_BUFFER_BYTES = 64 << 10  # receive buffer; a payload that lacks as much is read in place
BULK_SCRATCH_BYTES = 256 << 10  # buffer into which dropped payloads are read
NOTSENT_LOWAT_BYTES = 128 << 10  # the kernel asks for more once less than this is unsent
WRITE_HIGH_WATER_BYTES = 128 << 10  # asyncio's buffer: if it holds more, writing is paused

# Listening.
ACCEPT_BACKLOG = 128  # connections that the kernel holds until they are accepted
ACCEPT_RETRY_SECONDS = 0.5  # pause if the process has no descriptor left for a connection
PORTS_TRIED = 100  # pairs of ports that are tried from DEFAULT_PORT on

# Waiting.
TLS_CLOSE_SECONDS = 1.0  # for the peer's TLS goodbye
CLOSE_SECONDS = 2.0  # for the peer's goodbye when a link is closed
# If a process dies, its system ends all connections of a link at once. Packets that say so may be
# lost, and are first sent again after 0.2 s.
END_SECONDS = 0.5  # that the other connections have to end, after a first one
TOGETHER_SECONDS = 1.0  # within which all have ended, or this was not the death of the process
LAST_READ_SECONDS = 0.02  # for what has arrived while this process stood still
# A connection on which nothing is sent is tested after so long, and as long after each test.
KEEPALIVE_SECONDS = 30
FLUSH_SECONDS = 10.0  # for queued frames when closing with flush
DIAL_STAGGER_SECONDS = 0.25  # between beginning to dial two addresses of one peer
COMPLAINT_SECONDS = 10.0  # between two lines about the same kind of trouble
ADDRESS_SECONDS = 2.0  # between two looks at this device's addresses
HINT_RESOLVE_SECONDS = 3.0  # for the answer of an agent that was announced by multicast DNS

# Discovery. Anybody on the network can announce anything, so what is kept of it is bounded.
MAX_HINTS_KEPT = 1024  # announced names; the oldest is forgotten
MAX_HINTS_AT_ONCE = 64  # announced names that are resolved at the same time

# Pairing by a short code. The product of tries and codes decides how likely a guess is.
PAIRING_WRONG_TRIES = 3  # wrong codes of all devices together, then the code is void
MAX_PAIRINGS_BEGUN = 64  # connections that may compute a key, as each costs some milliseconds
MAX_PAIRING_BYTES = 512  # of one frame
PAIRING_SECONDS = 10.0  # for one connection, from the first byte to the last
PAIRING_FIND_SECONDS = 15.0  # until an announced invitation must have been found
MAX_INVITERS_TRIED = 4  # of one channel, because each is another chance to guess the code for it

# Asking for a recipe.
RECIPE_FIND_SECONDS = 6.0  # until an agent of the cluster must have told one
