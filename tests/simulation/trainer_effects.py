"""What the trainer's stand-in of a simulated device does when its node wants something of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, assert_never

from protocols import effects, events
from tests.simulation import following, streaming
from tests.simulation.numbers import settings

if TYPE_CHECKING:
    from tests.simulation.host import Host


def perform(host: Host, effect: effects.TrainerEffect) -> None:
    """Perform `effect`."""
    match effect:
        case effects.BeginTraining(iteration, adopt, _, _):
            host.iteration = iteration
            if adopt:
                host.adopt()
        case effects.GiveWork():
            streaming.give(host, effect)
        case effects.KeepUpdate() | effects.Differs():
            pass  # the sums of all iterations are kept, and there is nobody to be told
        case effects.Publish():
            host.slots.publish(effect)
        case effects.Apply(iteration, word, _, stripes, anew):
            assert (word.settings, word.other_settings) == (settings(iteration), b"")
            give = partial(host.give_update, iteration, stripes, anew)
            following.when_followed(host, iteration, give)
        case effects.PassOver(iteration):
            over = partial(host.handle, events.Applied(iteration, b""))
            soon = partial(host.soon, host.world.compute(), over)
            following.when_followed(host, iteration, soon)
        case effects.TakePieces(iteration):
            host.handle(events.PiecesTaken(iteration, host.digest()))
        case effects.TakeDigest(iteration, commit):
            lineage = host.node.context.lineage if host.node else b""
            about = (lineage, commit, tuple(host.home), host.slots.losses)
            host.history[iteration] = about
        case _:
            assert_never(effect)
