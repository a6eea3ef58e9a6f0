"""Lightning: a `LightningModule` as it is, fitted with `EdgeStrategy`. Needs the extra `lightning`.

The batch size of the loader is that of a micro-batch, and `max_steps` counts the cluster's updates.
What `self.log` shows is of this device's batches.
"""

from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from edgeagent.lightning import EdgeStrategy


class Classifier(lightning.LightningModule):
    """Two layers with dropout, Adam, and a learning rate that falls."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
        self.net = nn.Sequential(*layers)

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


torch.manual_seed(0)
inputs = torch.randn(1024, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
trainer = lightning.Trainer(
    strategy=EdgeStrategy(global_batch=64),
    max_steps=300,
    gradient_clip_val=1.0,
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(Classifier(), DataLoader(data, batch_size=16, shuffle=True))
print(f"trained {trainer.global_step} steps", flush=True)
