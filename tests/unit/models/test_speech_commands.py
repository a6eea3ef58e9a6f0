"""Speech Commands are read from a folder or the archive, cached, and refused in one line if wrong.

The recordings of these tests are tones: each word has a pitch of its own.
"""

from __future__ import annotations

import io
import tarfile
import wave
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.jobs import speech_commands as job_module
from models import speech_commands
from models.download import DataError, cache_directory
from models.log_mel import log_mel
from models.speech_commands import ARCHIVE, WORDS, SpeechCommands

if TYPE_CHECKING:
    from edgeagent.trainer.jobs.job import Job

PITCHES = {"yes": 300, "no": 900, "up": 2500}
COUNT = 10  # recordings of each word; 0 is for the test, 1 for validation


def tone(pitch: float, seed: int, samples: int = 16_000) -> np.ndarray:
    """A tone of any phase and loudness, with some noise."""
    generator = np.random.default_rng(seed)
    phase, loud = generator.uniform(0, 6), generator.uniform(2000, 12000)
    sound = loud * np.sin(phase + 2 * np.pi * pitch / 16_000 * np.arange(samples))
    noisy: np.ndarray = (sound + generator.normal(0, 50, samples)).astype(np.int16)
    return noisy


def wav(samples: np.ndarray, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setframerate(rate)
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


def contents() -> dict[str, bytes]:
    """The files of a small Speech Commands by name."""
    files = {
        f"{word}/{n:04x}_nohash_0.wav": wav(tone(pitch, 100 * pitch + n))
        for word, pitch in PITCHES.items()
        for n in range(COUNT)
    }
    for n, title in enumerate(("testing_list.txt", "validation_list.txt")):
        # The lists name "bed", too, whose folder is not there: that word is left out.
        lines = [f"{word}/{n:04x}_nohash_0.wav\n" for word in (*PITCHES, "bed")]
        files[title] = "".join(lines).encode()
    files["_background_noise_/hum.wav"] = b"no sound"
    files["README.md"] = b"read me"
    return files


def fill(folder: Path) -> Path:
    for name, content in contents().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def pack(path: Path, more: dict[str, bytes] | None = None, without: str = "") -> Path:
    """Write the archive, with a link more that leads out of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**contents(), **(more or {})}.items():
            if name == without:
                continue
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("./yes/link.wav")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return path


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_directory("speech-commands")


def test_items(tmp_path: Path) -> None:
    folder = fill(tmp_path / "data")
    train, test = (SpeechCommands(part, folder) for part in (True, False))
    assert (len(train), len(test)) == (24, 3)
    assert [WORDS[label] for label in test.labels] == ["no", "up", "yes"]
    item, label = test[2]
    assert (item.shape, item.dtype, WORDS[label]) == ((98, 40), torch.float32, "yes")
    assert item.mean().item() == pytest.approx(0, abs=1e-5)
    assert item.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    expected = log_mel(tone(300, 30_000))
    assert np.array_equal(test.features[2].numpy(), expected)
    with pytest.raises(IndexError):
        test[3]


def test_a_tone_is_loudest_in_the_band_of_its_pitch() -> None:
    loudest = [int(log_mel(tone(p, 1))[50].argmax()) for p in (100, 300, 900, 2500, 7000)]
    mel = [2595 * np.log10(1 + p / 700) for p in (20, 100, 300, 900, 2500, 7000, 8000)]
    width = (mel[-1] - mel[0]) / 41
    assert loudest == [pytest.approx((m - mel[0]) / width - 1, abs=0.8) for m in mel[1:-1]]


def test_decibels_of_a_full_tone_and_of_silence() -> None:
    sine = np.sin(2 * np.pi * 1000 / 16_000 * np.arange(16_000))
    loud, soft = (log_mel((a * sine).astype(np.int16)).max() for a in (32_000, 3_200))
    assert int(loud) - int(soft) == 40  # ten times the amplitude: 20 dB, 40 steps
    assert not log_mel(np.zeros(16_000, dtype=np.int16)).any()


def test_short_recordings_are_padded_and_long_ones_cut() -> None:
    long = tone(500, 1, 20_000)
    assert np.array_equal(log_mel(long), log_mel(long[:16_000]))
    short = log_mel(long[:8_000])
    assert np.array_equal(short[:47], log_mel(long)[:47])
    assert not short[51:].any()


def test_folder_and_archive_are_the_same_data(tmp_path: Path, cache: Path) -> None:
    plain = SpeechCommands(True, fill(tmp_path / "plain"))
    archive = pack(tmp_path / "packed" / ARCHIVE)
    for place in (archive, archive.parent):
        other = SpeechCommands(True, place)
        assert torch.equal(other.features, plain.features)
        assert torch.equal(other.labels, plain.labels)
        assert other.data_digest == plain.data_digest
    assert sorted(p.name for p in archive.parent.iterdir()) == [ARCHIVE], "nothing is extracted"
    assert SpeechCommands(False, archive).data_digest != plain.data_digest
    archive.rename(cache / ARCHIVE)
    assert SpeechCommands(True).data_digest == plain.data_digest


def test_the_second_start_reads_no_recording(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path / "data")
    seen: list[tuple[int, int]] = []
    first = SpeechCommands(True, folder, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 30) for n in range(1, 31)]
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(speech_commands, "_make", None)
        second = SpeechCommands(True, folder)
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.labels, second.labels)
    assert first.data_digest == second.data_digest
    (folder / "yes" / "0005_nohash_0.wav").write_bytes(wav(tone(310, 1, 15_000)))
    changed = SpeechCommands(True, folder)
    assert changed.data_digest != first.data_digest
    assert not torch.equal(changed.features, first.features)


def test_a_damaged_cache_is_made_anew(tmp_path: Path, cache: Path) -> None:
    folder = fill(tmp_path / "data")
    first = SpeechCommands(True, folder)
    [kept] = cache.iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-100], whole[:5000] + b"?" + whole[5001:]):
        kept.write_bytes(damaged)
        assert torch.equal(SpeechCommands(True, folder).features, first.features)
        assert kept.read_bytes() == whole


Damage = Callable[[Path], object]
ONE = "no/0003_nohash_0.wav"
SOUND = tone(300, 1)
SPOILT: dict[str, tuple[Damage, str]] = {
    "cut short": (lambda d: (d / ONE).write_bytes(wav(SOUND)[:-100]), "is cut short: 15950 of"),
    "header": (lambda d: (d / ONE).write_bytes(wav(SOUND)[:20]), "no WAV file that can be read"),
    "text": (lambda d: (d / ONE).write_bytes(b"<html>" * 99), "no WAV file that can be read"),
    "empty": (lambda d: (d / ONE).write_bytes(b""), "it ends within its header"),
    "rate": (lambda d: (d / ONE).write_bytes(wav(SOUND, 8000)), "has 8000 Hz, 1 channel"),
    "stereo": (lambda d: (d / ONE).write_bytes(wav(SOUND, channels=2)), "2 channel"),
    "8 bits": (lambda d: (d / ONE).write_bytes(wav(SOUND, width=1)), "and 8 bits"),
    "no sound": (lambda d: (d / ONE).write_bytes(wav(SOUND[:0])), "holds no sound"),
    "other file": (lambda d: (d / "no/a.mp3").write_bytes(b"x"), "no/a.mp3 is no .wav file"),
    "folder": (lambda d: (d / "no/a.wav").mkdir(), "no/a.wav is no file"),
    "word": (lambda d: (d / "maybe").mkdir(), "'maybe', which is none of the 35 words"),
    "list": (lambda d: (d / "testing_list.txt").unlink(), "holds no testing_list.txt"),
    "strange list": (
        lambda d: (d / "testing_list.txt").write_text("<html> hello"),
        "testing_list.txt names '<html>', no recording",
    ),
    "lost": (
        lambda d: (d / "up/0000_nohash_0.wav").unlink(),
        "lacks up/0000_nohash_0.wav, which testing_list.txt names",
    ),
    "no test": (lambda d: (d / "testing_list.txt").write_text(""), "leaves no recordings"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_wrong_files_are_one_line(what: str, tmp_path: Path, cache: Path) -> None:
    folder = fill(tmp_path / "data")
    damage, message = SPOILT[what]
    damage(folder)
    with pytest.raises(DataError, match=message) as caught:
        SpeechCommands(True, folder)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert str(folder) in text
    assert not cache.exists(), "nothing is kept of wrong files"


def test_wrong_archives_are_one_line(tmp_path: Path) -> None:
    archive = pack(tmp_path / ARCHIVE)
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>", b""):
        archive.write_bytes(content)
        with pytest.raises(DataError, match=f"{ARCHIVE} cannot be unpacked: .*get it again"):
            SpeechCommands(True, archive)
    pack(archive, without="testing_list.txt")
    with pytest.raises(DataError, match=r"holds no testing_list\.txt"):
        SpeechCommands(True, archive)
    pack(archive, {ONE: wav(SOUND, 8000)})
    with pytest.raises(DataError, match=f"{ONE} has 8000 Hz"):
        SpeechCommands(True, archive)


def test_data_that_is_not_there_says_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for data in (None, tmp_path / "nothing", tmp_path / "empty"):
        with pytest.raises(DataError, match=r"Get speech_commands.*http.*--data PATH") as caught:
            SpeechCommands(True, data)
        assert len(str(caught.value).splitlines()) == 1
    fill(tmp_path / "lists")
    for word in PITCHES:
        (tmp_path / "lists" / word).rename(tmp_path / word)
    with pytest.raises(DataError, match="holds no recordings"):
        SpeechCommands(True, tmp_path / "lists")


def job_on(folder: Path) -> Job:
    torch.manual_seed(0)
    return job_module.make(torch.device("cpu"), str(folder))


def test_the_job_learns_the_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_on(fill(tmp_path / "data"))
    train, test = job.data(True), job.data(False)
    assert capsys.readouterr().err.splitlines() == [
        "speech-commands: features of 1 of 30 recordings",
        "speech-commands: features of 30 of 30 recordings",
    ]
    batch = next(iter(torch.utils.data.DataLoader(train, len(train))))
    with torch.no_grad():
        before = job.evaluate(job.model, test, torch.device("cpu"))
    for _ in range(8):
        job.optimizer.zero_grad()
        job.loss(job.model, batch).backward()
        job.optimizer.step()
    with torch.no_grad():
        after = job.evaluate(job.model, test, torch.device("cpu"))
    assert before.scores["accuracy"] < 0.5
    assert after.text == "accuracy 100.00 % on 3 test recordings"


def test_the_job_refuses_wrong_data_for_the_user(tmp_path: Path) -> None:
    folder = fill(tmp_path / "data")
    (folder / ONE).write_bytes(b"")
    with pytest.raises(UsageError, match=ONE):
        job_on(folder).data(True)


def test_a_bar_is_drawn_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with job_module.features_bar():
        pass
    assert capsys.readouterr().err == "", "nothing if all comes from the cache"
    with job_module.features_bar() as progress:
        progress(1, 2)
        progress(2, 2)
    shown = capsys.readouterr().err
    assert "speech-commands: features" in shown
    assert "2/2" in shown
