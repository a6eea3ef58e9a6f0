"""`EdgeTrainer`: the `Trainer` of Hugging Face's transformers, on the cluster.

It keeps what people use of that class (arguments, collation, loss, optimizer, schedule, callbacks,
logging, evaluation) and replaces its training loop, because that counts the batches of one process:
here a device computes as many micro-batches of an update as its share has. What the loop did beside
that is mapped to the trainer's own, or refused by name before anything is joined.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.utils.data import SequentialSampler
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import TrainOutput

from edgeagent.errors import UsageError
from edgeagent.trainer.dataloaders import batches_as_told, epochs_to_steps, iterations_of_an_epoch
from edgeagent.trainer.loader import moved
from edgeagent.trainer.stream import is_stream
from edgeagent.trainer.trainer import Trainer

if TYPE_CHECKING:
    from edgeagent.trainer.process import AgentConnection

# Arguments that must have one of these values, and what to do instead.
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("fp16", (False,), "use bf16=True, or a loop of your own with Trainer(grad_scaler=...)"),
    ("deepspeed", (None, ""), "edgeagent divides the work itself"),
    ("fsdp", (None, "", [], False), "edgeagent keeps the whole model on each device"),
    ("parallelism_config", (None,), "edgeagent divides the work itself"),
    ("torch_compile", (False,), "compile the model before, with torch.compile"),
    ("auto_find_batch_size", (False,), "choose per_device_train_batch_size for all devices"),
    ("load_best_model_at_end", (False,), "all devices keep the model of the last update"),
    ("neftune_noise_alpha", (None,), "add the noise in the model"),
    ("train_sampling_strategy", ("random", "sequential"), "use 'random' or 'sequential'"),
    ("dataloader_multiprocessing_context", (None,), "workers are started by edgeagent"),
    ("push_to_hub", (False,), "call push_to_hub() after train()"),
    ("use_liger_kernel", (False,), "apply it to the model before"),
    ("eval_on_start", (False,), "call evaluate() before train()"),
)


class EdgeTrainer(transformers.Trainer):  # type: ignore[misc]  # seen as Any: not followed by mypy
    """`transformers.Trainer`, whose `train()` trains with every other node of the cluster.

    Args:
        global_batch: samples of an update of the whole cluster, a multiple of
            `per_device_train_batch_size`, which is the size of a micro-batch. None is
            `per_device_train_batch_size` times `gradient_accumulation_steps`.
        others: as for `transformers.Trainer`.

    Mapped: `max_steps` or `num_train_epochs`, `seed`, `max_grad_norm`, `bf16` (autocast), the
    optimizer and the schedule (stepped once an update), `dataloader_num_workers`, and
    `save_strategy` with `save_steps` and `save_total_limit` (edgeagent's own files of the training
    state). A step of callbacks and logs is an update of the cluster; a device without a share in an
    update does not see that step. While this device evaluates, the others go on.
    The loss is the mean over a micro-batch, whatever number of tokens it has.

    Raises `UsageError` in `train()`, before anything is joined, for arguments that cannot be had.
    """

    def __init__(
        self,
        *arguments: Any,
        global_batch: int | None = None,
        _agent: AgentConnection | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.edge: Trainer | None = None  # from train() on
        self.state: Any
        self.control: Any
        self._global_batch = global_batch
        self._edge_agent = _agent
        self._losses: list[float] = []

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Join the cluster, train until its last step or until this device leaves.

        Returns the cluster's number of steps and its mean loss in the steps applied here.
        """
        _check(self, resume_from_checkpoint, trial)
        args = self.args
        size = self._global_batch
        if size is None:
            size = args.per_device_train_batch_size * args.gradient_accumulation_steps
        size, micro_batch = batches_as_told(size, args.per_device_train_batch_size)
        each = _steps_of_an_epoch(self.train_dataset, size, args.dataloader_drop_last)
        steps = _steps(args, each)
        self.create_optimizer_and_scheduler(num_training_steps=steps)
        if isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UsageError(
                "lr_scheduler_type reduce_lr_on_plateau follows one device's evaluation"
            )
        for group in self.optimizer.param_groups:
            if "fused" in group:
                group["fused"] = False  # a default of transformers: replicas must round alike
        self.edge = edge = Trainer(
            self.model,
            self.optimizer,
            size,
            self.lr_scheduler,
            args.max_grad_norm or None,
            micro_batch,
            steps,
            args.seed,
            save_every=_save_every(args, each, steps),
            keep=args.save_total_limit or 0,
            _caller="EdgeTrainer",
            _agent=self._edge_agent,
        )
        self._begin(steps, max(1, math.ceil(steps / each)) if each else 1)
        mean = self._train(edge, each, ignore_keys_for_eval)
        self.is_in_train = False
        return TrainOutput(edge.iteration, mean, {"train_loss": mean, "epoch": self.state.epoch})

    def _begin(self, steps: int, epochs: int) -> None:
        """Make the state that callbacks see."""
        self.is_in_train = True
        if self.args.gradient_checkpointing or getattr(
            self.args, "activation_checkpointing", False
        ):
            self.model.gradient_checkpointing_enable(self.args.gradient_checkpointing_kwargs)
        known = [*self.callback_handler.callbacks, self.control]
        self.state = TrainerState(
            stateful_callbacks=[one for one in known if isinstance(one, ExportableState)]
        )
        self.state.compute_steps(self.args, steps)
        self.state.init_training_references(self, steps, epochs, None)
        self.state.epoch = 0.0
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    def _train(self, edge: Trainer, each: int, ignored: list[str] | None) -> float:
        """Run the loop; return the mean loss of the steps that were applied here."""
        handler, args = self.callback_handler, self.args
        sequential = args.train_sampling_strategy == "sequential"
        workers = args.dataloader_num_workers
        batches = edge.loader(
            self.train_dataset,
            self._get_collator_with_removed_columns(self.data_collator, "training"),
            workers=workers,
            prefetch=args.dataloader_prefetch_factor if workers else None,
            sampler=SequentialSampler(self.train_dataset) if sequential else None,
            pin_memory=args.dataloader_pin_memory,
        )
        self.state.global_step = edge.iteration
        self.control = handler.on_train_begin(args, self.state, self.control)
        self.control = handler.on_epoch_begin(args, self.state, self.control)
        every: list[float] = []
        begun = False
        for inputs in batches:
            if not begun:
                self.control = handler.on_step_begin(args, self.state, self.control)
                begun = True
            if not edge.update(self._computed(edge, inputs)):
                continue
            begun = False
            every.append(edge.loss)
            self._losses.append(edge.loss)
            self._stepped(edge, each, ignored)
        self.control = handler.on_train_end(args, self.state, self.control)
        return sum(every) / len(every) if every else math.nan

    def _computed(self, edge: Trainer, inputs: Any) -> torch.Tensor:
        """Compute the gradients of a micro-batch; return its loss."""
        self.model.train()
        here = inputs.to(edge.device) if hasattr(inputs, "to") else moved(inputs, edge.device)
        autocast: Any = contextlib.nullcontext()
        if self.args.bf16:
            autocast = torch.autocast(edge.device.type, torch.bfloat16)
        with autocast:
            loss: torch.Tensor = self.compute_loss(self.model, here)
        loss.backward()
        return loss.detach()

    def _stepped(self, edge: Trainer, each: int, ignored: list[str] | None) -> None:
        """Tell callbacks of a step; log and evaluate when they say so."""
        handler, args, state = self.callback_handler, self.args, self.state
        before, state.global_step = state.global_step, edge.iteration
        if each:
            state.epoch = edge.iteration / each
        self.control = handler.on_step_end(args, state, self.control)
        if each and before // each != edge.iteration // each:
            self.control = handler.on_epoch_end(args, state, self.control)
            self._act(edge, ignored)
            self.control = handler.on_epoch_begin(args, state, self.control)
        self._act(edge, ignored)

    def _act(self, edge: Trainer, ignored: list[str] | None) -> None:
        control = self.control
        if control.should_log and self._losses:
            mean = sum(self._losses) / len(self._losses)
            self._losses.clear()
            self.log({"loss": mean, "learning_rate": self._get_learning_rate()})
        if control.should_evaluate:
            with edge.away():
                metrics = self.evaluate(ignore_keys=ignored)
            # EarlyStoppingCallback compares with the best one so far, which this notes.
            self._determine_best_metric(metrics=metrics, trial=None)
        if control.should_training_stop and edge.iteration < edge.steps:
            edge.stop()
        control.should_log = control.should_evaluate = control.should_save = False


def _check(trainer: EdgeTrainer, resume: str | bool | None, trial: Any) -> None:
    """Raise `UsageError` for what cannot be had."""
    args = trainer.args
    if trainer.edge is not None:
        raise UsageError("train() was called before: make another EdgeTrainer")
    if resume or args.resume_from_checkpoint:
        raise UsageError(
            "resume_from_checkpoint is not edgeagent's: go on from a file with"
            " edgeagent run --resume FILE"
        )
    if trial is not None:
        raise UsageError("hyperparameter search runs many trainings in one process")
    for name in ("training_step", "get_train_dataloader", "_get_train_sampler"):
        if getattr(type(trainer), name) is not getattr(EdgeTrainer, name):
            raise UsageError(
                f"EdgeTrainer does not call {name}(), which {type(trainer).__name__} overrides:"
                " micro-batches and their order are the cluster's. Override compute_loss() for"
                " another loss; for another order write a loop of your own with edgeagent's"
                " Trainer and loader(sampler=)"
            )
    if args.world_size > 1 or args.n_gpu > 1:
        raise UsageError(
            "several processes or GPUs under one script: start one agent for each instead, with"
            " CUDA_VISIBLE_DEVICES or edgeagent run --device cuda:N, and without torchrun"
        )
    for name, allowed, instead in _REFUSED:
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            raise UsageError(f"TrainingArguments({name}={value!r}) cannot be had: {instead}")
    if args.data_seed not in (None, args.seed):
        raise UsageError("data_seed differs from seed: one seed decides order and random numbers")
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "best":
        raise UsageError("TrainingArguments(save_strategy='best') cannot be had: use 'steps'")
    if trainer.train_dataset is None:
        raise UsageError("EdgeTrainer needs a train_dataset")


def _steps_of_an_epoch(dataset: Any, global_batch: int, drop_last: bool) -> int:
    """Return how many updates an epoch has, 0 for a stream."""
    samples = 0 if is_stream(dataset) else len(dataset)
    return iterations_of_an_epoch(samples, global_batch, drop_last)


def _steps(args: Any, each: int) -> int:
    """Return the last step."""
    steps: int = args.max_steps
    return steps if steps > 0 else epochs_to_steps(args.num_train_epochs, each)


def _save_every(args: Any, each: int, steps: int) -> int:
    """Return after how many updates the training state is to be saved, 0 for never."""
    strategy = str(getattr(args.save_strategy, "value", args.save_strategy))
    if strategy == "no":
        return 0
    if strategy == "epoch":
        return each
    return math.ceil(steps * args.save_steps) if args.save_steps < 1 else int(args.save_steps)
