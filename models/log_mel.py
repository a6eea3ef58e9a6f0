"""Log-mel spectrograms of one second of sound, as bytes.

Windows of 25 ms every 10 ms, a Hann window, the power spectrum, 40 triangular bands that are evenly
spaced on the mel scale from 20 Hz to 8 kHz, and the power of each in decibels. A byte is half a
decibel: 0 is -60 dB or less, 255 is 67.5 dB or more.

All is computed with 64-bit numbers and rounded only at the end. Processors differ in the last bits
of such numbers; because half a decibel is so much coarser, they agree on the bytes, and devices of
different kinds find that they have the same data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RATE = 16_000
SAMPLES = RATE  # one second
WINDOW = 400
STEP = 160
TRANSFORM = 512  # the next power of two, which the window is padded to
BANDS = 40
FRAMES = 1 + (SAMPLES - WINDOW) // STEP
LOWEST_HZ = 20.0
LEAST_DB = -60.0
DB_A_STEP = 0.5


def _mel(hertz: float) -> float:
    return float(2595.0 * np.log10(1.0 + hertz / 700.0))


def _bands() -> npt.NDArray[np.float64]:
    """The weight of each frequency in each band, [257, 40]."""
    corners = np.linspace(_mel(LOWEST_HZ), _mel(RATE / 2), BANDS + 2)
    corners = 700.0 * (10.0 ** (corners / 2595.0) - 1.0)
    frequencies = np.arange(TRANSFORM // 2 + 1)[:, None] * (RATE / TRANSFORM)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies - left) / (middle - left)
    falling = (right - frequencies) / (right - middle)
    return np.maximum(0.0, np.minimum(rising, falling))


_HANN = np.hanning(WINDOW)
_WEIGHTS = _bands()


def log_mel(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.uint8]:
    """The spectrogram of a recording, uint8 [98, 40]: a row for each window, lowest band first.

    A recording that is shorter than a second is followed by silence, a longer one is cut.
    """
    sound = np.zeros(SAMPLES)
    sound[: len(samples)] = samples[:SAMPLES] / 32768.0
    windows = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::STEP]
    power = np.abs(np.fft.rfft(windows * _HANN, TRANSFORM)) ** 2
    decibels = 10.0 * np.log10(np.maximum(power @ _WEIGHTS, 1e-30))
    return np.rint((decibels - LEAST_DB) / DB_A_STEP).clip(0, 255).astype(np.uint8)
