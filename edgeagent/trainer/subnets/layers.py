"""What of a model can be divided into independent subnets: neurons, heads, residual blocks.

`fully_connected`, `residual` and `transformer` find it in a model; what they return can be added
together and given to `Trainer(subnets=...)`. `hidden` describes a layer by hand.

- Of a **layer** every unit has its own rows in the tensors that make it and its own columns in the
  tensors that use it. Without some units it is a smaller layer of the same kind.
- Of a chain of **blocks** that have the same shape at both ends some can be left out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn

from edgeagent.errors import UsageError
from edgeagent.planner.work_cost import IN_PROPORTION, WorkCost
from edgeagent.terminal.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# What may stand between two linear layers: each number of its output depends on the same number of
# its input alone.
_ELEMENTWISE = (
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Hardtanh,
    nn.Hardswish,
)
_DIGITS = 16  # of a digest that is shown
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class Piece:
    """The tensor called `tensor`, along whose dimension `dim` (0 or 1) the units lie.

    With several `sections` all units come several times, one section after the other, as in a layer
    that makes queries, keys and values in one product.
    """

    tensor: str
    dim: int
    sections: int = 1


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of `units`, each of them `width` numbers in each section of each piece.

    `users`: modules that take the layer's output. `counts`: (module, attribute, how many for each
    unit), for attributes that say how large the layer is.
    """

    name: str
    units: int
    width: int
    pieces: tuple[Piece, ...]
    users: tuple[str, ...]
    counts: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Blocks:
    """Modules of the same shape at both ends, each of which can be left out."""

    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """Everything that is divided. Two of them can be added."""

    layers: tuple[Layer, ...] = ()
    blocks: tuple[Blocks, ...] = ()
    _names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        every = [layer.name for layer in self.layers] + [chain.name for chain in self.blocks]
        if len(set(every)) != len(every):
            raise UsageError("subnets: a layer is divided twice")
        object.__setattr__(self, "_names", frozenset(every))

    def __add__(self, other: Division) -> Division:
        return Division(self.layers + other.layers, self.blocks + other.blocks)

    def __str__(self) -> str:
        """Return in short what is divided, with a digest by which two divisions can be told apart
        however many layers they have."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:_DIGITS]
        chains = [f"{len(blocks.modules)} blocks of {blocks.name}" for blocks in self.blocks]
        layers = [plural(len(self.layers), "layer")] if self.layers else []
        return f"{', '.join([*layers, *chains])} ({digest})"

    def check(self, model: nn.Module) -> None:
        """Raise `UsageError` if this does not fit `model`, or divides nothing."""
        if not self._names:
            raise UsageError("subnets: nothing of the model is divided")
        tensors = dict(_tensors(model))
        groups = _tied(model)
        tied = {name for names in groups for name in names}
        whole = [f"{module}." for blocks in self.blocks for module in blocks.modules]
        for names in groups:
            blocks_of = {next((b for b in whole if name.startswith(b)), "") for name in names}
            if len(blocks_of) > 1:
                raise UsageError(
                    f"subnets: {names[0]} is {names[1]}, too, so no block that has it can be left"
                    " out without the other"
                )
        seen: set[tuple[str, int]] = set()
        for layer in self.layers:
            for piece in layer.pieces:
                found = tensors.get(piece.tensor)
                length = layer.units * layer.width * piece.sections
                if found is None or piece.dim not in (0, 1) or found.ndim <= piece.dim:
                    raise UsageError(f"subnets: the model has no {piece.tensor} to divide")
                if found.shape[piece.dim] != length:
                    raise UsageError(
                        f"subnets: {piece.tensor} is {found.shape[piece.dim]} long where layer"
                        f" {layer.name} has {length}"
                    )
                if piece.tensor in tied:
                    raise UsageError(
                        f"subnets: {piece.tensor} has another name, too, so it stays whole"
                    )
                if (piece.tensor, piece.dim) in seen:
                    raise UsageError(f"subnets: {piece.tensor} is divided twice")
                if any(piece.tensor.startswith(block) for block in whole):
                    raise UsageError(f"subnets: {piece.tensor} is in a block that can be left out")
                seen.add((piece.tensor, piece.dim))

    def cost(self, model: nn.Module, uses: Mapping[str, float] | None = None) -> WorkCost:
        """Return what computing a part of the model costs.

        A matrix between two divided layers costs the square of the part, one with an undivided side
        the part itself, and one that is not divided the same for every part. `uses` says how often
        each number of a tensor is multiplied in a step (`first_step.py`). Before a step has shown
        that, numbers count once, and undivided ones only if they are of linear layers and so is all
        that is divided. With too small a fixed cost shares need some more rounds until they are
        right, while with one much too large they would swing.
        """
        dims: dict[str, int] = {}
        for layer in self.layers:
            for piece in layer.pieces:
                dims[piece.tensor] = dims.get(piece.tensor, 0) + 1
        blocks = tuple(f"{name}." for chain in self.blocks for name in chain.modules)
        grows = [0.0, 0.0, 0.0]  # with which power of the part: so many products
        known = uses if uses is not None else _linear_uses(model, dims, blocks)
        for name, tensor in _tensors(model):
            if tensor.ndim > 1:
                power = dims.get(name, 1 if name.startswith(blocks) else 0)
                usual = 1.0 if uses is None and power else 0.0
                grows[power] += tensor.numel() * known.get(name, usual)
        if not grows[1] + grows[2]:
            return IN_PROPORTION
        return WorkCost(grows[0] / sum(grows), grows[2] / sum(grows))


def hidden(
    model: nn.Module, first: Sequence[str], then: Sequence[str], *, between: Sequence[str] = ()
) -> Division:
    """Divide the neurons between linear layers of `model`, which are named.

    `first` make the neurons (several do as gate and value of one perceptron), `then` take them, and
    `between` are `BatchNorm1d` layers on the way. Raises `UsageError` if one is no such layer.
    """
    units = {_linear(model, name).out_features for name in first}
    if len(units) != 1:
        raise UsageError(f"subnets: {', '.join(first)} are not layers of one width")
    pieces, counts = [], []
    for name in first:
        pieces += [Piece(f"{name}.weight", 0)]
        pieces += [Piece(f"{name}.bias", 0)] if _linear(model, name).bias is not None else []
        counts.append((name, "out_features", 1))
    for name in between:
        norm = model.get_submodule(name)
        if not isinstance(norm, nn.BatchNorm1d):
            raise UsageError(f"subnets: {name} is no BatchNorm1d")
        pieces += [Piece(f"{name}.{t}", 0) for t in _BATCH_NORM if getattr(norm, t) is not None]
        counts.append((name, "num_features", 1))
    for name in then:
        _linear(model, name)
        pieces.append(Piece(f"{name}.weight", 1))
        counts.append((name, "in_features", 1))
    return Division((Layer(first[0], units.pop(), 1, tuple(pieces), tuple(then), tuple(counts)),))


def fully_connected(model: nn.Module) -> Division:
    """Divide the neurons of each hidden layer: those between two `Linear` of a `Sequential` with
    nothing but element-wise layers and `BatchNorm1d` between. Raises `UsageError` if there is
    none."""
    found = Division()
    for path, sequence in model.named_modules():
        if isinstance(sequence, nn.Sequential):
            for first, between, then in _hidden_layers(sequence, path):
                found += hidden(model, [first], [then], between=between)
    if not found.layers:
        raise UsageError(
            "subnets: the model has no nn.Sequential with a hidden layer between two nn.Linear;"
            " describe its layers with edgeagent.subnets.hidden(model, [...], [...])"
        )
    return found


def residual(model: nn.Module, *chains: nn.Module) -> Division:
    """Divide the blocks of each of `chains`, `Sequential` or `ModuleList` modules within `model`,
    as ResIST does with the third section of a residual net.

    A block at whose ends the shapes differ cannot be left out. Those with an attribute `downsample`
    that is not None are known to be so, and stay with all devices.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    found = Division()
    for chain in chains:
        path = paths.get(id(chain))
        if path is None or not isinstance(chain, nn.Sequential | nn.ModuleList):
            raise UsageError("subnets: residual() takes an nn.Sequential or nn.ModuleList in model")
        names = [
            f"{path}.{name}".lstrip(".")
            for name, block in chain.named_children()
            if getattr(block, "downsample", None) is None
        ]
        if len(names) < 2:
            raise UsageError(f"subnets: {path} has no two blocks that could be left out")
        found += Division(blocks=(Blocks(path or "blocks", tuple(names)),))
    return found


def transformer(model: nn.Module) -> Division:
    """Divide the perceptrons' neurons of all `TransformerEncoderLayer` and
    `TransformerDecoderLayer` modules, and of all blocks in the shape of GPT-2's (`c_fc`, `c_proj`),
    there the attention heads, too (`c_attn`, `c_proj`, `heads` or, as in Hugging Face's,
    `num_heads`). Raises `UsageError` if there is
    none.
    """
    found = Division()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            found += hidden(model, [f"{prefix}linear1"], [f"{prefix}linear2"])
        elif _has_weights(module, "c_fc", "c_proj"):
            units = _outputs(module, "c_fc")
            found += _stored_by_input(model, f"{prefix}c_fc", f"{prefix}c_proj", units)
        elif _has_weights(module, "c_attn", "c_proj") and (counted := _heads(module)) is not None:
            heads = getattr(module, counted)
            width = _outputs(module, "c_attn") // 3 // heads
            counts = [(path, counted, 1)]
            if isinstance(getattr(module, "split_size", None), int):
                counts.append((path, "split_size", width))
            layer = f"{prefix}c_attn"
            found += _stored_by_input(model, layer, f"{prefix}c_proj", heads, width, 3, counts)
    if not found.layers:
        raise UsageError(
            "subnets: the model has no transformer blocks that are known; describe its layers with"
            " edgeagent.subnets.hidden(model, [...], [...])"
        )
    return found


def _stored_by_input(
    model: nn.Module,
    first: str,
    then: str,
    units: int,
    width: int = 1,
    sections: int = 1,
    counts: Sequence[tuple[str, str, int]] = (),
) -> Division:
    """Divide a layer between two modules whose weights are [inputs, outputs], as in GPT-2."""
    every = list(counts)
    if isinstance(getattr(model.get_submodule(first), "nf", None), int):  # Hugging Face's Conv1D
        every.append((first, "nf", width * sections))
    pieces = (
        Piece(f"{first}.weight", 1, sections),
        Piece(f"{first}.bias", 0, sections),
        Piece(f"{then}.weight", 0),
    )
    return Division((Layer(first, units, width, pieces, (then,), tuple(every)),))


def _heads(module: nn.Module) -> str | None:
    """Return the name of the attribute that counts the attention heads; None if there is none, or
    if `c_attn` makes no queries, as in cross-attention."""
    if hasattr(module, "q_attn"):
        return None
    names = ("heads", "num_heads")
    return next((name for name in names if isinstance(getattr(module, name, None), int)), None)


def _hidden_layers(sequence: nn.Sequential, path: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield (layer before, batch norms between, layer behind) for each hidden layer."""
    first, between = "", list[str]()
    for key, module in sequence.named_children():
        name = f"{path}.{key}" if path else key
        if isinstance(module, nn.Linear):
            if first:
                yield first, between, name
            first, between = name, []
        elif isinstance(module, nn.BatchNorm1d):
            between = [*between, name]
        elif not isinstance(module, _ELEMENTWISE):
            first = ""


def _linear(model: nn.Module, name: str) -> nn.Linear:
    try:
        found = model.get_submodule(name)
    except AttributeError:
        raise UsageError(f"subnets: the model has no {name}") from None
    if not isinstance(found, nn.Linear):
        raise UsageError(f"subnets: {name} is a {type(found).__name__}, not an nn.Linear")
    return found


def _has_weights(module: nn.Module, *names: str) -> bool:
    """Whether `module` has children of these names with weights [inputs, outputs] and biases."""
    children = [getattr(module, name, None) for name in names]
    return all(
        child is not None
        and not isinstance(child, nn.Linear)
        and getattr(getattr(child, "weight", None), "ndim", 0) == 2
        and getattr(getattr(child, "bias", None), "ndim", 0) == 1
        and child.weight.shape[1] == len(child.bias)
        for child in children
    )


def _outputs(module: nn.Module, name: str) -> int:
    return len(getattr(module, name).bias)


def _linear_uses(
    model: nn.Module, dims: Mapping[str, int], blocks: tuple[str, ...]
) -> dict[str, float]:
    """Return 1.0 for each weight of a linear layer; nothing if convolutions are divided, because
    how often their weights are used depends on the size of the pictures."""
    found: dict[str, float] = {}
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    for module in model.modules():
        is_linear = isinstance(module, nn.Linear | nn.MultiheadAttention)
        for tensor in module.parameters(recurse=False):
            name = names[id(tensor)]
            if tensor.ndim > 2 and (name in dims or name.startswith(blocks)):
                return {}
            if is_linear:
                found[name] = 1.0
    return found


def _tied(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [every for every in names.values() if len(every) > 1]


def _tensors(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the name and value of each parameter and buffer."""
    yield from model.named_parameters()
    yield from model.named_buffers()  # type: ignore[misc]  # a tensor like any other here
