"""AlexNet, for large pictures and for small ones.

This is the network of Krizhevsky, "One weird trick for parallelizing convolutional neural networks"
(2014), which has one column, as torchvision builds it: with the stem "imagenet" `state_dict()` has
the keys and shapes of torchvision's. Weights are drawn from torch's global generator, so seed it
before the network is built.
"""

from __future__ import annotations

from torch import Tensor, nn

STEMS = ("imagenet", "cifar")


class AlexNet(nn.Module):
    """Five convolutions and three linear layers: [N, channels, H, W] to logits [N, classes].

    Args:
        classes: number of logits. With 1000 and the other defaults: 61,100,840 parameters.
        stem: "imagenet" begins with an 11x11 convolution of stride 4 and takes pictures from 63x63
            on; "cifar" begins with a 3x3 convolution that leaves the picture's size, ends with 2x2
            instead of 6x6 features and takes 32x32 and 28x28 pictures.
        hidden: width of the two hidden linear layers, in which most of the weights are.
        channels: channels of a picture, 3 for colours.
        dropout: probability that a hidden feature is dropped in training.

    Raises `ValueError` for a stem that does not exist.
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        stem: str = "imagenet",
        hidden: int = 4096,
        channels: int = 3,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise ValueError(f"stem {stem!r}: use one of {', '.join(STEMS)}")
        large = stem == "imagenet"
        first = nn.Conv2d(channels, 64, 11, 4, 2) if large else nn.Conv2d(channels, 64, 3, 1, 1)
        side = 6 if large else 2
        self.features = nn.Sequential(
            first,
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(side)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * side * side, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; shapes as in the class."""
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits
