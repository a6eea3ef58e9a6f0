"""Every bound on what a peer can make this node hold, compute or wait for.

Law: no literal bound elsewhere. Sizes in bytes, times in seconds, counts plain.
"""

from __future__ import annotations

# Names and identities.
NODE_ID_BYTES = 32
LINEAGE_BYTES = 16
MAX_NAME_BYTES = 64
MAX_ADDRESSES = 16
MAX_ADDRESS_BYTES = 64
MAX_CERTIFICATE_BYTES = 2048
MAX_NUMERIC_CLASS_BYTES = 256

# Control messages.
MAX_CONTROL_BYTES = 1 << 20
MAX_ITEMS = 65536
MAX_TEXT_BYTES = 4096
MAX_HOPS = 32
MAX_INTEGER = (1 << 63) - 1
SEEN_WINDOW = 1024
MAX_ORIGINS = 4096

# Counters. What is read stays below what every part can hold (a bulk header has 32 bits for all but
# the iteration; a join's number has the term in its upper half), so that what follows from the
# largest that is read can still be written.
MAX_TERM = (1 << 30) - 1
MAX_VERSION = (1 << 31) - 1
MAX_VIEW = (1 << 31) - 1
MAX_ATTEMPT = (1 << 31) - 1
MAX_FENCE = (1 << 31) - 1
MAX_ITERATION = (1 << 48) - 1
MAX_SAMPLES = (1 << 62) - 1
# What a message claims of them beyond what is known here, no member that follows could have missed.
MAX_TERM_STEP = 256
MAX_VERSION_STEP = 1024
MAX_ATTEMPT_STEP = 1024

# Cluster.
MAX_MEMBERS = 256
MAX_LINKS_PER_NODE = 64
MAX_NEIGHBOURS = 6
MAX_OPEN_JOINS = 32
MAX_EXPELLED = 64  # the newest ones are remembered
MAX_TOKEN_BYTES = 64
MAX_MICRO_BATCHES = 65536
MAX_POLICIES_KEPT = 8
MAX_CHUNKS = 1 << 19
MAX_ANCESTORS = 64  # lineages that came before; the newest are remembered
MAX_TRUSTED_NODES = 512  # members, open joins, and some that came to nothing

# Bulk frames.
BULK_HEADER_BYTES = 80
MAX_CHUNK_BYTES = 1 << 20
MAX_CONTROL_WORD_BYTES = 1 << 20
MAX_SHARD_BYTES = 4 << 20
MAX_EARLY_BYTES = 64 << 20
EARLY_FRAME_BYTES = 512  # what keeping an early frame costs beside its payload
MAX_SUBSCRIBER_QUEUE_BYTES = 256 << 20

# Measuring links.
METER_GAP_SECONDS = 0.002  # frames no further apart came behind each other
METER_HEAD_BYTES = 32 << 10  # what comes first, or at once with it, says nothing about a link,
METER_BURST_SECONDS = 0.0005  # where bytes no further apart came at once,
METER_MOST_HEAD_BYTES = 256 << 10  # but of a fast link all come so
METER_BYTES = 1 << 20  # a sample is so long,
METER_SECONDS = 0.05  # or takes so long: enough to outweigh the moments in which nobody reads;
METER_LEAST_SECONDS = 0.01  # what ends sooner is dropped
METER_SAMPLES = 5
MAX_PROBE_BYTES = 4 << 20
MAX_PROBE_SECONDS = 0.05  # and in addition
PROBE_ROUND_TRIPS = 10  # round trips, since a connection starts slowly,
MOST_PROBE_SECONDS = 1.0  # but no longer than so
LONG_DELAY_SECONDS = 0.005  # a link's first probe is too short where the delay is longer: once
PROBE_LONGER_SECONDS = 2.0  # it carries nothing for so long, there is another
PROBE_WAIT_SECONDS = 0.4  # a joiner waits so long for the rates of its links
PROBE_FRAME_BYTES = 64 << 10
PROBE_AGAIN_SECONDS = 10.0  # a link that carries nothing is probed so often,
PROBE_BUSY_SECONDS = 30.0  # one that does, so often: what it carries may be too short to tell
TELL_SECONDS = 0.5  # news of what was measured is told at most so often,
TELL_AGAIN_SECONDS = 5.0  # and what is no news so often
MOST_DELAY_SECONDS = 60.0  # what an answer claims beyond that is no round trip
PACE_SECONDS = 30.0  # how fast a device computed so long ago says nothing about now
REPLAN_SECONDS = 1.0  # measurements make a new policy at most so often

# Training state.
MAX_STATE_META_BYTES = 512 << 10
MAX_INTEGER_BUFFER_BYTES = 64 << 10
CLAIM_BYTES = 8  # of a digest of the state that a control word carries
MAX_CLAIMS_BYTES = MAX_MEMBERS * (CLAIM_BYTES + MAX_MEMBERS // 8)
CLAIM_WINDOW_BYTES = 64 << 10  # of the state's tensors are in one claim, others in the next
MAX_PIECES = 1024  # tensors of which a part is in one window
MAX_SETTINGS_BYTES = 64 << 10  # what scripts set of the optimizer's scalars in one iteration
MAX_SHARDS = 16384
MAX_JOB_FIELDS = 8192
MAX_STATE_BYTES = 1 << 42

# What a node's flight recorder keeps.
MAX_RECORDED = 2000  # entries
MAX_RECORDED_BYTES = 8 << 20
MAX_RECORDED_ENTRY_BYTES = 256 << 10  # of a larger entry what is long is left out

# Hints where other agents may be: anybody on the network can give some.
MAX_HINTS = 256
MAX_SILENCES = 8  # then a hint is forgotten
MAX_QUESTIONS = 8  # at once, to addresses that the user did not name

# Connections nobody has vouched for yet.
MAX_UNPROVEN_CONNECTIONS = 32
MAX_JOIN_FRAME_BYTES = 1 << 20
MAX_JOIN_HELLO_BYTES = 8192
HANDSHAKE_SECONDS = 5.0
JOIN_SECONDS = 10.0

# Failure.
HEARTBEAT_SECONDS = 0.5
SILENCE_SECONDS = 2.0  # a neighbour may be silent for so long while its delay is not known,
LEAST_SILENCE_SECONDS = 1.5  # and never for less
MOST_SILENCE_SECONDS = 8.0  # or more than this
STALL_SECONDS = 3.0  # bulk bytes may be sent again in vain for so long,
STALL_BYTES = 64 << 10  # and for what the link takes for so much,
STALL_ROUND_TRIPS = 8  # and for so many round trips,
MOST_STALL_SECONDS = 15.0  # and never for longer
SWALLOW_SECONDS = 20.0  # of two links that stand still within so long the segments are to blame
SHORT_SEGMENTS = (1220, 536)  # bytes: what IPv6 carries everywhere, then what IPv4 does
MOST_STALLS = 3  # a link that stood still so often is not opened again
FENCE_REPEAT_SECONDS = 0.25  # unanswered fence messages are repeated
FENCE_SILENT_SECONDS = 0.5  # a member out of reach may have a way that is not known yet
FENCE_REPORT_SECONDS = 2.0  # a member that has not answered a fence by then is lost
LINK_CONFIRM_SECONDS = 0.3  # other ends of a node's links have so long to report them broken too
LEAVER_GONE_SECONDS = 2.0  # a leaver that has gone may be missed if it is still a member then
ELECTION_STEP_SECONDS = 0.2  # the k-th heir waits k steps before it stands
HALF_WAIT_SECONDS = 8.0  # a half that may decide for all waits so long for who is not proven gone
PARTITION_WAIT_SECONDS = 10.0  # whoever may not, longer than that
FENCE_PATIENCE_SECONDS = 10.0  # a fence that is not decided by then, although a quorum is in reach,
FETCH_PATIENCE_SECONDS = 5.0  # or a policy that nobody has had by then, is somebody's fault
ACCUSERS = 2  # a member that is parted from so many others is let go,
LET_GO_SECONDS = 60.0  # and not let in again for so long
LEAVE_SECONDS = 20.0  # a member that leaves goes then, let go or not
YIELD_SECONDS = 3.0  # a member that gives way to another cluster goes then, let go or not

# A trainer that is slow, hung or away.
TRAINER_LEAST_SECONDS = 2.0  # work or an update may take so long in any case,
TRAINER_FIRST_SECONDS = 60.0  # and so long at first: compilation, page-ins, caches,
TRAINER_FIRST_ITERATIONS = 3  # which is in so many iterations,
TRAINER_FACTOR = 4.0  # or so many times what the slowest
TRAINER_NOTICE_SECONDS = 1.0  # what takes longer than this and than usual is told
TRAINER_SAMPLES = 5  # of so many before took
TRAINER_MOST_PATIENCE = 1024.0  # times that, if the trainers of all members are late
TRAINER_LET_GO_SECONDS = 30.0  # a trainer that is late for longer is let go,
MAX_KEPT_UPDATE_BYTES = 256 << 20  # and so is one for which more than this has to be kept
MOST_KEPT_UPDATE_BYTES = 1 << 30  # while it is being let go, no more than this is kept
LEAVER_CATCHES_UP_SECONDS = 10.0  # a device that leaves waits so long for its trainer

# Waiting.
LINK_OPEN_SECONDS = 10.0
RETRY_SECONDS = 1.0
LINK_RETRY_SECONDS = 2.0  # a link that could not be opened is tried again
PULL_STALL_SECONDS = 10.0
JOIN_PROGRESS_SECONDS = 60.0
JOIN_AGAIN_SECONDS = 15.0  # a joiner that would stop the others for too long asks again then,
JOIN_MUCH_LATER_SECONDS = 60.0  # or then, if it has stopped them
