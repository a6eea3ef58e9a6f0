"""The script `ddp_before.py`, ported to edgeagent: ten lines of the code differ.

`losses` are those of this device's batches, as they were with DistributedDataParallel; the mean
loss of the whole cluster in its last update is `loader.trainer.loss`.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from edgeagent import prepare

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(640, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
sampler = DistributedSampler(data, 1, 0)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20 * args.epochs)
model, opt, loader, sched = prepare(model, opt, loader, sched, global_batch=32, epochs=args.epochs)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    losses = []
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        sched.step()
        losses.append(loss.item())
    print(f"epoch {epoch} loss {sum(losses) / max(1, len(losses)):.4f}", flush=True)
