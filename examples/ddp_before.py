"""An ordinary script for DistributedDataParallel; `ddp_ported.py` is the same with edgeagent.

Start it with `torchrun --nproc-per-node 2 ddp_before.py`.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(640, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20 * args.epochs)
model = DistributedDataParallel(model)

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
dist.destroy_process_group()
