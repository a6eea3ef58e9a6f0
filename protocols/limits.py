"""Every bound on what a peer can make this node hold, compute or wait for.

No literal bound stands elsewhere. Sizes are in bytes, times in seconds, counts plain, and the names
say which. `edgeagent/transport/bounds.py` has the bounds that only the transport needs.
"""

from __future__ import annotations

# --- names and identities -------------------------------------------------------------------------

NODE_ID_BYTES = 32
LINEAGE_BYTES = 16
MAX_NAME_BYTES = 64
MAX_ADDRESSES = 16
MAX_ADDRESS_BYTES = 64
MAX_CERTIFICATE_BYTES = 2048
MAX_NUMERIC_CLASS_BYTES = 256

# --- control messages -----------------------------------------------------------------------------

MAX_CONTROL_BYTES = 1 << 20
MAX_ITEMS = 65536
MAX_TEXT_BYTES = 4096
MAX_HOPS = 32
MAX_INTEGER = (1 << 63) - 1
# A node remembers, for each of so many origins, which of its last numbers it has seen, and so drops
# the copies of a message that reach it over several links.
SEEN_WINDOW = 1024
MAX_ORIGINS = 4096

# --- counters -------------------------------------------------------------------------------------

# What is read stays below what every part can hold: a bulk header has 32 bits for all of them but
# the iteration, and a join's number has the term in its upper half. So whatever follows from the
# largest number that is read can still be written.
MAX_TERM = (1 << 30) - 1
MAX_VERSION = (1 << 31) - 1
MAX_VIEW = (1 << 31) - 1
MAX_ATTEMPT = (1 << 31) - 1
MAX_FENCE = (1 << 31) - 1
MAX_ITERATION = (1 << 48) - 1
MAX_SAMPLES = (1 << 62) - 1
# A message may be so far ahead of what this node knows. A member that follows the cluster cannot
# have missed more; a larger step would let one message use a counter up.
MAX_TERM_STEP = 256
MAX_VERSION_STEP = 1024
MAX_ATTEMPT_STEP = 1024

# --- the cluster ----------------------------------------------------------------------------------

MAX_MEMBERS = 256
MAX_LINKS_PER_NODE = 64
# Up to so many members are all linked to each other. In a larger cluster the scheduler chooses so
# many neighbours for a joiner.
ALL_LINKED_MEMBERS = 12
MAX_NEIGHBOURS = 8
MAX_OPEN_JOINS = 32
# Of these, so many may follow from outside: each source sends each of them every update.
MAX_FOLLOWERS = 8
MAX_EXPELLED = 64  # remembered in the view; the oldest are forgotten
MAX_TOKEN_BYTES = 64
MAX_MICRO_BATCHES = 65536  # of one iteration
MAX_POLICIES_KEPT = 8  # bodies of policies, beside that of the one in force
MAX_WAY_WEIGHT = 128  # parts into which a policy's ways divide the chunks, and so the most ways
MAX_FEED_WEIGHT = 64  # parts into which a joiner's feeds divide the chunks
MAX_CHUNKS = 1 << 19  # of the gradient vector
MAX_STRIPES = 128  # into which the chunks are divided where no device keeps all optimizer state
MAX_HOLDERS = 8  # of one stripe, learners not counted
MAX_SQUARES_BYTES = 1 << 18  # float64 for each chunk: of up to 32,768
MAX_ANCESTORS = 64  # lineages that came before the present one; the oldest are forgotten
MAX_TRUSTED_NODES = 512  # members, open joins, and some joins that came to nothing

# --- bulk frames ----------------------------------------------------------------------------------

BULK_HEADER_BYTES = 80
MAX_CHUNK_BYTES = 1 << 20
MAX_CONTROL_WORD_BYTES = 1 << 20
MAX_SHARD_BYTES = 4 << 20
# Frames of a round that has not begun here are kept until it begins.
MAX_EARLY_BYTES = 64 << 20
# With several ways a node sends partial sums no further ahead than this of the first chunk that is
# not reduced there, so that a neighbour never has to stop reading (half of the above).
WINDOW_BYTES = 32 << 20
# Keeping a frame costs so much beside its payload: many small frames are bounded as well.
EARLY_FRAME_BYTES = 512
# A joiner for which more than this is waiting takes too little of what is sent to it.
MAX_SUBSCRIBER_QUEUE_BYTES = 256 << 20

# --- measuring links (`meter.py`, `monitor.py`) ---------------------------------------------------

# Frames that arrive no further apart than this were sent right behind each other.
METER_GAP_SECONDS = 0.002
# The first bytes of a run say nothing about the link, because a token bucket may have saved them up
# or they may have waited for their reader.
METER_HEAD_BYTES = 32 << 10
# Bytes that arrive no further apart than this belong to the head of a run, too.
METER_BURST_SECONDS = 0.0005
# On a fast link all bytes arrive like that, so the head ends here at the latest.
METER_MOST_HEAD_BYTES = 256 << 10
# A sample ends after so many bytes, or after so much time: enough to outweigh the moments in which
# the reader was busy.
METER_BYTES = 1 << 20
METER_SECONDS = 0.05
# It has at least so many bytes: three TLS records, which arrive as a whole, each with the last of
# its eleven or twelve packets, so that the time of one alone says little.
METER_LEAST_BYTES = 48 << 10
# What was left of a run longer ago than this makes up no sample with what comes now.
METER_REST_SECONDS = 60.0
# While there is no sample, so much of one has to do.
METER_LEAST_SECONDS = 0.01
METER_SAMPLES = 5  # that a link's rate is taken from
# A link without a sample for so long since its first bytes has the mean rate of all that came. Of
# a pause between two frames only so much counts, since nothing may have been on its way.
METER_ROUGH_SECONDS = 1.0
METER_PAUSE_SECONDS = 0.5
# A link that was busy so shortly ago still counts as one beside which another is not alone.
SHARED_SECONDS = 0.02
# What all links of a device carry together is measured over so many seconds in which several were
# busy, and so many bytes for each of these: a TLS record, which arrives as a whole, has 16 KiB.
STRETCH_SECONDS = 0.3
STRETCH_LINK_BYTES = 64 << 10
STRETCH_LOOK_SECONDS = 0.02  # how often the links are looked at for that, at most
STRETCH_MOST_LOOK_SECONDS = 0.2  # two looks that are further apart say nothing
STRETCHES = 5  # that a device's limit is taken from
# A device is limited if its links together carry less than this part of what they carry alone, and
# then until they carry more than the other part.
LIMITED_PART = 0.7
UNLIMITED_PART = 0.85
# Nothing limits it while a link that is as fast as alone carries so many times as much as any link
# that is slower than alone.
FAIR_TIMES = 2.0
# A link has become slow if it carries less than this part of its rate although it was busy for so
# large a part of the time, and another link carries `FAIR_TIMES` as much.
FALLEN_PART = 0.5
BUSY_PART = 0.8
# For so long the other direction of a joiner's link counts as slow, too. By then it was used.
FALLEN_BACK_SECONDS = 20.0
# What was measured longer ago says nothing of a limit any more.
NODE_LIMIT_SECONDS = 60.0
# A probe sends so many bytes, or sends for so long and so many round trips more, whichever is less:
# a connection needs some round trips until it is fast.
MAX_PROBE_BYTES = 4 << 20
MAX_PROBE_SECONDS = 0.05
PROBE_ROUND_TRIPS = 10
# However long the round trips are, a probe lasts no longer than this.
MOST_PROBE_SECONDS = 1.0
# The first probe of a link whose delay turns out to be longer than this was too short, so there is
# another one after so many seconds without traffic.
LONG_DELAY_SECONDS = 0.005
PROBE_LONGER_SECONDS = 2.0
# A joiner waits so long for the rate of one of its new links before it says that they are open: for
# a probe of a slow link, and until an agent looks at its gauges again, which it does every 0.5 s.
PROBE_WAIT_SECONDS = 0.8
# It waits so long for the rates of all of them. A link that is not measured by then carries little
# beside those that are, and how fast its source sends shows as soon as it does.
PROBE_REST_SECONDS = 0.25
PROBE_FRAME_BYTES = 16 << 10
# Probe a link again that has carried nothing for so long.
PROBE_AGAIN_SECONDS = 10.0
# Probe a link that is in use, too, but less often: what it carries may be too short for a sample.
PROBE_BUSY_SECONDS = 120.0
# After probing a link again a device waits so many times as long as the probe keeps the link busy
# until it probes the next one, however many links it has. So probes take 1 % of the time.
PROBE_SPACING = 100.0
# When a probe ends, about so many bytes of it are still on their way: what a connection that has
# only just begun to send keeps in flight, and what waits behind that. A link of 1 Mbit/s needs
# another second for them.
PROBE_REST_BYTES = 128 << 10
# Tell the others of changed measurements at most this often.
TELL_SECONDS = 0.5
# Repeat unchanged measurements this often, so that every member, and the next scheduler, has them.
TELL_AGAIN_SECONDS = 5.0
# An answer to a ping that claims a longer delay than this is taken for no measurement.
MOST_DELAY_SECONDS = 60.0
# How fast a device computed longer ago than this says nothing about how fast it is now.
PACE_SECONDS = 30.0
# Measurements lead to a new policy at most this often.
REPLAN_SECONDS = 1.0
# A search for ways needs the processor, which the scheduler's trainer needs, too: the next one
# begins so many times as long after the last one began as that took, within these bounds. That of
# many members takes seconds.
SEARCH_PAUSE = 10.0
SEARCH_LEAST_SECONDS = 1.0
SEARCH_MOST_SECONDS = 3.0

# --- the training state ---------------------------------------------------------------------------

MAX_STATE_META_BYTES = 512 << 10
MAX_INTEGER_BUFFER_BYTES = 64 << 10
CLAIM_BYTES = 8  # of the digest of a state that a control word carries
MAX_CLAIMS_BYTES = MAX_MEMBERS * (CLAIM_BYTES + MAX_MEMBERS // 8)
# One claim covers so many bytes of the state's tensors; the next one covers the bytes behind them.
CLAIM_WINDOW_BYTES = 64 << 10
# So much of the state is hashed in `cycle.DIGEST_EVERY` iterations at most, on average: about a
# tenth of a second of one core.
DIGEST_BYTES = 64 << 20
MAX_PIECES = 1024  # tensors that one such window may touch
MAX_SETTINGS_BYTES = 64 << 10  # what scripts set of the optimizer's scalars in one iteration
MAX_SHARDS = 16384
MAX_JOB_FIELDS = 8192
MAX_STATE_BYTES = 1 << 42

# --- the flight recorder --------------------------------------------------------------------------

MAX_RECORDED = 2000  # entries
MAX_RECORDED_BYTES = 8 << 20
# Of a larger entry the long fields are left out.
MAX_RECORDED_ENTRY_BYTES = 256 << 10

# --- hints where other agents may be: anybody on the network can give some ------------------------

MAX_HINTS = 256
MAX_SILENCES = 8  # unanswered questions in a row after which a hint is forgotten
MAX_QUESTIONS = 8  # open at once to addresses that the user did not name

# --- connections nobody has vouched for yet -------------------------------------------------------

MAX_UNPROVEN_CONNECTIONS = 32
MAX_JOIN_FRAME_BYTES = 1 << 20
MAX_JOIN_HELLO_BYTES = 8192
HANDSHAKE_SECONDS = 5.0
JOIN_SECONDS = 10.0

# --- failures: silence and links that stand still -------------------------------------------------

HEARTBEAT_SECONDS = 0.5
# A neighbour whose delay is not known yet is taken for silent after this.
SILENCE_SECONDS = 2.0
# Once the delay and its jitter are known, the time-out follows them, within these bounds.
LEAST_SILENCE_SECONDS = 1.5
MOST_SILENCE_SECONDS = 8.0
# A link stands still if its bytes are sent again in vain for so long, and for longer than it needs
# for so many bytes at its own rate, and for longer than so many round trips; but it is given no
# more than `MOST_STALL_SECONDS`.
STALL_SECONDS = 3.0
STALL_BYTES = 64 << 10
STALL_ROUND_TRIPS = 8
MOST_STALL_SECONDS = 15.0
# If a link stands still twice within this time, the path is taken to swallow large packets.
SWALLOW_SECONDS = 20.0
# Payload bytes of the shorter segments that are tried then: what every IPv6 path carries, then what
# every IPv4 path carries.
SHORT_SEGMENTS = (1220, 536)
# A link that has stood still so often within this time is not opened again.
MOST_STALLS = 3
STALLS_WITHIN_SECONDS = 600.0

# --- failures: fences and elections ---------------------------------------------------------------

# Fence messages that were not answered are repeated this often.
FENCE_REPEAT_SECONDS = 0.25
# A fence waits so long for a member out of reach: there may be a way to it that is not known yet.
FENCE_SILENT_SECONDS = 0.5
# A member that has not answered a fence by then is taken for lost.
FENCE_REPORT_SECONDS = 2.0
# The same for each further fence of a term, both for reports and for the answers to its decision:
# the first one may have failed only because there and back takes longer over many slow hops.
FENCE_AGAIN_SECONDS = 4.0
# When a link of a node is reported broken, the other ends of its links have so long to report
# theirs, before the node is taken for lost or not.
LINK_CONFIRM_SECONDS = 0.3
# A member that said goodbye is missed only after this: usually a policy without it is on its way.
LEAVER_GONE_SECONDS = 2.0
# The k-th heir of a lost scheduler waits k times this before it stands for election.
ELECTION_STEP_SECONDS = 0.2
# Each candidacy in vain doubles the time until the next one, up to this: votes may need longer to
# come back over many slow hops than heirs have patience at first, and a new term voids them.
MOST_ELECTION_SECONDS = 8.0
# An exact half of the members that may decide for all waits so long for members that are not proven
# dead: a laptop that sleeps for a moment is to cost a pause, and no steps.
HALF_WAIT_SECONDS = 8.0
# A part without a quorum goes on by itself only after this.
PARTITION_WAIT_SECONDS = 10.0
# Members that alone hold a part of the optimizer's state, and are not proven dead, are given up
# after this, if the user does not want to wait for them without limit.
PARTS_WAIT_SECONDS = 30.0
# A part that pauses without a quorum ends by itself this long after the last update: the others may
# have ended unseen. It waits for so long because they may also lack that update, and want it.
PAUSED_END_SECONDS = 300.0
# The scheduler is to blame for a fence that is not decided by then although a quorum is in reach.
FENCE_PATIENCE_SECONDS = 15.0
# The root of a round is to blame if the policy that it named cannot be had from anybody by then.
FETCH_PATIENCE_SECONDS = 5.0
# A member that is parted from so many others is let go,
ACCUSERS = 2
# and is not let in again for so long.
LET_GO_SECONDS = 60.0
# A member that leaves, or gives way to another cluster, goes after this even if nobody has let it
# go.
LEAVE_SECONDS = 20.0
YIELD_SECONDS = 3.0
# It goes after this if parts of the optimizer's state are missing, because nobody is let go then.
LEAVE_LACKING_SECONDS = 3.0
# While it keeps parts of that state, it goes only after this, or some usual steps, in which it
# could hand on none: without what only it keeps the others cannot go on.
LEAVE_HOLDING_SECONDS = 120.0
# A member that leaves and that the others have gone on without waits so long for the result of its
# last round, if a link over which that comes is broken.
LEAVER_RESULT_SECONDS = 2.0

# --- a trainer that is slow, hung or away (`trainer_debt.py`) -------------------------------------

# Work or an update may take so long in any case.
TRAINER_LEAST_SECONDS = 2.0
# An owner of a divided optimizer state whose trainer hangs gives up so long after it has told the
# others: by then it knows of those that hang, too, and that so cannot do its work.
PUBLISHERS_TOLD_SECONDS = 2.0
# The first iterations may take so long each, because of compilation, page-ins and cold caches.
TRAINER_FIRST_SECONDS = 60.0
TRAINER_FIRST_ITERATIONS = 3
# Later ones may take so many times what the second slowest of the last samples took; the slowest
# may have been a hang.
TRAINER_FACTOR = 4.0
TRAINER_SAMPLES = 5
# Users are told of a trainer that takes longer than this and longer than usual.
TRAINER_NOTICE_SECONDS = 1.0
# If the trainers of all members are late, each is given twice the time, and twice that, up to this
# factor.
TRAINER_MOST_PATIENCE = 1024.0
# A trainer that is late for longer than this is let go,
TRAINER_LET_GO_SECONDS = 30.0
# and so is one for which more updates than this have to be kept, and more than so many: one that is
# let go copies the whole state anew, which is larger than they are.
MAX_KEPT_UPDATE_BYTES = 256 << 20
LEAST_KEPT_UPDATES = 2
# While it is being let go, the others' updates are kept up to this.
MOST_KEPT_UPDATE_BYTES = 1 << 30
# A device that leaves waits so long for its trainer to apply the updates that it lacks.
LEAVER_CATCHES_UP_SECONDS = 10.0
# A joiner remembers what its sources have said of so many updates that it has fetched.
MOST_PAST_RECORDS = 32
# At the end of training, members wait so long for devices that follow from outside and lack the
# last updates. Otherwise these would go on alone from the update before.
FOLLOWERS_CATCH_UP_SECONDS = 30.0

# --- other waits ----------------------------------------------------------------------------------

LINK_OPEN_SECONDS = 10.0
# A policy that has not come into force after this is amended by what is desired since then.
AMEND_SECONDS = 1.0
RETRY_SECONDS = 1.0  # after which a request is repeated that was not answered
LINK_RETRY_SECONDS = 2.0  # after which a link is dialled again that could not be opened
# A member that has sent what cannot be is trusted and dialled again after the first time, twice as
# long after the second, and at most after the last.
OFFENCE_SECONDS = 5.0
OFFENCE_MOST_SECONDS = 600.0
# A source that owes a joiner something and sends nothing for so long is replaced by the others.
PULL_STALL_SECONDS = 10.0
# A joiner whose requests no scheduler answers for so long looks for a cluster anew: its sponsor, or
# all that its sponsor knew, may have left.
JOIN_ANSWER_SECONDS = 30.0
# A join without any progress for so long is given up by the scheduler.
JOIN_PROGRESS_SECONDS = 60.0
# A joiner that would stop the others for too long asks again after the first time, or after the
# second if it has stopped them already.
JOIN_AGAIN_SECONDS = 15.0
JOIN_MUCH_LATER_SECONDS = 60.0

# --- joins that stop nobody -----------------------------------------------------------------------

# A source keeps a snapshot of the state, and the updates since then, for a joiner that has asked it
# for something within this time.
COPY_IDLE_SECONDS = 60.0
# Joiners that begin to copy together need one snapshot and serve each other. So a joiner waits for
# other devices that have asked to join and open their links: up to so long, or for this part of the
# time that its copy is expected to take, but no longer than so many seconds.
JOIN_BATCH_SECONDS = 1.0
JOIN_BATCH_PART = 0.3
MOST_BATCH_SECONDS = 5.0
# It also waits for others if none is known to come, but less. Devices that start at one moment ask
# to join within a second or two.
JOIN_GATHER_PART = 0.1
JOIN_GATHER_SECONDS = 3.0
# A member whose trainer has yet to apply updates, so that a joiner cannot copy its state, tells the
# scheduler so after this time. Until then all hold their update for the joiner.
JOIN_OFFER_SECONDS = 3.0
# A joiner begins later if its parent would send it the result of a round for longer than so many
# seconds, and for so many times as long as it takes for the fastest of those that begin with it.
JOIN_FEED_SECONDS = 3.0
JOIN_FEED_TIMES = 2.0
# It is put off so often at most. Then the others wait for it.
JOIN_MOST_PUT_OFF = 2
# A source keeps updates for joiners up to this; beyond it the joiner that is furthest behind gets
# no more of them here.
MOST_LOGGED_BYTES = 1 << 30
# It keeps so many in any case, however large they are. One is on its way to the joiner, one follows
# it, one has just been made, and one is to spare. A source that has too little memory for that many
# takes no snapshot, so that a copy that could not be finished is not begun.
LEAST_LOGGED_UPDATES = 4
# A joiner takes no notice of updates that are so much newer than the first that it lacks.
MOST_UPDATES_BEHIND = 10_000
# A joiner asks for the last part of its join when it lacks no more than so many updates,
COPY_CLOSE_UPDATES = 1
# or only updates that it has known of for less than this: where steps are shorter than the time
# that a message takes, some updates are always on their way.
COPY_CLOSE_SECONDS = 0.25
# It fetches so many updates at once, for the same reason.
MOST_UPDATE_FETCHES = 16
# An update is cut into about so many parts, so that it can come from several sources at once,
UPDATE_PARTS = 64
# but no part is smaller than this, because each costs a digest and a frame.
LEAST_UPDATE_PART_BYTES = 16 << 10
# A joiner takes in no more than this of what its sources say of updates that are not here yet.
MOST_RECORD_BYTES = 64 << 20
# A joiner keeps updates that it cannot apply yet up to so many times the size of the state.
MOST_COPY_LOG_STATES = 4
