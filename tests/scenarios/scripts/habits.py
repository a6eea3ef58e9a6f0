"""Habits that people have in training loops of their own; the first argument names the habit.

"none" is a loop as in the README. "a wrong number" changes a number of the state without any
operation of PyTorch, whenever the file that the second argument names exists, and removes the file;
it trains until the file that the third argument names exists. The last line that is printed shows
the copy of the model that some habits keep.
"""

import copy
import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler
from torch.optim.swa_utils import AveragedModel

from edgeagent import Trainer

habit = sys.argv[1]
slips = Path(sys.argv[2]) if habit == "a wrong number" else None
slower = float(sys.argv[2]) if len(sys.argv) > 2 and slips is None else 0.0
end = Path(sys.argv[3]) if slips is not None else None
steps = 300 if end is None else 1_000_000
torch.manual_seed(1)
first = nn.Linear(64, 256)
model = nn.Sequential(first, nn.Tanh(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule: LRScheduler | None = None
if habit == "a schedule":
    schedule = LambdaLR(optimizer, lambda iteration: 1 / (1 + slower * iteration))
if habit in ("scheduler.step()", "rates beside a schedule"):
    schedule = ExponentialLR(optimizer, 0.99)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**110, growth_interval=5)  # soon too much
declared = scaler if habit == "a declared scaler" else None
scales = habit in ("a declared scaler", "scaler.scale()", "scaler.step()")
start = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
trainer = Trainer(model, optimizer, 128, schedule, steps=steps, grad_scaler=declared)
if "copy" in habit:
    ema = AveragedModel(model, avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new)
if habit == "a replicated copy":
    trainer.replicate("ema", ema, update=ema.update_parameters)
if habit == "a constant copy":
    trainer.replicate("ema", ema)


def set_rates(factor: float) -> None:
    """Set the learning rates by hand, as nanoGPT does."""
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * factor


def after_update() -> None:
    """Do what the habit does between two iterations; drastic things only once both devices
    train."""
    match habit:
        case "rates after update()":
            for group in optimizer.param_groups:
                group["lr"] *= 0.99
        case "scheduler.step()" if schedule is not None:
            schedule.step()
        case "a copy" | "a constant copy":
            ema.update_parameters(model)
    if slips is not None and slips.exists():
        optimizer.state[first.weight]["exp_avg"].numpy()[7, 5] += 0.125
        slips.unlink()
    if end is not None and end.exists():
        trainer.stop()
    if trainer.iteration < 20:
        return
    match habit:
        case ".data":
            for parameter in model.parameters():
                parameter.data.clamp_(-0.05, 0.05)
        case "in place":
            with torch.no_grad():
                first.weight.mul_(0.99)
        case "load_state_dict()":
            model.load_state_dict(start[0])
        case "optimizer.load_state_dict()":
            optimizer.load_state_dict(start[1])
        case "add_param_group()" if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))], "lr": 0.5})


seen = 0  # iterations, counted by this device
for x, y in trainer.loader(data):
    if habit in ("rates", "rates beside a schedule"):
        set_rates(1 - trainer.iteration / 2000)
    if habit == "rates by a count":
        set_rates(1 - seen / 2000)
    loss = nn.functional.cross_entropy(model(x), y)
    if habit != "no backward()":
        (scaler.scale(loss) if scales else loss).backward()
    if habit == "zero_grad()":
        optimizer.zero_grad()
    if habit == "optimizer.step()":
        optimizer.step()
    if habit == "scaler.step()":
        scaler.step(optimizer)
        scaler.update()
    if trainer.update(loss):
        seen += 1
        after_update()
if "copy" in habit:
    total = sum(float(p.detach().double().sum()) for p in ema.module.parameters())
    print(f"the copy: {total!r} of {int(ema.n_averaged)}", flush=True)
