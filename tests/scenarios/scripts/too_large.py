"""`too_large.py BYTES`: a model whose weights take that many bytes, of which none is touched.

What a device cannot hold is so found by the sums alone, on a machine of any size.
"""

import sys

import torch
from torch import nn

from edgeagent import Trainer

PIECE = 1 << 26  # bytes of one parameter: what the optimizer's dry step touches

count = int(sys.argv[1]) // PIECE
model = nn.Module()
model.pieces = nn.ParameterList(nn.Parameter(torch.empty(PIECE // 4)) for _ in range(count))
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), global_batch=8, steps=1)
for (batch,) in trainer.loader(torch.utils.data.TensorDataset(torch.zeros(8, 1))):
    loss = model.pieces[0][0] * batch.sum()
    loss.backward()
    trainer.update(loss)
