"""What a device tells another one of its job, so that this one can run the same: a recipe.

A recipe names a built-in job, or has the text of a script, with the arguments of the script and
those options of `edgeagent run` that belong to the job. Options of the device, such as its name,
its data or its number of threads, are never part of it. Only who has proven the cluster's token is
told a recipe, and whoever is told one decides for itself whether to run it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

# Options of `edgeagent run` that are part of a job, with one value each. Those of `FLAGS` have no
# value, which is told as "".
JOB_OPTIONS = (
    "--steps",
    "--global-batch",
    "--micro-batch",
    "--seed",
    "--wire",
    "--local-steps",
    "--outer",
    "--mode",
    "--subnet-scale",
    "--subnet-minimum",
    "--subnet-period",
    "--subnet-ewma",
    "--shard-optimizer",
    "--no-shard-optimizer",
    "--copies",
)
FLAGS = {"--shard-optimizer": True, "--no-shard-optimizer": False}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A job that another device can run. `job` is the name of a built-in job, or the file name of a
    script whose text is `script`; `options` are (name, value) pairs, the names of `JOB_OPTIONS`."""

    job: str
    options: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    script: str | None = None

    @property
    def digest(self) -> str:
        """What a user agrees to, in hex; "" of a built-in job. It is the SHA-256 of the script, or
        if it has arguments, that of the script and of them."""
        if self.script is None:
            return ""
        found = hashlib.sha256(self.script.encode())
        for word in self.arguments:
            data = word.encode()
            found.update(b"\0" + len(data).to_bytes(4, "big") + data)
        return found.hexdigest()

    @property
    def words(self) -> list[str]:
        """The options as they are typed."""
        return [_word(option, value) for option, value in self.options]

    def command(self, job: str, *others: str) -> list[str]:
        """Return the words after `edgeagent run` that run `job` in this way, with `others`, which
        are options of this device."""
        words = [job, *self.words, *others]
        return [*words, "--", *self.arguments] if self.arguments else words


def _word(option: str, value: str) -> str:
    return option if option in FLAGS else f"{option}={value}"
