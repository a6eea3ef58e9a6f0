"""The simulator finds every planted bug, within the number of seeds that is stated here.

`FOUND` has for each mutation the first seed to try, and within how many seeds it has to be found;
`scripts/storm --mutations FIRST LAST` says how many seeds it takes in another range.
"""

from __future__ import annotations

import pytest

from tests.simulation import runs
from tests.simulation.mutations import MUTATIONS
from tests.variants import variants

FOUND: dict[str, tuple[int, int]] = {
    "no_freeze": (35, 1),
    "forget_reassigned": (60000, 10),
    "accept_older_lineage": (60000, 10),
    "apply_without_all": (60000, 10),
    "minority_goes_on": (60000, 10),
    "redo_what_was_applied": (60000, 5),
    "copy_what_moves": (60000, 5),
    "count_old_incarnations": (760, 1),
    "forget_to_put_aside": (60019, 3),
    "join_who_is_behind": (60649, 1),
    "found_after_admission": (60018, 3),
    "count_what_was_handed_back": (267, 1),
    "lose_a_kept_update": (60065, 3),
    "stream_sums_of_older_work": (820065, 1),
    "offer_a_stale_state": (60066, 3),
    "notice_no_swallowed_frames": (60030, 5),
    "keep_a_link_that_stands_still": (60477, 3),
    "blame_no_segments_for_silence": (61951, 1),
    "wait_for_a_trainer_for_ever": (0, 5),
    "wait_for_reports_for_ever": (60190, 1),
    "take_another_way": (700001, 8),
    "wait_for_an_answer_for_ever": (0, 1),
    "ask_for_links_that_break": (16, 1),
    "forget_what_was_trained": (60003, 3),
    "trust_own_weights": (600014, 3),
    "change_a_snapshot_while_it_is_taken": (840027, 3),
    "use_the_memory_of_r_while_it_is_copied": (840034, 1),
    "skip_a_record": (840003, 2),
    "enter_while_behind": (840003, 2),
    "ship_before_completion": (840119, 1),
    "word_without_the_sums": (910000, 1),
    "publish_before_the_verdict": (910007, 1),
    "promote_who_has_not_learned": (910032, 1),
    "lend_what_was_changed": (910003, 1),
    "redo_what_was_decided": (910049, 1),
    "incomplete_side_goes_on": (910004, 1),
    "copies_miss_sums": (910000, 1),
    "redo_what_was_published": (910090, 1),
    "name_an_update_without_sums_like_the_whole_one": (960217, 1),
    "go_on_with_slots_that_nobody_has": (960026, 1),
    "carry_joins_over_a_loss": (5, 1),
    "wait_for_parts_that_nobody_needs": (1, 1),
    "lend_slots_of_an_ended_trainer": (1_030_148, 1),
    "keep_steps_that_others_take": (1_000_063, 1),
    "train_cells_that_come_later": (1_000_001, 1),
    "offer_the_state_of_an_ended_trainer": (1_010_162, 1),
    "forward_to_whose_join_has_failed": (60000, 1),
    "two_votes": (60016, 3),
    "keep_sums_that_lack_work": (60274, 1),
    "offer_what_nobody_stores": (60000, 10),
}


def test_every_planted_bug_is_looked_for() -> None:
    assert FOUND.keys() == MUTATIONS.keys()


@pytest.mark.parametrize("mutation", variants([*FOUND][::3], long=FOUND))
def test_a_planted_bug_is_found(mutation: str) -> None:
    first, within = FOUND[mutation]
    seed, _ = runs.first_found(mutation, range(first, first + within))
    assert seed >= 0
    assert not runs.problem_with(mutation, seed), "it fails without the planted bug, too"
