"""How fast a link is, measured from the bytes that arrive over it.

Frames that arrive right behind each other form a run. The first bytes of a run, its head, are not
counted: a token bucket on the path may have saved them up, or they may have waited for their
reader, so they arrive faster than the link is. The rest makes up a sample, together with that of
other runs if it is short. So a sender that has nothing to send does not make its link look slow,
and short frames do not make it look fast.

The rate is the second best of the last samples: a connection that starts slowly, a lost packet or
a busy reader makes a sample too low, and hardly anything makes one too high, as long as it begins
and ends where bytes had to be waited for.

On a link of less than 1 Mbit/s each frame of a probe is a run of its own, which is all head. If
nothing were known of such a link, plans would take it for a usual one. So, while there is no
sample, its rate is roughly that of all that came, heads and all.

While other links of the sender or of the receiver are busy, too, they may share what limits the
device, such as its radio. A sample of such a time, a shared one, says how fast the link is at
least, so it never makes the rate lower than the samples do that were measured alone. If the link
itself has become slower, a plan that still takes it for fast gives it too much to carry; then it
carries something when the others are done, and so is measured alone. At a joiner, what the others
carry beside it tells (`fallen_links.py`, `fell`).
"""

from __future__ import annotations

from collections import deque

from protocols import limits


class Meter:
    """Measures one direction of one link, at its receiver. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._ended = -1.0e9  # when the last frame was complete
        self._in_frame = False
        self._at = 0.0  # when the last bytes came
        self._head = 0  # bytes of this run's head so far; -1 once the head is over
        self._bytes = 0  # bytes of the next sample, of this run and of those before
        self._seconds = 0.0  # how long these took to arrive
        self._began = 0.0  # when this run began
        # While there is no sample: when the first and the last bytes of all came, how many came
        # after the first ones, and how long these took, with only a part of long pauses.
        self._first_at: float | None = None
        self._last_at = 0.0
        self._rough_bytes = 0
        self._rough_seconds = 0.0
        # Whether other links were busy beside some frame of the sample that has begun.
        self._is_shared = False
        self._frame_is_shared = False  # whether they are beside the running frame
        # The last samples in bytes/s, those that were measured alone and the shared ones.
        self._alone: deque[float] = deque(maxlen=limits.METER_SAMPLES)
        self._shared: deque[float] = deque(maxlen=limits.METER_SAMPLES)

    def begins(self, now: float, *, shared: bool = False) -> None:
        """A frame's header has arrived; the frame begins a new run if there was a gap before it.
        `shared`: other links of the sender or of the receiver are busy."""
        if now - self._ended >= limits.METER_GAP_SECONDS:
            self._end_sample()
            if self._is_shared is not shared or now - self._ended > limits.METER_REST_SECONDS:
                self._bytes, self._seconds = 0, 0.0  # what is left would say something else
            self._began = self._at = now
            self._head = 0
        elif now - self._at >= limits.METER_BURST_SECONDS:
            self._end_sample()
        self._in_frame, self._frame_is_shared = True, shared

    def arrived(self, now: float, size: int) -> None:
        """`size` more bytes of the frame's payload have arrived. The head of a run ends once it is
        long enough and bytes have to be waited for, or at `METER_MOST_HEAD_BYTES`."""
        waited, self._at = now - self._at, now
        if not (self._alone or self._shared):
            self._roughly(now, size)
        if waited >= limits.METER_BURST_SECONDS:
            self._end_sample()
        if self._head > limits.METER_HEAD_BYTES and waited >= limits.METER_BURST_SECONDS:
            self._head = -1
        if self._head < 0:
            # One frame that was not alone makes the whole sample shared.
            self._is_shared = self._frame_is_shared or (self._bytes > 0 and self._is_shared)
            self._bytes += size
            self._seconds += waited
            return
        self._head += size
        if self._head >= limits.METER_MOST_HEAD_BYTES:
            self._head = -1

    def _roughly(self, now: float, size: int) -> None:
        if self._first_at is None:
            self._first_at = now
        else:
            self._rough_bytes += size
            self._rough_seconds += min(now - self._last_at, limits.METER_PAUSE_SECONDS)
        self._last_at = now

    def ends(self, now: float) -> None:
        """The frame is complete; take a sample if the run has enough bytes for one."""
        self._ended, self._in_frame = now, False
        if self._bytes >= limits.METER_BYTES and self._seconds > 0:
            self._sample()

    def _end_sample(self) -> None:
        """Take a sample if there is a long one; what comes next had to be waited for.

        Bytes arrive in lumps, as a TLS record of 16 KiB is delivered as a whole. If a sample ended
        with a frame, the rest of its last lump would count for the next one, which has not waited
        for it: where a record takes 0.1 s, that one would seem to be twice as fast as the link.
        """
        if self._seconds >= limits.METER_SECONDS and self._bytes >= limits.METER_LEAST_BYTES:
            self._sample()

    def _sample(self) -> None:
        samples = self._shared if self._is_shared else self._alone
        samples.append(self._bytes / self._seconds)
        self._bytes, self._seconds = 0, 0.0

    def fell(self, rate: float) -> None:
        """The link carries no more than `rate`, in bytes/s, so faster samples say nothing more."""
        self._alone = _no_faster(self._alone, rate)
        self._shared = _no_faster(self._shared, rate)
        self._alone.append(rate)

    def busy_since(self, now: float) -> float | None:
        """Return since when frames have arrived right behind each other, None if none does now."""
        over = not self._in_frame and now - self._ended >= limits.METER_GAP_SECONDS
        return None if over else self._began

    def was_busy(self, now: float) -> bool:
        """Whether something has arrived within `SHARED_SECONDS`, or is about to."""
        return self._in_frame or now - self._ended < limits.SHARED_SECONDS

    def rate(self, now: float) -> float | None:
        """Return the rate in payload bytes/s, None while not even a rough one is known. Of one or
        two samples the best one counts, because the first samples of a connection are slow. The end
        of a run is only noticed here, or when the next frame comes: a probe may be all that
        comes."""
        if not self._in_frame and now - self._ended >= limits.METER_GAP_SECONDS:
            self._end_sample()
            if not (self._alone or self._shared) and self._seconds >= limits.METER_LEAST_SECONDS:
                self._sample()  # a short one is better than none
        known = [_second_best(samples) for samples in (self._alone, self._shared) if samples]
        return max(known, default=self._rough_rate(now))

    def _rough_rate(self, now: float) -> float | None:
        first, enough = self._first_at, self._rough_bytes >= limits.METER_LEAST_BYTES
        if first is None or now - first < limits.METER_ROUGH_SECONDS or not enough:
            return None
        return self._rough_bytes / max(self._rough_seconds, limits.METER_BURST_SECONDS)

    @property
    def is_alone(self) -> bool:
        """Whether the rate, or a part of what it was taken from, was measured alone."""
        return bool(self._alone)


def _no_faster(samples: deque[float], rate: float) -> deque[float]:
    return deque((s for s in samples if s <= rate), maxlen=samples.maxlen)


def _second_best(samples: deque[float]) -> float:
    best = sorted(samples, reverse=True)
    return best[0] if len(best) <= 2 else best[1]
