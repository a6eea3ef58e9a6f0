"""The sizes in docs/models.md are those of the networks and the jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from edgeagent.trainer.jobs.__main__ import JOBS
from models.alexnet import AlexNet
from models.gpt2 import GPT2, LARGE, MEDIUM
from models.lora import add_adapters
from models.resnet import resnet18, resnet50, resnet101
from models.vgg import Vgg11

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
MIB = 1 << 20
FLOAT_BYTES = 4


def small_with_lora() -> nn.Module:
    model = GPT2()
    add_adapters(model, "*.attn.c_attn", rank=4)
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": resnet18,
    "ResNet-50": resnet50,
    "ResNet-101": resnet101,
    "AlexNet": AlexNet,
    "VGG-11": Vgg11,
    "VGG-11 with batch norm": partial(Vgg11, batch_norm=True),
    "GPT-2 small": GPT2,
    "GPT-2 medium": partial(GPT2, MEDIUM),
    "GPT-2 large": partial(GPT2, LARGE),
    "GPT-2 small with LoRA of rank 4": small_with_lora,
}


def row(name: str) -> list[str]:
    """The cells of the row that begins with `name`."""
    (found,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", TEXT, re.MULTILINE)
    return [cell.strip() for cell in found.split("|")]


@pytest.mark.parametrize("name", NETWORKS)
def test_sizes_of_networks(name: str) -> None:
    with torch.device("meta"):
        model = NETWORKS[name]()
    optimizer, parameters, weights, state, _ = row(name)
    sizes = [parameter.numel() for parameter in model.parameters()]
    trained = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    slots = {"SGD": sum(trained), "AdamW": 2 * sum(trained) + len(trained)}[optimizer]
    assert parameters == f"{sum(sizes):,}"
    assert weights == f"{FLOAT_BYTES * sum(sizes) / MIB:.1f}"
    assert state == f"{(FLOAT_BYTES * (sum(sizes) + slots) + buffers) / MIB:.1f}"


@pytest.mark.parametrize("name", JOBS)
def test_sizes_of_jobs(name: str) -> None:
    job = JOBS[name](torch.device("cpu"), "")
    _, parameters, batch, steps, _ = row(f"`{name}`")
    assert parameters == f"{sum(p.numel() for p in job.model.parameters()):,}"
    assert (batch, steps) == (str(job.global_batch), str(job.steps))
