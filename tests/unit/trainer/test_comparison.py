"""`edgeagent verify`: equal bits are equal, and where two saved states part is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from edgeagent.cli import main
from edgeagent.shared_memory import create_shared_memory
from edgeagent.trainer.checkpoint import save_checkpoint
from edgeagent.trainer.comparison import compare_states, compare_tensors
from edgeagent.trainer.state import TrainingState


def saved(path: Path, *, rate: float = 0.1, bias: float = 0.0, inputs: int = 5) -> str:
    """Save the state of a small model whose last bias is raised by `bias`."""
    torch.manual_seed(0)
    model = torch.nn.Linear(inputs, 3)
    with torch.no_grad():
        model.bias[2] += bias
    state = TrainingState(model, torch.optim.AdamW(model.parameters(), lr=rate))
    state.plan()
    elements, accumulate = state.vector.elements, state.vector.accumulate
    memory = create_shared_memory(state.layout.size, elements, accumulate)
    state.attach(memory)
    save_checkpoint(str(path), state.layout, memory.state.view(), state.meta(), state.notes())
    return str(path)


def test_equal_states_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (saved(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    assert main(["verify", a, b]) == 0
    found = compare_states(a, b)
    line = f"equal: step 0, {found.tensors} tensors, {found.bytes} B, all bits\n"
    assert capsys.readouterr().out == line
    assert found.equal
    assert found.bytes > 18 * 4 * 2


def test_a_scalar_that_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", rate=0.2)
    assert main(["verify", a, b]) == 1
    out = capsys.readouterr().out
    assert out.startswith("different: a and b\n")
    assert "parameter group 0.lr" in out
    assert "tensors that both have are equal" in out


def test_a_tensor_that_differs_is_named_with_its_first_element(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", bias=0.5)
    assert main(["verify", a, b]) == 1
    (difference,) = compare_states(a, b).different
    assert (difference.name, difference.place, difference.elements) == ("model.bias", (2,), 1)
    assert difference.values[1] - difference.values[0] == pytest.approx(0.5)
    assert difference.largest == pytest.approx(0.5)
    assert "model.bias[2]: " in capsys.readouterr().out


def test_tensors_of_another_shape_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    a, b = saved(tmp_path / "m"), saved(tmp_path / "other" / "m", inputs=6)
    assert main(["verify", a, b]) == 1
    out = capsys.readouterr().out
    assert f"different: {a} and {b}" in out, "the folders tell equal names apart"
    assert "of another shape or type: " in out
    assert "model.weight" in out


def test_what_is_no_training_state_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = saved(tmp_path / "a"), str(tmp_path / "b")
    assert main(["verify", a, b]) == 2
    assert "B: there is no readable file" in capsys.readouterr().err
    save_file({"x": torch.ones(3)}, b)
    assert main(["verify", a, b]) == 2
    assert "is no training state" in capsys.readouterr().err
    whole = Path(a).read_bytes()
    Path(b).write_bytes(whole[:-8])
    assert main(["verify", a, b]) == 2
    assert "cut off" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_bits_are_compared_whatever_the_type(dtype: torch.dtype) -> None:
    a = torch.ones(4, 3).to(dtype)
    b = a.clone()
    assert compare_tensors("x", a, b) is None
    b[2, 1] = 0
    found = compare_tensors("x", a, b)
    assert found is not None
    assert (found.place, found.values, found.elements) == ((2, 1), (1.0, 0.0), 1)
    assert (found.largest, found.scale) == (1.0, 1.0)


def test_a_nan_equals_itself_and_zeros_of_two_signs_differ() -> None:
    nan = torch.tensor([math.nan, 1.0])
    assert compare_tensors("x", nan, nan.clone()) is None
    found = compare_tensors("x", torch.tensor(0.0), torch.tensor(-0.0))
    assert found is not None
    assert found.place == ()
    assert compare_tensors("x", torch.empty(0, 2), torch.empty(0, 2)) is None
