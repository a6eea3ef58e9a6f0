"""What an iteration consists of, in words."""

from __future__ import annotations

from dataclasses import replace

from edgeagent.handover import HANDOVER_VERSION, Hello
from edgeagent.trainer.introduction import work_in_words

ONE = Hello(HANDOVER_VERSION, 1, (), 100, (), "float32", 48, 16, 1, 1, 0, 0, b"")
MANY = replace(ONE, micro_batches=4, micro_batch_size=8)


def test_one_is_no_plural() -> None:
    assert work_in_words(ONE) == "global batch 1 = 1 micro-batch of 1 sample, dealt to devices"
    many = "global batch 32 = 4 micro-batches of 8 samples, dealt to devices"
    assert work_in_words(MANY) == many


def test_rounds_in_words() -> None:
    rounds = replace(MANY, local_steps=2)
    assert work_in_words(rounds) == (
        "global batch 16, 2 local steps: rounds of 4 micro-batches of 8 samples, each a step of its"
        " device"
    )
    assert "1 local step: rounds of" in work_in_words(replace(rounds, local_steps=1))
    subnets = work_in_words(replace(rounds, in_cells=True))
    assert subnets.endswith("rounds of 2 such steps on each device, the model in 4 parts")
    least = work_in_words(replace(rounds, in_cells=True, least_share=2))
    assert least == f"{subnets}, at least 2 for each device"
