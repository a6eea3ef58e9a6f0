"""Hugging Face's `Trainer`: `EdgeTrainer` in its place, and otherwise the same script.

Needs the extra `hf`. The model is a small BERT with random weights, so nothing is downloaded.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from edgeagent.hf import EdgeTrainer

Sample = dict[str, torch.Tensor]


class Texts(torch.utils.data.Dataset[Sample]):
    """Random tokens; the label is whether the first one is large."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, number: int) -> Sample:
        tokens = torch.randint(100, (16,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": (tokens[0] > 50).long()}


torch.manual_seed(0)
config = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
)
arguments = TrainingArguments(
    output_dir="huggingface",
    use_cpu=True,
    max_steps=100,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,  # 32 samples an update, of the whole cluster
    learning_rate=2e-3,
    warmup_steps=10,
    max_grad_norm=1.0,
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = EdgeTrainer(BertForSequenceClassification(config), arguments, train_dataset=Texts())
output = trainer.train()
print(f"trained {output.global_step} steps, mean loss {output.training_loss:.4f}", flush=True)
print("accuracy on the training data:", end=" ")
logits = trainer.predict(Texts()).predictions
correct = sum(int(row.argmax() == Texts()[k]["labels"]) for k, row in enumerate(logits))
print(f"{correct / len(Texts()):.3f}", flush=True)
