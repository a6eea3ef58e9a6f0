"""VGG-11, with and without batch norm, for large pictures and for small ones.

This is network A of Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition" (2015), table 1, as torchvision builds it: with the stem "imagenet" `state_dict()` has
the keys and shapes of torchvision's `vgg11` and `vgg11_bn`. Weights are drawn from torch's global
generator, so seed it before the network is built.
"""

from __future__ import annotations

from torch import Tensor, nn

STEMS = ("imagenet", "cifar")
POOL = 0
LAYERS = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)
LEAST_SIDE = 32  # five pools halve it to one


class Vgg11(nn.Module):
    """Eight convolutions and three linear layers: [N, channels, H, W] to logits [N, classes].

    Pictures are 32x32 or larger.

    Args:
        classes: number of logits. With 1000 and the other defaults: 132,863,336 parameters, and
            132,868,840 with batch norm.
        stem: "imagenet" hands 7x7 features to the linear layers; "cifar" hands on the one feature
            that five pools leave of a 32x32 picture, so that the first linear layer has a 49th of
            the weights.
        batch_norm: normalise after each convolution.
        hidden: width of the two hidden linear layers.
        channels: channels of a picture, 3 for colours.
        dropout: probability that a hidden feature is dropped in training.

    Raises `ValueError` for a stem that does not exist.
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        stem: str = "imagenet",
        batch_norm: bool = False,
        hidden: int = 4096,
        channels: int = 3,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise ValueError(f"stem {stem!r}: use one of {', '.join(STEMS)}")
        side = 7 if stem == "imagenet" else 1
        self.features = _features(channels, batch_norm=batch_norm)
        self.avgpool = nn.AdaptiveAvgPool2d(side)
        self.classifier = nn.Sequential(
            nn.Linear(512 * side * side, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; shapes as in the class. Raises `ValueError` for small pictures."""
        if min(x.shape[-2:]) < LEAST_SIDE:
            raise ValueError(f"VGG-11 needs pictures of {LEAST_SIDE}x{LEAST_SIDE} or more")
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


def _features(channels: int, *, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in LAYERS:
        if width == POOL:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, width, 3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(width))
        layers.append(nn.ReLU(inplace=True))
        channels = width
    return nn.Sequential(*layers)
