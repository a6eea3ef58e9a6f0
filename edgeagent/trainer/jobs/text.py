"""`text` and `text-lora`: a small GPT-2 that learns to continue text, byte by byte.

`text` trains the whole network. `text-lora` freezes a base that is drawn from the seed, and trains
only adapters beside its linear layers: it shows what a cluster sends in that case (gradients and
optimizer states of the adapters alone), and what such a base can learn is modest.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.jobs.job import Evaluation, Job, warm_then_decay

LENGTH = 64
WIDTH = 128
LAYERS = 4
HEADS = 4
GLOBAL_BATCH = 64
STEPS = 600
LEARNING_RATE = 2e-3
WARM_STEPS = 30
HALF_STEPS = 300
LORA_RANK = 8
LORA_ALPHA = 16.0
LORA_LAYERS = "transformer.h.*.c_*"
LORA_RATE = 5e-3
LORA_TABLE_SCALE = 4.0  # the table's usual values are so small that no logit could become large
EVALUATION_BATCH = 64
EVALUATION_BLOCKS = 1024  # at most so many, spread over the validation part


def make(device: torch.device, data: str) -> Job:
    """Build `text`; `data`: a text file, "" takes the text that Python itself contains.

    Raises `UsageError`, here or in `Job.data`, if the text cannot be had.
    """
    return _job(_network().to(device), LEARNING_RATE, data)


def make_lora(device: torch.device, data: str) -> Job:
    """Build `text-lora`, as `make` does."""
    from models.lora import add_adapters

    model = _network()
    with torch.no_grad():
        model.get_parameter("transformer.wte.weight").mul_(LORA_TABLE_SCALE)
    add_adapters(model, LORA_LAYERS, rank=LORA_RANK, alpha=LORA_ALPHA)
    return _job(model.to(device), LORA_RATE, data)


def _network() -> torch.nn.Module:
    from models.gpt2 import GPT2, GPT2Config
    from models.text import VOCABULARY

    sizes = GPT2Config(VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS, dropout=0.0)
    return GPT2(sizes)


def _job(model: torch.nn.Module, learning_rate: float, data: str) -> Job:
    from models.download import DataError
    from models.text import TextBlocks

    def blocks(train: bool) -> TextBlocks:
        try:
            return TextBlocks(train, data or None, length=LENGTH)
        except DataError as error:
            raise UsageError(str(error)) from None

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Job(
        model=model,
        optimizer=torch.optim.AdamW(trained, lr=learning_rate, weight_decay=1e-2),
        rate=warm_then_decay(WARM_STEPS, HALF_STEPS),
        data=blocks,
        loss=loss,
        evaluate=evaluate,
        global_batch=GLOBAL_BATCH,
        steps=STEPS,
    )


def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean cross-entropy of the bytes that follow, in nats a byte."""
    from models.gpt2 import next_token_loss

    tokens, following = batch
    return next_token_loss(model(tokens), following)


def evaluate(model: torch.nn.Module, dataset: Any, device: torch.device) -> Evaluation:
    """Return the mean loss and the perplexity over blocks of the validation part."""
    step = math.ceil(len(dataset) / EVALUATION_BLOCKS)
    chosen = torch.utils.data.Subset(dataset, range(0, len(dataset), step))
    total = 0.0
    for tokens, following in torch.utils.data.DataLoader(chosen, EVALUATION_BATCH):
        batch = tokens.to(device), following.to(device)
        total += float(loss(model, batch)) * len(tokens)
    mean = total / len(chosen)
    scores = {"validation loss": mean, "perplexity": math.exp(min(mean, 700.0))}
    text = (
        f"validation loss {mean:.4f} nats a byte, perplexity {scores['perplexity']:.3f},"
        f" on {len(chosen)} blocks of {dataset.length} bytes"
    )
    return Evaluation(scores, text)
