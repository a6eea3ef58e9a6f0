"""Speech Commands, version 0.02: 105,829 recordings of 35 spoken words (Warden, 2018).

The recordings are read from the publisher's layout, a folder for each word, or from the archive
that the publisher packs it into, which is read in place: nothing is extracted. Where they are
looked for:
    1. the folder, or the archive, that the user names (then nowhere else),
    2. the user's cache, `$XDG_CACHE_HOME/edgeagent/speech-commands` or `~/.cache/edgeagent/...`.
They are not downloaded, because they have 2.3 GB.

Their features (`log_mel.py`) are made once and kept in the cache, in a file for each list of
recordings: names, sizes and times of change, or those of the archive.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import tarfile
import tempfile
import wave
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from models.download import DataError, cache_directory
from models.log_mel import BANDS, FRAMES, RATE, SAMPLES, log_mel

ADDRESS = "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz"
ARCHIVE = "speech_commands_v0.02.tar.gz"
# fmt: off
WORDS = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four",
    "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right",
    "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)
# fmt: on
NOISE = "_background_noise_"
TEST_LIST = "testing_list.txt"
VALIDATION_LIST = "validation_list.txt"
LISTS = (TEST_LIST, VALIDATION_LIST)
MAX_FILE_BYTES = 16 << 20  # of a recording or a list; those of the publisher have 32 kB and 0.4 MB
FEATURES_VERSION = 1  # to be raised when the features or the file that keeps them change
_AGAIN = "get it again"
_RECORDING = re.compile(r"([^/]+)/([^/]+\.wav)")

# Told how many recordings have been read, and of how many; 0 if that is not known.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """The features of the training or the test set, in the order of the recordings' names."""

    features: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    digest: str


def locate(data: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the words or the archive; DataError if neither is there."""
    place = cache_directory("speech-commands") if data is None else Path(data)
    for archive in (place, place / ARCHIVE):
        if archive.is_file():
            return archive
    if any((place / name).exists() for name in (*WORDS, *LISTS)):
        return place
    get = f"Get {ARCHIVE} (2.3 GB) from {ADDRESS} and name it, or its unpacked folder, with"
    if data is None:
        raise DataError(f"Speech Commands is not downloaded by itself. {get} --data PATH")
    if not place.is_dir():
        raise DataError(f"{os.fspath(data)} does not exist. {get} --data PATH")
    raise DataError(
        f"{os.fspath(data)} holds neither folders of words (yes, no, ...) nor {ARCHIVE}."
        f" {get} --data PATH"
    )


def _folder_files(folder: Path) -> list[tuple[str, os.stat_result]]:
    """Names and properties of the lists and of all recordings, sorted by name."""
    found = []
    for name in LISTS:
        if not (folder / name).is_file():
            raise DataError(f"{folder} holds no {name}: unpack {ARCHIVE} again")
        found.append((name, (folder / name).stat()))
    with os.scandir(folder) as entries:
        words = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    for word in words:
        if word == NOISE:
            continue
        _label(folder, f"{word}/")
        with os.scandir(folder / word) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if not entry.name.endswith(".wav"):
                    raise DataError(f"{entry.path} is no .wav file: remove it")
                found.append((f"{word}/{entry.name}", entry.stat()))
    return sorted(found, key=lambda file: file[0])


def _label(place: Path, name: str) -> int:
    word = name.partition("/")[0]
    if word not in WORDS:
        raise DataError(
            f"{place} holds a folder {word!r}, which is none of the 35 words of Speech Commands"
            " 0.02: remove it, or name the right folder"
        )
    return WORDS.index(word)


def _from_folder(folder: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        path = folder / name
        if not path.is_file():  # a pipe would be waited for
            raise DataError(f"{path} is no file: remove it")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path} has more than {MAX_FILE_BYTES} bytes: {_AGAIN}")
        yield name, path.read_bytes()


def _from_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """The lists and the recordings, as they come; links, folders and noise are passed over."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                match = _RECORDING.fullmatch(name)
                wanted = name in LISTS or (match and match[1] != NOISE)
                if not member.isreg() or not wanted or name.rpartition("/")[2].startswith("."):
                    continue
                if member.size > MAX_FILE_BYTES:
                    raise DataError(f"{path}: {name} has {member.size} bytes: {_AGAIN}")
                if file := archive.extractfile(member):
                    yield name, file.read()
    except (EOFError, tarfile.TarError, zlib.error, OSError) as error:
        raise DataError(f"{path} cannot be unpacked: {error}; {_AGAIN}") from error


def read_wav(content: bytes, name: str) -> npt.NDArray[np.int16]:
    """The samples of a WAV file; DataError unless it is whole, 16 kHz, mono and 16 bits."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            kind = (file.getframerate(), file.getnchannels(), file.getsampwidth())
            count = file.getnframes()
            raw = file.readframes(count) if kind == (RATE, 1, 2) else b""
    except (wave.Error, EOFError) as error:
        reason = str(error) or "it ends within its header"
        raise DataError(f"{name} is no WAV file that can be read ({reason}): {_AGAIN}") from None
    if kind != (RATE, 1, 2):
        rate, channels, width = kind
        raise DataError(
            f"{name} has {rate} Hz, {channels} channel(s) and {8 * width} bits; Speech Commands"
            f" has {RATE} Hz, 1 channel and 16 bits: {_AGAIN}"
        )
    if len(raw) != 2 * count:
        raise DataError(f"{name} is cut short: {len(raw) // 2} of {count} samples; {_AGAIN}")
    if not count:
        raise DataError(f"{name} holds no sound: {_AGAIN}")
    return np.frombuffer(raw[: 2 * SAMPLES], dtype="<i2").astype(np.int16)


def _held_out(place: Path, lists: dict[str, bytes], names: set[str]) -> dict[str, set[str]]:
    """The recordings that each list names, less the words of which there are none at all."""
    words = {name.partition("/")[0] for name in names}
    held = {}
    for title in LISTS:
        if title not in lists:
            raise DataError(f"{place} holds no {title}: {_AGAIN}")
        lines = lists[title].decode("utf-8", "replace").split()
        held[title] = {line for line in lines if line.partition("/")[0] in words}
        if missing := sorted(held[title] - names):
            raise DataError(f"{place} lacks {missing[0]}, which {title} names: {_AGAIN}")
        if strange := [line for line in lines if line.partition("/")[0] not in WORDS]:
            raise DataError(f"{place}: {title} names {strange[0][:40]!r}, no recording: {_AGAIN}")
    return held


def _make(place: Path, names: list[str], progress: Progress) -> dict[str, Part]:
    """Read all recordings and compute their features."""
    files = _from_folder(place, names) if place.is_dir() else _from_archive(place)
    lists: dict[str, bytes] = {}
    rows: dict[str, tuple[npt.NDArray[np.uint8], str]] = {}
    total = max(0, len(names) - len(LISTS))
    for name, content in files:
        if name in LISTS:
            lists[name] = content
            continue
        _label(place, name)
        rows[name] = (
            log_mel(read_wav(content, f"{place}: {name}")),
            hashlib.sha256(content).hexdigest(),
        )
        progress(len(rows), total)
    if not rows:
        raise DataError(f"{place} holds no recordings: {_AGAIN}")
    held = _held_out(place, lists, set(rows))
    parts = {
        "train": sorted(set(rows) - held[TEST_LIST] - held[VALIDATION_LIST]),
        "test": sorted(held[TEST_LIST]),
    }
    made = {}
    for part, chosen in parts.items():
        if not chosen:
            raise DataError(f"{place} leaves no recordings for the {part} set: {_AGAIN}")
        listing = "".join(f"{rows[name][1]} {name}\n" for name in chosen)
        made[part] = Part(
            np.stack([rows[name][0] for name in chosen]),
            np.array([_label(place, name) for name in chosen], dtype=np.int64),
            hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest(),
        )
    return made


def _cached(path: Path, part: str) -> Part | None:
    """What the cache holds, None if it holds nothing or something damaged."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            features, labels = kept[f"{part}_features"], kept[f"{part}_labels"]
            digest = str(kept[f"{part}_digest"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    shape = (len(labels), FRAMES, BANDS)
    whole = features.shape == shape and features.dtype == np.uint8 and labels.dtype == np.int64
    fits = whole and len(labels) and labels.min() >= 0 and labels.max() < len(WORDS)
    return Part(features, labels, digest) if fits and len(digest) == 64 else None


def _keep(path: Path, parts: dict[str, Part]) -> None:
    """Write the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for name, part in parts.items():
        arrays[f"{name}_features"] = part.features
        arrays[f"{name}_labels"] = part.labels
        arrays[f"{name}_digest"] = np.array(part.digest)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]  # no name is that of an option
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _quiet(done: int, total: int) -> None:
    """Tell nobody."""


def load(data: str | os.PathLike[str] | None, train: bool, progress: Progress = _quiet) -> Part:
    """The training or the test set, from the cache if it is there; DataError if it is nowhere."""
    place = locate(data)
    try:
        if place.is_dir():
            files = _folder_files(place)
        else:
            files = [(ARCHIVE, place.stat())]
        wrong = [name for name, found in files if not stat.S_ISREG(found.st_mode)]
        if wrong:
            raise DataError(f"{place / wrong[0]} is no file: remove it")
        listing = [(name, found.st_size, found.st_mtime_ns) for name, found in files]
        key = hashlib.sha256(json.dumps([FEATURES_VERSION, listing]).encode()).hexdigest()
        path = cache_directory("speech-commands") / f"features-{key[:32]}.npz"
        part = "train" if train else "test"
        if kept := _cached(path, part):
            return kept
        parts = _make(place, [name for name, _ in files], progress)
    except OSError as error:
        raise DataError(f"{error.filename or place} cannot be read: {error.strerror}") from error
    try:
        _keep(path, parts)
    except OSError as error:
        raise DataError(
            f"the features cannot be kept in {path.parent}: {error.strerror}; make room there, or"
            " set XDG_CACHE_HOME to another folder"
        ) from error
    return parts[part]


class SpeechCommands(Dataset[tuple[Tensor, int]]):
    """The training recordings (those that neither list names) or the test recordings.

    `features` is uint8 [n, 98, 40] (`log_mel.py`), `labels` is int64 [n], the word's place in
    `WORDS`; an item is (float32 [98, 40] with mean 0 and deviation 1, int). `data_digest` is a
    SHA-256 of names and contents of all recordings. Raises DataError when the data cannot be had.
    """

    def __init__(
        self,
        train: bool = True,
        data: str | os.PathLike[str] | None = None,
        *,
        progress: Progress = _quiet,
    ) -> None:
        part = load(data, train, progress)
        self.data_digest = part.digest
        self.features = torch.from_numpy(part.features)
        self.labels = torch.from_numpy(part.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One item; IndexError outside the data set."""
        # Mean and deviation come from whole numbers, so that all devices find the same bits.
        features = self.features[index].to(torch.int64)
        count = features.numel()
        total, squares = int(features.sum()), int((features * features).sum())
        deviation = max((count * squares - total * total) ** 0.5 / count, 1.0)
        item = (features.to(torch.float64) - total / count) / deviation
        return item.to(torch.float32), int(self.labels[index])
