"""The training state of one replica: model, optimizer, schedule, iteration, and its one update.

Replicas stay equal because the state changes in two places only. `apply` changes it from bytes that
are the same on all replicas, and `adopt` replaces it by the state of another replica or of a file.
A micro-batch only reads the state and adds to this node's own sum of gradients.

Parameters and optimizer slots are views of the state's image (`image.py`). On the CPU that is the
shared memory itself. On another device the shared memory is brought up to date only when somebody
is going to read it, because that copies the whole state, and it is read only in `adopt`.
"""

from __future__ import annotations

import hashlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.footprint import check_it_fits
from edgeagent.handover import REPLAY_BUFFER, Applied, ChunksReady, Contributed, Published
from edgeagent.marks import MARK_APPLYING, MARK_ITERATION
from edgeagent.memory import room
from edgeagent.shared_memory import create_shared_memory
from edgeagent.trainer.buffers import ModelBuffers
from edgeagent.trainer.exponents import Exponents
from edgeagent.trainer.gradients import (
    backward_order,
    clip_coefficient,
    is_finite,
    plan_vector,
)
from edgeagent.trainer.guards import GradientWatch, Guards, module_places, watched_words
from edgeagent.trainer.image import StateImage, device_of
from edgeagent.trainer.integer_sum import own_sum
from edgeagent.trainer.layout import plan_layout, tensor_spec
from edgeagent.trainer.losses import LossSum
from edgeagent.trainer.mean import Mean
from edgeagent.trainer.meta import StateMeta
from edgeagent.trainer.model_keys import model_notes
from edgeagent.trainer.overlap import Overlap
from edgeagent.trainer.replicated import ReplicatedTensors
from edgeagent.trainer.scalars import StateScalars
from edgeagent.trainer.scaling import LossScale
from edgeagent.trainer.schedule import step_schedule
from edgeagent.trainer.settings import GroupSettings, HasGroups
from edgeagent.trainer.shards import Shards
from edgeagent.trainer.slots import OptimizerSlots, discover_slots
from edgeagent.trainer.subnets.steps import SubnetSteps
from edgeagent.trainer.undeclared import warn_of_undeclared_averages
from edgeagent.trainer.whole_steps import WholeSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.optim import Optimizer

    from edgeagent.handover import Publish, Reduced
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.local_steps import LocalSteps


class TrainingState:
    """One replica of the training state.

    `iteration` is how many updates it has behind it, and `skipped` how many of these were left out
    because a gradient was not finite. `mirror` has the CPU use an image apart from the shared
    memory, as other devices do, so that this can be tested without one. With `local` an iteration
    is a round of local steps: `model` and `optimizer` are then the device's own, and `parameters`
    and the slots in the state belong to the outer optimizer. `exact_count` is 0, or the number of
    micro-batches of an iteration; sums then do not depend on the order of addition. With `shards`
    this device keeps only some of the optimizer's slots, beside the state (`shards.py`).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        scheduler: Any = None,
        max_grad_norm: float | None = None,
        *,
        grad_scaler: Any = None,
        mirror: bool = False,
        overlap: bool = False,
        local: LocalSteps | SubnetSteps | None = None,
        exact_count: int = 0,
        shards: bool = False,
    ) -> None:
        self._local = local
        self.subnets = local if isinstance(local, SubnetSteps) else None
        self._optimizer = optimizer if local is None else local.outer
        self._grouped: HasGroups = optimizer if local is None else local.optimizers
        self._scheduler = scheduler
        self._max_grad_norm = max_grad_norm if local is None else None
        self._mirror = mirror
        self._wants_overlap = overlap
        self._overlap: Overlap | None = None
        self.model = model
        own = dict(sorted(model.named_parameters()))
        self.parameters: dict[str, torch.nn.Parameter] = own if local is None else local.parameters
        self._trainable = {p: name for name, p in self.parameters.items() if p.requires_grad}
        self._frozen = {n: p for n, p in self.parameters.items() if p not in self._trainable}
        self.buffers = ModelBuffers(model, fixed=exact_count > 0 or self.subnets is not None)
        self.replicated = ReplicatedTensors(model)
        self.scaling = LossScale(grad_scaler)
        self.guards = Guards(self._optimizer, self.schedule_bytes, model)
        self._settings = GroupSettings(self._grouped, scheduler)
        self._watch = GradientWatch()
        self._looked = False  # whether undeclared averages have been looked for
        wide = any(p.dtype == torch.float64 for p in self.parameters.values())
        self.vector = plan_vector(
            [p.numel() for p in self._trainable],
            self.buffers.sizes(),
            torch.float64 if wide else torch.float32,
            backward_order(model, list(self._trainable.values())),
            in_blocks=exact_count > 0,
        )
        self._exponents = Exponents(self.vector) if exact_count else None
        self.shards: Shards | None = None
        stepped = self._trainable
        if shards:
            self.shards = Shards(optimizer, self._trainable, self.vector, max_grad_norm)
            stand_ins = self.shards.stand_ins
            self._optimizer, stepped = stand_ins.optimizer, stand_ins.names
        self._stepped = stepped
        self._slot_specs = discover_slots(self._optimizer, stepped)
        self._steps = WholeSteps(self._optimizer, list(stepped), self.vector, self.device)
        self.plan()
        self._notes: dict[str, str] | None = None
        self.iteration = 0
        self.skipped = 0
        self.stop = False  # the script wants training to end, on all nodes
        self._micro_batches: list[int] = []  # in this node's sum; with subnets the steps taken
        self._losses = LossSum(waits=mirror, exact_count=exact_count)
        self.compute_seconds = 0.0  # spent on the micro-batches in the sum
        self._started = 0.0  # when the present micro-batch began, on the monotonic clock
        self._turn = 0  # of the work that the sum belongs to, as the agent counts

    def plan(self) -> None:
        """Give every tensor that is known by now its place in the flat state."""
        model_tensors = {**self.parameters, **self.buffers.tensors()}
        frozen = {f"model.{name}" for name in self._frozen}
        self.layout = plan_layout(
            [tensor_spec(f"model.{name}", tensor) for name, tensor in model_tensors.items()]
            + [slot.spec for slot in self._slot_specs]
            + self.replicated.specs()
            + ([] if self._exponents is None else [self._exponents.spec])
            + ([] if self.shards is None else [self.shards.stand_ins.spec]),
            frozen | self.replicated.constants(),
        )

    def share(self) -> SharedMemory:
        """Return new shared memory, in which this replica lies from now on.

        Raises `EdgeAgentError` if this device does not have enough memory for it.
        """
        sizes = (self.layout.size, self.vector.words, self.vector.accumulate)
        check_it_fits(*sizes, room(), divided=self.shards is not None)
        held = self.shards.layout.bytes if self.shards is not None else 0
        memory = create_shared_memory(*sizes, self.vector.wide_bytes, held)
        self.attach(memory)
        return memory

    def attach(self, memory: SharedMemory) -> None:
        """Move into `memory`, which this replica uses from now on."""
        apart = self._mirror or self._is_spread
        written_home = self.shards.written_home if self.shards is not None else ()
        place = (self.layout, memory.state.memory, self.device)
        image = StateImage(*place, apart=apart, written_home=written_home)
        # Whether an update writes into the shared memory itself.
        self._steps_home = self.shards is not None or not image.apart
        self.image = image
        regions = (*memory.reduced, memory.replay)
        self._reduced = tuple(self.vector.view_of(region.memory) for region in regions)
        self._marks = memory.marks.array("int64")
        own, names = list(self._trainable), list(self._trainable.values())
        vector, staging = self.vector.view_of(memory.contribution.memory), image.staging
        where = (own, names, self.device, staging if image.apart else None)
        self._sum = own_sum(self.vector, vector, memory.wide, self._exponents, *where)
        if self._wants_overlap and not image.apart and self._local is None:
            self._overlap = Overlap(self.vector, self._sum, own, names)
        if self._local is not None:
            self._local.share_own()
        for name, parameter in self.parameters.items():
            if image.holds(parameter.device):
                view = image.views[f"model.{name}"]
                view.copy_(parameter.detach())
                parameter.data = view
        shared = {name: image.views[f"model.{name}"] for name in self.buffers.names}
        self.buffers.attach(shared, self.vector, *self._sum.for_buffers())
        self._slots = OptimizerSlots(self._optimizer, self._stepped, self._slot_specs, image)
        both = (self._scheduler, self.scaling)
        self._scalars = StateScalars(self._grouped, self._slots, *both)
        if self.shards is not None:
            self.shards.attach(memory.held.memory, vector, self._marks, image)
        self._slots.rehome()
        self.replicated.attach(image)
        if self._exponents is not None:
            self._exponents.attach(image.views[self._exponents.spec.name])
        image.changed()
        self.bring_home()
        self._guard(memory)
        self._note()

    @property
    def _is_spread(self) -> bool:
        """Whether tensors of the state lie on several devices. Then the trainer works on none of
        them in the shared memory itself."""
        tensors = (*self.parameters.values(), *self.replicated.tensors().values())
        devices = [t.device for t in tensors] + [slot.device for slot in self._slot_specs]
        return any(device != self.device for device in devices)

    @property
    def device(self) -> torch.device:
        """Return the device that the model is on, or most of it."""
        return device_of(self.parameters.values())

    @property
    def devices(self) -> list[torch.device]:
        """Return the device of each parameter."""
        return [parameter.device for parameter in self.parameters.values()]

    def bring_home(self, *, whole: bool = False) -> None:
        """Bring the shared memory up to date, for whoever is going to read the state there; frozen
        tensors again only if the `whole` state is wanted: a pull may have overwritten some of them.

        While it is being written, a mark beside it says so: if this process dies meanwhile, nobody
        takes half a state for a whole one.
        """
        image = self.image
        if not image.is_home:
            self._marks[MARK_APPLYING] = self.iteration + 1
            image.bring_home(self._strays(), whole=whole)
        self._marks[MARK_ITERATION] = self.iteration
        self._marks[MARK_APPLYING] = 0

    def meta(self) -> bytes:
        """Return the scalars of the state in canonical bytes.

        Raises `UsageError` if one of them cannot be encoded.
        """
        return self._scalars.encode(self.iteration, self.skipped)

    def notes(self) -> dict[str, str]:
        """Return what a file says of the model beside its tensors, so that `export.py` can make the
        `state_dict()`: its keys that are second names of tied tensors, and the tensors that are not
        in it."""
        if self._notes is None:
            self._notes = model_notes(self.model, self.buffers.tensors())
        return self._notes

    def constants(self) -> bytes:
        """Return the SHA-256 of the tensors that never change while training, b"" without any."""
        size = self.layout.constant_bytes
        return hashlib.sha256(self.image.home(size)).digest() if size else b""

    def schedule_bytes(self) -> bytes:
        """Return the schedule's state in canonical bytes."""
        schedule = None if self._scheduler is None else self._scheduler.state_dict()
        return StateMeta(0, 0, (), b"", (), schedule).encode()

    def start_iteration(self, turn: int) -> None:
        """Start this node's sum at zero.

        That is needed when the agent gives work of a new iteration, and when it takes back what was
        computed of this one and gives work in another `turn`.
        """
        self._turn = turn
        if self._overlap is not None:
            self._overlap.forget()
        if self.subnets is not None:
            self.subnets.begin_anew()
        elif self._local is not None and self._micro_batches:  # of this round, computed in vain
            self._local.begin_anew()
        self._sum.clear()
        self.buffers.clear()
        self._settings.clear()
        self._micro_batches = []
        self._losses.clear()
        self.compute_seconds = 0.0

    def deal(self, micro_batches: Sequence[int]) -> Sequence[int]:
        """Return the numbers of what is to be computed for these micro-batches, which the agent has
        dealt to this node: one each, but with subnets the steps that they bring."""
        if self.subnets is None:
            return micro_batches
        self.buffers.restore()  # an evaluation since the last round may have changed them
        return self.subnets.deal(self.iteration, micro_batches)

    @property
    def progress(self) -> int:
        """How many of the micro-batches that were dealt to this node are computed."""
        return len(self._micro_batches) if self.subnets is None else self.subnets.progress

    @property
    def outer(self) -> Optimizer | None:
        """The outer optimizer of rounds of local steps, None without them."""
        return None if self._local is None else self._local.outer

    @property
    def overlaps(self) -> bool:
        """Whether gradients may leave while others are computed."""
        return self._overlap is not None

    def end(self) -> None:
        """Leave the model alone from now on."""
        self.guards.release()
        if self._local is not None:
            self._local.release()
        if self._overlap is not None:
            self._overlap.release()

    def start_micro_batch(
        self, micro_batch: int = -1, say: Callable[[ChunksReady], None] | None = None
    ) -> None:
        """Give the model the buffers with which the iteration began, and start the clock.

        `say` tells the agent what is ready of the sum before all of it is; None if `micro_batch` is
        not the last one of this node's share.
        """
        self.buffers.restore(averaged=self._local is None or not self._micro_batches)
        if self._overlap is not None:
            covered = tuple(sorted((*self._micro_batches, micro_batch)))
            announce = partial(self._announce, say, covered) if say is not None else None
            self._overlap.begin(announce)
        self._started = time.monotonic()

    def collect(self, micro_batch: int, loss: Any) -> None:
        """Add what `micro_batch` left to this node's sum: gradients, buffers and its mean `loss`.

        Raises `UsageError` if the script has done something since the last micro-batch that it must
        not do.
        """
        self.guards.check()
        self.scaling.check()
        if not self._looked:
            warn_of_undeclared_averages(self.replicated)
            self._looked = True
        self._settings.collect()
        for name, parameter in self._frozen.items():
            if parameter.grad is not None:
                raise UsageError(f"{name} was frozen when Trainer() was made and has a gradient")
        overlap = self._overlap
        if overlap is not None:
            overlap.check()
        with torch.no_grad():
            has_gradient = self._take_in(overlap)
            self._losses.add(loss)
        if overlap is not None:
            overlap.end()
        self._micro_batches.append(micro_batch)
        self.compute_seconds += time.monotonic() - self._started
        self._watch.computed(self.iteration, has_gradient)

    def _take_in(self, overlap: Overlap | None) -> bool:
        """Add gradients and buffers of a micro-batch to the sum, or take a local step with them;
        return whether there were gradients."""
        if self._local is not None:
            found = self._local.step()
            self.buffers.collect(along=len(self._micro_batches) + 1)
            return found
        self.buffers.collect()
        return self._sum.add() if overlap is None else self._sum.add(overlap.taken)

    @property
    def trainable(self) -> int:
        """Return how many parameters can have a gradient."""
        return len(self._trainable)

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Return the micro-batches in this node's sum."""
        return tuple(self._micro_batches if self.subnets is None else self.subnets.done)

    def contribution(self) -> Contributed:
        """Return what this node's sum holds and what the script has set by now, for the agent. The
        sum itself is in the shared memory afterwards."""
        if self._overlap is not None and self._overlap.is_open:
            self.start_iteration(self._turn)  # the sum has a part of a micro-batch: of no use
        self.guards.check()
        self._settings.collect()
        began = time.monotonic()
        if self._local is not None:
            self._local.contribute(self._sum, self.buffers, len(self._micro_batches))
        self._sum.bring_home()  # waits for a device that still computes, which counts as computing
        loss_sum = self._losses.total()
        if self.subnets is not None:
            loss_sum = self.subnets.loss_of(loss_sum)
        exact, agree = self.buffers.exact, self.buffers.exact_agree
        self.compute_seconds += time.monotonic() - began
        return Contributed(
            iteration=self.iteration,
            micro_batches=self.micro_batches,
            loss_sum=loss_sum,
            gradient_bitmap=self._sum.bitmap(),
            integer_buffers=exact,
            integer_buffers_agree=agree,
            compute_seconds=self.compute_seconds,
            turn=self._turn,
            settings=self._settings.settings,
            other_settings=self._settings.other_settings,
            stop=self.stop,
            trained=len(self._micro_batches) if self.subnets is None else self.subnets.trained,
        )

    def _announce(
        self, say: Callable[[ChunksReady], None], covered: tuple[int, ...], chunks: int
    ) -> None:
        data = chunks.to_bytes((chunks.bit_length() + 7) // 8, "little")
        say(ChunksReady(self.iteration, covered, data, self._turn))

    def apply(self, reduced: Reduced) -> Applied:
        """Make the update of this iteration from the round's sums.

        The step is skipped, on all replicas alike, if a gradient is not finite; the iteration
        counts nevertheless. Raises `EdgeAgentError` if the sums cannot be those of this iteration,
        or if scripts set different values in their optimizers, and `UsageError` if the script has
        changed the state since the last update.
        """
        if reduced.iteration != self.iteration or reduced.weight < 1:
            raise EdgeAgentError("the agent reduced another iteration than the trainer computes")
        if not reduced.integer_buffers_agree:
            names = self.buffers.disagreeing()
            raise EdgeAgentError(f"micro-batches left different values in buffers {names}")
        loss = reduced.loss_sum / reduced.weight
        finite = is_finite(reduced.square_sums, self.vector)
        self.guards.check()
        self._settings.put(reduced.settings, reduced.other_settings)
        if self._steps_home:
            self._marks[MARK_APPLYING] = reduced.iteration + 1
        if self._exponents is not None:
            vector = self._reduced[reduced.buffer]
            self._exponents.follow(vector, self.iteration, finite=finite)
        with torch.no_grad(), self.guards.own_change():
            if self.shards is not None:
                self.shards.keep(reduced.stripes)
                self.shards.begin_anew(reduced.anew, reduced.stripes)
            if finite:
                self._step(reduced)
            else:
                self.skipped += 1
                self._drop_gradients()
            self._end_round(finite)
            self.scaling.stepped(finite)
            step_schedule(self._scheduler, loss)
            self.iteration += 1
            if finite:
                self.replicated.apply()
            self.image.changed()
            if reduced.is_read or self._steps_home:
                self.bring_home()
        self._note()
        owed = self.shards.owed.told if self.shards is not None else ("", ())
        return Applied(reduced.iteration, loss, not finite, self.meta(), *owed)

    def publish(self, wanted: Publish) -> Published:
        """Make the results of the chunks that this device owns; nothing of the state changes.
        Raises `EdgeAgentError` if they cannot be those of this iteration."""
        if self.shards is None or wanted.iteration != self.iteration or wanted.weight < 1:
            raise EdgeAgentError("the agent wants results of another iteration than the trainer's")
        self.guards.check()
        self._settings.put(wanted.settings, wanted.other_settings)
        with torch.no_grad(), self.guards.own_change():
            self.shards.publish(wanted, self.scaling.scale)
        self._sum.spoil()
        self._note()
        return Published(wanted.iteration, wanted.attempt)

    def begin_anew(self, stripes: Sequence[int]) -> None:
        """Have the slots of these stripes begin anew, because no file has them."""
        if self.shards is not None and stripes:
            with torch.no_grad(), self.guards.own_change():
                self.shards.begin_anew(stripes, stripes)
            self._note()

    def adopt(self, iteration: int, data: bytes) -> None:
        """Become the replica whose tensors lie in the shared memory and whose scalars are `data`.

        Raises `EdgeAgentError`, before anything changes, if they do not fit this job.
        """
        meta, groups, schedule = self.check_fits(iteration, data)
        self._scalars.put(groups, schedule)
        with torch.no_grad():
            self.image.take_over()
            self._slots.adopt(meta.presence, meta.scalar_slots)
            if self._exponents is not None:
                self._exponents.adopt()
            for name, tensor in self._fixed_strays().items():
                tensor.copy_(self.image.at_home(name))
        self.scaling.adopt(meta.loss_scale)
        self.buffers.restore()
        self._drop_gradients()
        if self._local is not None:
            self._micro_batches = []
            self._local.begin_anew()
        if self.shards is not None:
            self.shards.keep(())  # the slots of another device do not come with its state
        self.iteration = iteration
        self.skipped = meta.skipped
        self.stop = False  # the script has asked for the end of another training
        self.bring_home()
        self._note()

    def check_fits(
        self, iteration: int, data: bytes
    ) -> tuple[StateMeta, list[dict[str, Any]], dict[str, Any] | None]:
        """Return the scalars in `data`, and what becomes of the parameter groups and the schedule
        with them, without changing anything.

        Raises `EdgeAgentError` if they do not fit this job or are not those of `iteration`.
        """
        return self._scalars.check(iteration, data)

    def _step(self, reduced: Reduced) -> None:
        vector = self._reduced[reduced.buffer]
        scale = self.scaling.scale
        squares = sum(reduced.square_sums[: self.vector.gradient_chunks])
        self._watch.reduced(squares, self._local is None and any(reduced.gradient_bitmap))
        if self.shards is not None:
            self._take_results(self.shards, reduced, vector)
            return
        coefficient = clip_coefficient(
            reduced.square_sums, self.vector, reduced.weight * scale, self._max_grad_norm
        )
        mean, bitmap = Mean(reduced.weight, scale, coefficient), reduced.gradient_bitmap
        changes = self._steps.step(self.image, vector, mean, bitmap, self.guards.hooks)
        self._drop_gradients()
        self._slots.rehome()
        start = self.vector.gradient_elements
        means = self.buffers.section(self.vector, changes, start)
        self.buffers.apply(means, reduced.integer_buffers)

    def _take_results(self, shards: Shards, reduced: Reduced, vector: torch.Tensor) -> None:
        """Step the slots kept here, and take over the weights that their owners have made."""
        missed = reduced.buffer == REPLAY_BUFFER
        # All iterations share the first buffer for their weights.
        weights = vector if missed else self._reduced[0]
        shards.apply(reduced, weights, self.scaling.scale, missed=missed)
        self.image.send_out(self._fixed_strays())
        self._slots.rehome()
        start = self.vector.gradient_elements
        mean = self.image.received(vector[start:] / reduced.weight)
        self.buffers.apply(self.buffers.section(self.vector, mean, start), reduced.integer_buffers)

    def _end_round(self, finite: bool) -> None:
        """With local steps: have the script's model begin the next round. Its optimizer's memory is
        dropped if a device's weights were not finite, since that memory may not be, either."""
        if self._local is None:
            return
        self._micro_batches = []
        self.buffers.restore()
        if finite:
            self._local.begin()
        else:
            self._local.begin_anew()

    def _strays(self) -> dict[str, torch.Tensor]:
        """Return all tensors that cannot lie in the image, by their names in the layout."""
        return {**self._fixed_strays(), **self._slots.strays()}

    def _fixed_strays(self) -> dict[str, torch.Tensor]:
        """Return the strays that no step replaces: all but the optimizer's slots."""
        strays = {
            f"model.{name}": parameter.detach()
            for name, parameter in self.parameters.items()
            if not self.image.holds(parameter.device)
        }
        return {**strays, **self.replicated.strays()}

    def _drop_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def _guard(self, memory: SharedMemory) -> None:
        """Begin to watch that the script changes nothing that is part of the state."""
        places = [*module_places("", self.model, self.parameters), *self.replicated.places()]
        slots = {slot.spec.name for slot in self._slot_specs}
        buffers = {f"model.{name}" for name in self.buffers.names}
        # Reading the words of another device would wait for it.
        watched = None if self.image.apart else memory.state.memory
        words, spans = watched_words(self.layout, watched, slots | buffers)
        self.guards.watch(places, words, spans)
        if self._local is not None:
            self._local.watch()
        self.scaling.watch()

    def _note(self) -> None:
        """Take the state as it is for right; whatever differs from now on is the script's doing."""
        self._settings.note()
        self.guards.note(self._slots.tensors() if self.shards is None else [])
