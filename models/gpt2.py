"""GPT-2: a language model of transformer blocks, in the published sizes and in a tiny one.

The network is that of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019):
layer norm before attention and before the perceptron, a last layer norm, learned positions, and the
token table used again for the logits. `state_dict()` has the keys, shapes and values of
`GPT2LMHeadModel` of the package transformers, so that weights can be exchanged with it; this is why
the linear layers are `Conv1D`, whose weight is stored as [inputs, outputs]. Weights are drawn from
torch's global generator, so seed it before a network is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

INITIAL_DEVIATION = 0.02
NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """The sizes of a network. `width` is a multiple of `heads`.

    `vocabulary`: number of tokens. `context`: longest sequence. `layers`: number of blocks.
    `dropout`: probability that a feature is dropped in training (embeddings, attention, outputs).
    """

    vocabulary: int = 50257
    context: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12
    dropout: float = 0.1


SMALL = GPT2Config()
MEDIUM = GPT2Config(width=1024, layers=24, heads=16)
LARGE = GPT2Config(width=1280, layers=36, heads=20)
TINY = GPT2Config(vocabulary=256, context=64, width=64, layers=2, heads=2, dropout=0.0)


class Conv1D(nn.Module):
    """A linear layer whose weight is [inputs, outputs]: [..., inputs] to [..., outputs]."""

    def __init__(self, inputs: int, outputs: int, deviation: float = INITIAL_DEVIATION) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=deviation)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight + bias`."""
        return functional.linear(x, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        """Return the sizes, for people and for the comparison of two jobs."""
        return "inputs={}, outputs={}".format(*self.weight.shape)


class Attention(nn.Module):
    """Causal self-attention of several heads: [N, T, width] to [N, T, width].

    With fewer `heads` and as many fewer outputs of `c_attn` and inputs of `c_proj` it is a part of
    itself.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_width = config.width // config.heads
        self.dropout = config.dropout
        self.c_attn = Conv1D(config.width, 3 * config.width)
        self.c_proj = Conv1D(config.width, config.width, _residual_deviation(config))
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return each place's mix of the values at its own and at all earlier places."""
        n, length, _ = x.shape
        query, key, value = (
            part.view(n, length, self.heads, self.head_width).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        together = mixed.transpose(1, 2).reshape(n, length, self.heads * self.head_width)
        result: Tensor = self.resid_dropout(self.c_proj(together))
        return result

    def extra_repr(self) -> str:
        """Return what no weight tells, for people and for the comparison of two jobs."""
        return f"heads={self.heads}, dropout={self.dropout}"


class Perceptron(nn.Module):
    """Two linear layers, the inner one four times as wide: [N, T, width] to [N, T, width]."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = Conv1D(config.width, 4 * config.width)
        self.c_proj = Conv1D(4 * config.width, config.width, _residual_deviation(config))
        self.act = nn.GELU(approximate="tanh")
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, each place for itself."""
        result: Tensor = self.dropout(self.c_proj(self.act(self.c_fc(x))))
        return result


class Block(nn.Module):
    """Attention and perceptron, each added to its input: [N, T, width] to [N, T, width]."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, NORM_EPSILON)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, NORM_EPSILON)
        self.mlp = Perceptron(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features after this block."""
        x = x + self.attn(self.ln_1(x))
        result: Tensor = x + self.mlp(self.ln_2(x))
        return result


class Transformer(nn.Module):
    """Everything below the logits: tokens int64 [N, T] to features [N, T, width]."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=INITIAL_DEVIATION)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, NORM_EPSILON)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features; `ValueError` if a sequence is longer than the context."""
        length = tokens.shape[1]
        if length > self.wpe.num_embeddings:
            raise ValueError(f"{length} tokens; this network takes {self.wpe.num_embeddings}")
        places = torch.arange(length, device=tokens.device)
        x: Tensor = self.drop(self.wte(tokens) + self.wpe(places))
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        return x


class GPT2(nn.Module):
    """A language model: tokens int64 [N, T] to logits [N, T, vocabulary].

    The logits at a place are those of the token that follows it. The token table and the output
    layer are one `Parameter`.
    """

    def __init__(self, config: GPT2Config = SMALL) -> None:
        super().__init__()
        if config.width % config.heads:
            raise ValueError(f"width {config.width} is no multiple of {config.heads} heads")
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits; shapes as in the class."""
        logits: Tensor = self.lm_head(self.transformer(tokens))
        return logits


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats a token, of logits [N, T, V] and targets [N, T]."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _residual_deviation(config: GPT2Config) -> float:
    """Return the initial deviation of what is added to the residual stream 2 * layers times."""
    return INITIAL_DEVIATION / math.sqrt(2 * config.layers)
