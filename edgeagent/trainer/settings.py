"""The optimizer's scalars (learning rate, weight decay, ...) that the script sets by hand.

A script may set a learning rate in its loop, and all replicas must use the same one. Therefore what
a script writes into its optimizer is only a wish. It is noted at `update()`, travels to all members
in the control word of the round, and is taken back before the step. What holds in the step is what
the reduced control word says, which is the same on every replica. A script that wrote nothing has
no wish, and that contradicts nobody: it may have had no micro-batch, or have joined just now.

A floating-point number counts as written if another object is in its place. The groups hold objects
that nobody else has, so a rate that is set to the value that it had is a wish, too. Without this, a
script that keeps the rate by writing it again would not contradict one that writes another. Other
scalars count as written if they changed. Wishes are a list of (group, name, value), ascending, in
canonical bytes (`meta.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.trainer.meta import adopt_value, decode_value, encode_value
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

# Entries of a parameter group that are lists of its parameters.
NOT_SCALARS = ("params", "param_names")
# Entries that torch's schedules set, so that a script must not set them beside a schedule.
_OF_A_SCHEDULE = ("lr", "initial_lr", "max_lr", "min_lr")
# Entries that those of torch's schedules set that cycle the momentum, too.
_OF_A_CYCLE = ("momentum", "betas", "base_momentum", "max_momentum")
# Stands for an entry that does not exist; None may be the value of one.
_NOT_SET = object()

Wish = tuple[int, str, Any]  # number of the parameter group, name, value


class HasGroups(Protocol):
    """An optimizer, or what has the parameter groups of several (`local_steps.py`)."""

    param_groups: list[dict[str, Any]]

    @property
    def step(self) -> Any:
        """The method that makes an update."""


def group_scalars(optimizer: HasGroups) -> list[dict[str, Any]]:
    """Return the entries of each parameter group that are no lists of its parameters."""
    return [
        {key: value for key, value in group.items() if key not in NOT_SCALARS}
        for group in optimizer.param_groups
    ]


class GroupSettings:
    """Tells what the script set in the running iteration from what the training state says.

    `settings` has this script's wishes in canonical bytes, b"" if there are none. `other_settings`
    is not b"" if it had different wishes at different micro-batches, which is an error.
    """

    def __init__(self, optimizer: HasGroups, scheduler: Any) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._noted: list[dict[str, Any]] = []
        self.settings = b""
        self.other_settings = b""
        self.note()

    def note(self) -> None:
        """Take what the groups hold now as the training state's, and nothing as a wish."""
        self._noted = [
            {key: _fresh(value) for key, value in scalars.items()}
            for scalars in group_scalars(self._optimizer)
        ]
        for group, noted in zip(self._optimizer.param_groups, self._noted, strict=True):
            group.update(noted)

    def clear(self) -> None:
        """Forget the wishes, because a new iteration begins."""
        self.settings = self.other_settings = b""

    def collect(self) -> None:
        """Note what the script has set by now.

        Raises `UsageError` if it set what it must not set, or more than a control word holds.
        """
        wishes = self._wishes()
        if not wishes:
            return
        data = encode_value(wishes, "what the script set in the optimizer's parameter groups")
        if len(data) > limits.MAX_SETTINGS_BYTES:
            raise UsageError(
                f"the script set {len(data)} bytes of the optimizer's scalars in one iteration;"
                f" {limits.MAX_SETTINGS_BYTES} is the most"
            )
        known = sorted({data, self.settings, self.other_settings} - {b""})
        self.settings = known[0]
        self.other_settings = known[-1] if len(known) > 1 else b""

    def put(self, settings: bytes, other_settings: bytes) -> None:
        """Write the wishes of the cluster's scripts into the groups, and take back all others.

        The two arguments are those of the reduced control word. Raises `EdgeAgentError`, before
        anything changes, if the scripts had different wishes, or one that does not fit this
        optimizer.
        """
        if other_settings:
            raise EdgeAgentError(_difference(_read(settings), _read(other_settings)))
        wishes = []
        for number, key, value in _read(settings):
            if number >= len(self._noted) or key not in self._noted[number]:
                raise EdgeAgentError(f"another device set {key} of parameter group {number}")
            where = f"parameter group {number}.{key}"
            wishes.append((number, key, adopt_value(self._noted[number][key], value, where)))
        for group, noted in zip(self._optimizer.param_groups, self._noted, strict=True):
            group.update(noted)
        for number, key, value in wishes:
            self._optimizer.param_groups[number][key] = value

    def _wishes(self) -> list[Wish]:
        found = []
        for number, (group, noted) in enumerate(
            zip(self._optimizer.param_groups, self._noted, strict=True)
        ):
            if len(group) != len(noted) + sum(key in group for key in NOT_SCALARS):
                _refuse_keys(number, group, noted)
            for key in noted:
                value = group.get(key, _NOT_SET)
                if value is noted[key] or _same(value, noted[key]):
                    continue
                if value is _NOT_SET:
                    _refuse_keys(number, group, noted)
                self._check(number, key, value, noted[key])
                found.append((number, key, value))
        return sorted(found, key=lambda wish: wish[:2])

    def _check(self, number: int, key: str, value: Any, before: Any) -> None:
        scheduler = self._scheduler
        cycles = getattr(scheduler, "cycle_momentum", False) and key in _OF_A_CYCLE
        if scheduler is not None and (cycles or key in _OF_A_SCHEDULE):
            raise UsageError(
                f"the script set {key} of parameter group {number}, which the lr_scheduler sets:"
                f" leave that line away, or give Trainer() no lr_scheduler and set {key} by hand"
            )
        if key == "lr" and hasattr(self._optimizer.step, "_wrapped_by_lr_sched"):
            raise UsageError(
                f"an lr_scheduler that Trainer() does not know set lr of parameter group {number}:"
                " give it to Trainer(lr_scheduler=...), which steps it once an iteration"
            )
        try:
            adopt_value(before, value, f"parameter group {number}.{key}")
        except EdgeAgentError:
            raise UsageError(
                f"the script set {key} of parameter group {number}, which is"
                f" {before!r:.60}, to {value!r:.60}: give it a value of the same kind"
            ) from None


def _fresh(value: Any) -> Any:
    """Return a float as a new object that nobody else has; anything else as it is."""
    return value * 1.0 if type(value) is float else value


def _same(value: Any, noted: Any) -> bool:
    """Return whether a scalar that is no float has not changed; for a float, False."""
    return type(noted) is not float and type(value) is type(noted) and bool(value == noted)


def _refuse_keys(number: int, group: dict[str, Any], noted: dict[str, Any]) -> None:
    here = {key for key in group if key not in NOT_SCALARS}
    name = sorted(here ^ set(noted))[0]
    raise UsageError(
        f"the script {'added' if name in here else 'removed'} {name!r}"
        f" {'to' if name in here else 'from'} parameter group {number} while training: keep what is"
        " your own elsewhere, or add it before Trainer()"
    )


def _read(settings: bytes) -> list[Wish]:
    wishes = decode_value(settings) if settings else []
    if not isinstance(wishes, list) or not all(_is_wish(wish) for wish in wishes):
        raise EdgeAgentError("what another device set in its optimizer cannot be read")
    return wishes


def _is_wish(wish: Any) -> bool:
    if not isinstance(wish, tuple) or [type(x) for x in wish[:2]] != [int, str]:
        return False
    return len(wish) == 3 and wish[0] >= 0


def _difference(one: list[Wish], other: list[Wish]) -> str:
    a, b = ({wish[:2]: wish[2] for wish in wishes} for wishes in (one, other))
    number, key = min(k for k in {**a, **b} if repr(a.get(k, _NOT_SET)) != repr(b.get(k, _NOT_SET)))
    said = [
        repr(wishes[number, key]) if (number, key) in wishes else "not set" for wishes in (a, b)
    ]
    return (
        f"the script set {key} of parameter group {number} to different values in one iteration:"
        f" {said[0]} and {said[1]}. What a script sets must follow from trainer.iteration, which is"
        " the same on all devices, and not from a count of its own"
    )


def adopted_groups(optimizer: HasGroups, groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what becomes of the optimizer's scalars if those of another state are adopted.

    Raises `EdgeAgentError` if they do not fit this job.
    """
    mine = group_scalars(optimizer)
    if len(mine) != len(groups):
        raise EdgeAgentError("the state to adopt has another number of parameter groups")
    return [
        adopt_value(own, other, f"parameter group {n}")
        for n, (own, other) in enumerate(zip(mine, groups, strict=True))
    ]
