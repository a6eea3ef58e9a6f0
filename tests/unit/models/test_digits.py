"""The bundled digits are the published ones, split the same way everywhere, and learnable."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from importlib import resources

import pytest
import torch
from torch.nn.functional import cross_entropy

from models import digits, nets
from models.digits import Digits

CONTENT_SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One torch thread during the test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_bundled_file_is_the_one_its_source_names() -> None:
    data = resources.files("models").joinpath("data")
    content = gzip.decompress(data.joinpath("digits.csv.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == CONTENT_SHA256
    assert CONTENT_SHA256 in data.joinpath("SOURCE.md").read_text()


def test_shapes_and_ranges() -> None:
    for train, count in ((True, 1437), (False, 360)):
        part = Digits(train)
        assert len(part) == count
        assert part.images.shape == (count, 1, 8, 8)
        assert part.images.dtype == torch.float32
        assert part.images.min() == 0
        assert part.images.max() == 1
        assert part.labels.unique().tolist() == list(range(10))
        image, label = part[count - 1]
        assert torch.equal(image, part.images[-1])
        assert isinstance(label, int)
        with pytest.raises(IndexError):
            part[count]


def test_split_is_a_partition_and_never_changes() -> None:
    train, test = digits.split(train=True), digits.split(train=False)
    assert sorted(train + test) == list(range(1797))
    text = ",".join(map(str, test)).encode()
    assert (
        hashlib.sha256(text).hexdigest()
        == "56dccf3c5224aa1bec70ee9603d0195c8a8190216ef6b1e1dd233eec092412a9"
    )


def test_damaged_table_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "IMAGES", 1796)
    with pytest.raises(ValueError, match="damaged installation"):
        Digits()


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_variants_of_the_nets(batch_norm: bool, dropout: float) -> None:
    for build, side, at_most in ((nets.digits_net, 8, 40_000), (nets.fashion_net, 28, 110_000)):
        net = build(batch_norm=batch_norm, dropout=dropout)
        assert net(torch.zeros(3, 1, side, side)).shape == (3, 10)
        assert sum(parameter.numel() for parameter in net.parameters()) <= at_most
        kinds = {type(module).__name__ for module in net.modules()}
        assert ("BatchNorm2d" in kinds) == batch_norm
        assert ("Dropout" in kinds) == (dropout > 0)


@pytest.mark.usefixtures("one_thread")
def test_digits_net_learns() -> None:
    torch.manual_seed(0)
    train, test = Digits(True), Digits(False)
    net = nets.digits_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(6):
        for batch in torch.randperm(len(train)).split(64):
            optimizer.zero_grad()
            cross_entropy(net(train.images[batch]), train.labels[batch]).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        right = net(test.images).argmax(dim=1) == test.labels
    assert right.float().mean().item() > 0.95
