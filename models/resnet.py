"""Residual networks: ResNet-18, -50 and -101, for pictures of any size.

The networks follow He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, with
the stride of a bottleneck in its 3x3 convolution, as torchvision builds them: `state_dict()` has
the keys and shapes of torchvision's, so that weights can be exchanged with it. Weights are drawn
from torch's global generator, so seed it before a network is built.
"""

from __future__ import annotations

from torch import Tensor, nn

STEMS = ("imagenet", "cifar")
STAGE_WIDTHS = (1, 2, 4, 8)  # of a stage's inner convolutions, in units of `width`


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size but for its stride; batch norm follows, so no bias."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a short cut: [N, inputs, H, W] to [N, width, H/s, W/s]."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _short_cut(inputs, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; shapes as in the class."""
        short = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        result: Tensor = self.relu(self.bn2(self.conv2(x)) + short)
        return result


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions: [N, inputs, H, W] to [N, 4 * width, H/s, W/s]."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _short_cut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; shapes as in the class."""
        short = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        result: Tensor = self.relu(self.bn3(self.conv3(x)) + short)
        return result


def _short_cut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """What brings a block's input to the shape of its output; None where it has that already."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A residual network: [N, channels, H, W] to logits [N, classes].

    Args:
        block: the kind of block.
        depths: how many blocks each of the four stages has.
        classes: number of logits.
        stem: "imagenet" begins with a 7x7 convolution of stride 2 and a pool, which leave a quarter
            of the height; "cifar" with one 3x3 convolution that leaves a 32x32 or 28x28 picture as
            large as it is.
        width: channels of the first stage; a network of half the width has a quarter of the
            weights.
        channels: channels of a picture, 3 for colours.

    Raises `ValueError` for a stem that does not exist.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        classes: int = 1000,
        *,
        stem: str = "imagenet",
        width: int = 64,
        channels: int = 3,
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise ValueError(f"stem {stem!r}: use one of {', '.join(STEMS)}")
        large = stem == "imagenet"
        self.conv1 = _convolution(channels, width, 7 if large else 3, 2 if large else 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        inputs = width
        for number, (depth, factor) in enumerate(zip(depths, STAGE_WIDTHS, strict=True), 1):
            inner = width * factor
            blocks = []
            for place in range(depth):
                blocks.append(block(inputs, inner, 2 if number > 1 and place == 0 else 1))
                inputs = inner * block.expansion
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; shapes as in the class."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(STAGE_WIDTHS) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def resnet18(
    classes: int = 1000, *, stem: str = "imagenet", width: int = 64, channels: int = 3
) -> ResNet:
    """ResNet-18: 11,689,512 parameters for 1000 classes. Arguments as in `ResNet`."""
    depths = (2, 2, 2, 2)
    return ResNet(BasicBlock, depths, classes, stem=stem, width=width, channels=channels)


def resnet50(
    classes: int = 1000, *, stem: str = "imagenet", width: int = 64, channels: int = 3
) -> ResNet:
    """ResNet-50: 25,557,032 parameters for 1000 classes. Arguments as in `ResNet`."""
    depths = (3, 4, 6, 3)
    return ResNet(Bottleneck, depths, classes, stem=stem, width=width, channels=channels)


def resnet101(
    classes: int = 1000, *, stem: str = "imagenet", width: int = 64, channels: int = 3
) -> ResNet:
    """ResNet-101: 44,549,160 parameters for 1000 classes. Arguments as in `ResNet`."""
    depths = (3, 4, 23, 3)
    return ResNet(Bottleneck, depths, classes, stem=stem, width=width, channels=channels)
