"""What the agent process and the trainer process say to each other, over one socketpair.

    trainer                                     agent
    Hello (+ 8 shared-memory descriptors)  -->          once, before anything else
                                           <--  Begin   state is in place; iteration to work on
                                           <--  Work    micro-batches to compute (more may follow)
    ChunksReady                            -->          a part of P does, while it computes the rest
    Progressed                             -->          it gets on with a long round of local steps
    Costs                                  -->          what parts of the model cost, after a step
    Contributed                            -->          P holds their sum
                                           <--  Reduced the round's sums lie in R[buffer]
                                           <--  Publish the sums of what this device owns are here
    Published                              -->          their results are here
    Applied                                -->          until the next Reduced nothing changes
                                           <--  Settle  make the step of slots that is owed now
    Stepped                                -->          it is made
    ExitRequested, Away                    -->          at any time
                                           <--  LeaveAsked, AgentsHere  at any time
                                           <--  SaveAside   before another state replaces this one
    SavedAside                             -->
                                           <--  End     no more work; save and finish
    EndHeard                               -->          before it saves
    Saved                                  -->          the model is saved, the script still runs
    Finished                               -->          last word
    Rehearsed                              -->          in a dry run, instead of all of the above

Both ends belong to this project and trust each other. Fields have declared kinds to find mistakes,
not to fend off attacks. Large data lies in shared memory, and messages only say whose turn it is to
use it. Frames are a little-endian uint32 length and a tagged record (`protocols/wire/packing.py`).

Both processes map the shared memory:

- `state`: the flat training state;
- `contribution`: P, this node's own sum, written by the trainer only, which after `Publish` puts
  the results of what this node owns there;
- `reduced[0]` and `reduced[1]`: R of even and odd iterations, written by the agent only; if the
  slots are divided, the chunks with weights lie in `reduced[0]` in all iterations;
- `replay`: R of an iteration that a late trainer has missed, written by the agent only;
- `marks`, written by the trainer only: where it stands (`marks.py`).

A trainer on a device other than the CPU keeps the state there, and copies it to shared memory if
the agent is going to read it (`Reduced.is_read`); the marks describe what lies in shared memory.
Neither side touches memory that the other side uses at that moment.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from edgeagent.errors import EdgeAgentError
from protocols.cluster.stripes import OnLost
from protocols.errors import RemoteProtocolError
from protocols.wire.fields import (
    NUMBER,
    Blob,
    Bool,
    Float,
    Kind,
    Many,
    Row,
    Text,
    decode_fields,
    encode_fields,
    wire,
)
from protocols.wire.packing import pack, unpack

HANDOVER_VERSION = 17
MAX_FRAME_BYTES = 16 << 20
SHARED_REGIONS = 8  # state, contribution, reduced[0], reduced[1], replay, marks, wide, held
REPLAY_BUFFER = 2  # number of `replay` among the buffers of `Reduced`
_LENGTH = struct.Struct("<I")
_BOOL = Bool()
_FLOAT = Float(finite=False)  # a loss may be anything
_TEXT = Text(MAX_FRAME_BYTES, printable=False)
_DATA = Blob(MAX_FRAME_BYTES)
_NUMBERS = Many(NUMBER, MAX_FRAME_BYTES)


def _many(*columns: Kind[Any]) -> Many[Any]:
    """The kind of a tuple of rows with these columns, or of values if there is one column."""
    return Many(columns[0] if len(columns) == 1 else Row(*columns), MAX_FRAME_BYTES)


@dataclass(frozen=True, slots=True)
class Hello:
    """The trainer's first message: the job and the layout of the shared memory.

    `job`: (field, value) pairs in a fixed order; together they are the job's fingerprint.
    `tensors`: (name, offset, bytes) of every tensor in the flat state, in ascending order; offsets
    are multiples of 64.
    `accumulate`: numpy dtype of the gradient vector, "float32" or "float64".
    `elements`: length of the gradient vector (gradients, then floating-point buffers).
    `chunk_elements`: length of a chunk of that vector. Data chunk k (counted from 1) starts at
    (k-1) * chunk_elements; the last may be shorter.
    `steps`: 0 if there is no end. `meta`: the state's scalars at `iteration` (see `Applied`).
    `parameters`: the number of bits in a gradient bitmap.
    `exact_buffers`: (number, bytes) of each buffer that all micro-batches must leave the same.
    `script`: a digest of each statement of the script, and where it is; empty for a built-in job.
    `save`: where the trainer saves the state at the end, "" for nowhere. `shapes` (dtype as
    safetensors calls it, and shape, of each of `tensors`) and `notes` (metadata of the file) let
    the agent save the state if the trainer cannot. `constant_bytes`: so many bytes at the beginning
    of the state never change while training, because they are frozen weights and the like;
    `constants` is the SHA-256 of these, empty if there are none. `rounded_chunks`: so many of the
    first data chunks travel as bfloat16. `local_steps`: 0, or an iteration is a round of local
    steps, which has the samples of so many global batches; each micro-batch is then one step of the
    device that computes it, and P holds how far these steps came from the shared weights.
    `wide_bytes`: 0, or the sums are integers in blocks (`integer_blocks.py`), and the numbers of
    wide blocks have so many bytes of shared memory.
    `in_cells`: the micro-batches are cells of a round of subnets, whose cost `fixed_cost` and
    `square_cost` describe (`planner/work_cost.py`).
    `least_share`: so many of these cells each device has at least. `last_round_counts`: by which
    part the last round counts in the speed of this device, 0 for the agent's own choice.
    `slots`: 0, or the optimizer keeps so many slots of full size for each parameter, which are
    divided among the devices (`held_memory.py`), with `copies` of each beside that of its owner;
    `slot_names`: what these slots are called, in their order in the region; `lacking`: so many
    parts of them are not in the file from which this device goes on, so it can only join others;
    `on_lost` (`OnLost`): what this device does if all who keep some part of them are lost.
    `weights`, only then: of each trainable parameter the first element in the gradient vector, the
    first byte in the state, and the number of elements.
    """

    TAG: ClassVar[int] = 1
    version: int = wire(NUMBER)
    pid: int = wire(NUMBER)
    job: tuple[tuple[str, str], ...] = wire(_many(_TEXT, _TEXT))
    state_bytes: int = wire(NUMBER)
    tensors: tuple[tuple[str, int, int], ...] = wire(_many(_TEXT, NUMBER, NUMBER))
    accumulate: str = wire(_TEXT)
    elements: int = wire(NUMBER)
    chunk_elements: int = wire(NUMBER)
    micro_batches: int = wire(NUMBER)
    micro_batch_size: int = wire(NUMBER)
    steps: int = wire(NUMBER)
    iteration: int = wire(NUMBER)
    meta: bytes = wire(_DATA)
    parameters: int = wire(NUMBER, 0)
    exact_buffers: tuple[tuple[int, int], ...] = wire(_many(NUMBER, NUMBER), ())
    save: str = wire(_TEXT, "")
    script: tuple[tuple[bytes, str], ...] = wire(_many(_DATA, _TEXT), ())
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = wire(_many(_TEXT, _NUMBERS), ())
    notes: tuple[tuple[str, str], ...] = wire(_many(_TEXT, _TEXT), ())
    constant_bytes: int = wire(NUMBER, 0)
    constants: bytes = wire(_DATA, b"")
    rounded_chunks: int = wire(NUMBER, 0)
    local_steps: int = wire(NUMBER, 0)
    wide_bytes: int = wire(NUMBER, 0)
    in_cells: bool = wire(_BOOL, False)
    fixed_cost: float = wire(_FLOAT, 0.0)
    square_cost: float = wire(_FLOAT, 0.0)
    slots: int = wire(NUMBER, 0)
    copies: int = wire(NUMBER, 0)
    weights: tuple[tuple[int, int, int], ...] = wire(_many(NUMBER, NUMBER, NUMBER), ())
    on_lost: str = wire(_TEXT, OnLost.WAIT.value)
    slot_names: tuple[str, ...] = wire(_many(_TEXT), ())
    least_share: int = wire(NUMBER, 0)
    last_round_counts: float = wire(_FLOAT, 0.0)
    lacking: int = wire(NUMBER, 0)


@dataclass(frozen=True, slots=True)
class Begin:
    """Train from `iteration` on. With `adopt`, the agent has written the state: load `meta`,
    too."""

    TAG: ClassVar[int] = 2
    iteration: int = wire(NUMBER)
    adopt: bool = wire(_BOOL)
    meta: bytes = wire(_DATA)
    steps: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class Work:
    """Compute these micro-batches of `iteration`, add them to P, then say `Contributed`.

    There may be none (share 0). After a failure there may be another `Work` for the same iteration:
    P then keeps what it has and the new micro-batches are added. If the `turn` differs from the
    last one, what P holds was dealt to other members, and the sum begins anew.
    """

    TAG: ClassVar[int] = 3
    iteration: int = wire(NUMBER)
    micro_batches: tuple[int, ...] = wire(_NUMBERS)
    turn: int = wire(NUMBER, 0)


@dataclass(frozen=True, slots=True)
class Contributed:
    """P holds the sum over `micro_batches`: all of this node's in this iteration, or fewer than
    `Work` gave if the trainer is leaving and hands the rest back.

    `loss_sum`: the sum of the micro-batches' mean losses. `gradient_bitmap`: bit p (little-endian
    bit order) is set if parameter p had a gradient in any of them. `integer_buffers`: the raw bytes
    of all integer buffers after a micro-batch, empty if there was no micro-batch or is no such
    buffer. `integer_buffers_agree`: False if two micro-batches here left different integer buffers.
    `turn`: that of the `Work` that is answered. `settings`: what the script has set of the
    optimizer's scalars in this iteration (`settings.py`), empty if it has set nothing, which does
    not contradict others: it may have had no micro-batch. `other_settings`: empty, unless two
    micro-batches here found different settings; then the greater of the two. `stop`: the script
    wants training to end with this iteration, on all nodes. `trained`: how many of the
    micro-batches took `compute_seconds`; with subnets those of a lost device count as done, too,
    and take no time.
    """

    TAG: ClassVar[int] = 4
    iteration: int = wire(NUMBER)
    micro_batches: tuple[int, ...] = wire(_NUMBERS)
    loss_sum: float = wire(_FLOAT)
    gradient_bitmap: bytes = wire(_DATA)
    integer_buffers: bytes = wire(_DATA)
    integer_buffers_agree: bool = wire(_BOOL)
    compute_seconds: float = wire(_FLOAT)
    turn: int = wire(NUMBER, 0)
    settings: bytes = wire(_DATA, b"")
    other_settings: bytes = wire(_DATA, b"")
    stop: bool = wire(_BOOL, False)
    trained: int = wire(NUMBER, 0)


@dataclass(frozen=True, slots=True)
class ChunksReady:
    """In the data chunks of the bitmap `chunks` (bit k: chunk k, as counted in `Hello`) P already
    holds the sum over `micro_batches`, ascending: all of this node's in this iteration, the last of
    which is still being computed. `turn`: that of the `Work` that gave them.

    P does not change in these chunks any more before `Contributed`, which follows and says the same
    `micro_batches`, or none if the last one came to nothing. The trainer may say this several times
    or not at all.
    """

    TAG: ClassVar[int] = 18
    iteration: int = wire(NUMBER)
    micro_batches: tuple[int, ...] = wire(_NUMBERS)
    chunks: bytes = wire(_DATA)
    turn: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class Costs:
    """What parts of the model cost in rounds of subnets, as the first step has shown. It replaces
    `fixed_cost` and `square_cost` of `Hello`."""

    TAG: ClassVar[int] = 22
    fixed_cost: float = wire(_FLOAT)
    square_cost: float = wire(_FLOAT)


@dataclass(frozen=True, slots=True)
class Progressed:
    """So many more micro-batches of the `Work` in this `turn` are computed since the last time that
    this was said, and others remain. Said in rounds of local steps, about once a second and
    half-way, because they may take long.

    `part`, from 0 to 1, of the `share` micro-batches that are to be computed here in this round is
    done, and has taken `compute_seconds`. With subnets all micro-batches advance together."""

    TAG: ClassVar[int] = 19
    iteration: int = wire(NUMBER)
    micro_batches: int = wire(NUMBER)
    turn: int = wire(NUMBER)
    share: int = wire(NUMBER)
    part: float = wire(_FLOAT)
    compute_seconds: float = wire(_FLOAT)


@dataclass(frozen=True, slots=True)
class Reduced:
    """The sums over all micro-batches of `iteration` lie in `reduced[buffer]`, or in `replay` if
    `buffer` is `REPLAY_BUFFER`. If the slots are divided, new weights lie there in place of the
    sums of gradients, and the slots of `stripes` are still to be stepped with the sums in `held`:
    with the missed ones there if `buffer` is `REPLAY_BUFFER`. Before that, the slots of the stripes
    `anew`, which all who had kept them have lost, begin anew.

    `weight` is the number of micro-batches in the sums, by which to divide. `square_sums[k]` is the
    float64 sum of squares of data chunk k+1, the same bits on all nodes; if one is not finite, skip
    the step. `members`: how many nodes took part. `settings`: what the scripts have set of the
    optimizer's scalars, valid from this update on; `other_settings`: empty, or what some scripts
    have set instead. `is_read`: the agent may read the state after this update. Otherwise a trainer
    on another device need not copy it into shared memory. `slots_now`: some device learns slots,
    which are read right after this update, so their step is not put off (`Applied`).
    """

    TAG: ClassVar[int] = 5
    iteration: int = wire(NUMBER)
    buffer: int = wire(NUMBER)
    weight: int = wire(NUMBER)
    loss_sum: float = wire(_FLOAT)
    gradient_bitmap: bytes = wire(_DATA)
    integer_buffers: bytes = wire(_DATA)
    integer_buffers_agree: bool = wire(_BOOL)
    square_sums: tuple[float, ...] = wire(_many(_FLOAT))
    members: int = wire(NUMBER)
    settings: bytes = wire(_DATA, b"")
    other_settings: bytes = wire(_DATA, b"")
    is_read: bool = wire(_BOOL, True)
    stripes: tuple[int, ...] = wire(_NUMBERS, ())
    anew: tuple[int, ...] = wire(_NUMBERS, ())
    slots_now: bool = wire(_BOOL, False)


@dataclass(frozen=True, slots=True)
class Publish:
    """The sums of `stripes` lie in `held`: put the new weights (of buffers the sums) into their
    places in P. `attempt`: that of the round. Of the stripes in `lost` the sums are lost with those
    who had them, so that their weights stay. The other fields as in `Reduced`. Nothing else
    changes: it may be asked again, or another device may do it instead."""

    TAG: ClassVar[int] = 20
    iteration: int = wire(NUMBER)
    attempt: int = wire(NUMBER)
    stripes: tuple[int, ...] = wire(_NUMBERS)
    weight: int = wire(NUMBER)
    gradient_bitmap: bytes = wire(_DATA)
    square_sums: tuple[float, ...] = wire(_many(_FLOAT))
    settings: bytes = wire(_DATA)
    other_settings: bytes = wire(_DATA)
    anew: tuple[int, ...] = wire(_NUMBERS, ())
    lost: tuple[int, ...] = wire(_NUMBERS, ())


@dataclass(frozen=True, slots=True)
class Published:
    """The results that `Publish` asked for are in P."""

    TAG: ClassVar[int] = 21
    iteration: int = wire(NUMBER)
    attempt: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class Applied:
    """The update of `iteration` is in the state, which does not change before the next `Reduced`.
    The state in shared memory has it, too, on the CPU or if the agent is going to read it.

    `meta`: every scalar of the training state after the update, at most
    `limits.MAX_STATE_META_BYTES`, in equal bytes on all replicas. `skipped`: there was no update,
    because sums were not finite.

    With a `rule` the divided slots of this device have still to be stepped, with the sums in
    `held`, which stay as they are until `Stepped`; `rule` and `numbers` describe that step
    (`slot_steps.py`). The trainer makes it while it waits for what is next.
    """

    TAG: ClassVar[int] = 6
    iteration: int = wire(NUMBER)
    loss: float = wire(_FLOAT)
    skipped: bool = wire(_BOOL)
    meta: bytes = wire(_DATA)
    rule: str = wire(_TEXT, "")
    numbers: tuple[float, ...] = wire(_many(_FLOAT), ())


@dataclass(frozen=True, slots=True)
class Settle:
    """Somebody waits for `Stepped`. With `decides`, a `Publish` or `Reduced` follows it, so what
    the trainer still computes is of no use."""

    TAG: ClassVar[int] = 23
    decides: bool = wire(_BOOL)


@dataclass(frozen=True, slots=True)
class Stepped:
    """The slots have been stepped with the update of `iteration`."""

    TAG: ClassVar[int] = 24
    iteration: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class ExitRequested:
    """The user's code, or Ctrl+C in the trainer's terminal, asks to leave gracefully."""

    TAG: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class Away:
    """From now on this node wants share 0 (`away` True) or a share again (False)."""

    TAG: ClassVar[int] = 8
    away: bool = wire(_BOOL)


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The user asked the agent to leave: `capture_exit_event()` is True from now on."""

    TAG: ClassVar[int] = 9


@dataclass(frozen=True, slots=True)
class AgentsHere:
    """So many agents of this user run on this device, this one included."""

    TAG: ClassVar[int] = 25
    agents: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class End:
    """No more work.

    `why` is "steps", "left" or "error" (then `message` says what). `whole`: the state in memory is
    a whole one and therefore worth saving.
    """

    TAG: ClassVar[int] = 10
    why: str = wire(_TEXT)
    message: str = wire(_TEXT)
    exit_status: int = wire(NUMBER)
    whole: bool = wire(_BOOL, True)


@dataclass(frozen=True, slots=True)
class EndHeard:
    """The trainer has heard `End` and saves now, which may take a while."""

    TAG: ClassVar[int] = 15


@dataclass(frozen=True, slots=True)
class Finished:
    """The trainer's last message: everything is saved, or `error` says why not ("" if it is).

    `path`: the file with the model, "" if nothing was saved. `newest`: the newest of the files that
    were written while training went on, "" if there is none.
    """

    TAG: ClassVar[int] = 11
    error: str = wire(_TEXT)
    path: str = wire(_TEXT, "")
    newest: str = wire(_TEXT, "")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A figure of merit that the job wants to have reported, such as accuracy in 0..1. `quiet`: it
    is written to the events but not shown."""

    TAG: ClassVar[int] = 12
    iteration: int = wire(NUMBER)
    name: str = wire(_TEXT)
    value: float = wire(_FLOAT)
    quiet: bool = wire(_BOOL, False)


@dataclass(frozen=True, slots=True)
class SaveAside:
    """Another cluster's state will replace the trainer's as soon as it has said `SavedAside`.

    `keep`: first write the trainer's state to a file beside --save, because that cluster's history
    does not contain all of it.
    """

    TAG: ClassVar[int] = 13
    keep: bool = wire(_BOOL)


@dataclass(frozen=True, slots=True)
class SavedAside:
    """The state is saved in `path`, "" if it was to be saved nowhere. `error` says why it is not
    saved."""

    TAG: ClassVar[int] = 14
    path: str = wire(_TEXT)
    error: str = wire(_TEXT)


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of the model at the end, before the script does what follows its loop.

    It is saved in `path`, "" if it was to be saved nowhere. `error` says why it is not saved.
    `Finished` says the same once the script has ended.
    """

    TAG: ClassVar[int] = 16
    path: str = wire(_TEXT)
    error: str = wire(_TEXT)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a dry run found of a job's memory, in bytes; nothing else is said in one.

    `state_bytes`, `elements`, `accumulate`: as in `Hello`. `gradient_bytes`: the gradients of all
    trainable parameters. `device`: where the model is. `process`: what the trainer has to itself
    before it computes, weights and optimizer not counted. Sent once before there is any shared
    memory, and with `is_measured` after one micro-batch and one update: the most that each of them
    took beside `process`, and what the loader's `workers` have to themselves. `held`: 0, or the
    slots, and the sums with which they are stepped, take so much on all devices together if there
    are no copies; of each part there are `copies`. `constant_bytes`: what of the state training
    never changes.
    """

    TAG: ClassVar[int] = 17
    state_bytes: int = wire(NUMBER)
    elements: int = wire(NUMBER)
    accumulate: str = wire(_TEXT)
    gradient_bytes: int = wire(NUMBER)
    device: str = wire(_TEXT)
    parameters: int = wire(NUMBER)
    micro_batch_size: int = wire(NUMBER)
    process: int = wire(NUMBER)
    is_measured: bool = wire(_BOOL, False)
    micro_batch: int = wire(NUMBER, 0)
    update: int = wire(NUMBER, 0)
    workers: int = wire(NUMBER, 0)
    held: int = wire(NUMBER, 0)
    copies: int = wire(NUMBER, 0)
    constant_bytes: int = wire(NUMBER, 0)


Message = (
    Hello
    | Begin
    | Work
    | Contributed
    | Reduced
    | Applied
    | ExitRequested
    | Away
    | LeaveAsked
    | End
    | Finished
    | Evaluated
    | SaveAside
    | SavedAside
    | EndHeard
    | Saved
    | Rehearsed
    | ChunksReady
    | Progressed
    | Costs
    | Publish
    | Published
    | Settle
    | Stepped
    | AgentsHere
)
_TYPES: tuple[type[Message], ...] = get_args(Message)
_BY_TAG: dict[int, type[Message]] = {kind.TAG: kind for kind in _TYPES}


def encode(message: Message) -> bytes:
    """Return the frame of `message`, length first."""
    body = pack([message.TAG, *encode_fields(message)])
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Cuts a byte stream into messages; raises `EdgeAgentError` for what is no hand-over frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Add `data` and return the messages that are complete."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise EdgeAgentError("the agent and the trainer do not speak the same hand-over")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def _decode(body: bytes) -> Message:
    try:
        raw: Any = unpack(body, most_items=len(body))
        return decode_fields(_BY_TAG[raw[0]], raw[1:])
    except (RemoteProtocolError, LookupError, TypeError) as error:
        raise EdgeAgentError(
            f"the agent and the trainer are of different edgeagent versions ({error})"
        ) from None
