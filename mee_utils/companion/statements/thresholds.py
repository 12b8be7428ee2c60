"""Statements of the survey about thresholds, compared with what 09 measures.

Tables: `thirds` (errors by third of the output), `spaced` (exits at intervals), `travelled` and `moved`
(thresholds and confidence in other domains), `keepers` (bandit or calibrated). Parameters: `demand` and
`delta` (mean losses), `layers` (depth of the decoder).
"""

from ...analysis.statistics import Estimate
from ..statement import Untestable, statement

HARDLY = 0.05  # layers before the last: with a later mean exit layer hardly any token exits


def check_exits(mean_exit_layers: Estimate, layers: int) -> None:
    """Raises `Untestable` where hardly any token exits under any of the settings that are compared."""
    if (mean_exit_layers.value > layers - HARDLY).all():
        raise Untestable("hardly any token exits at this target")


@statement(
    "exits at intervals suffice",
    source="Survey, section 7.1",
    quote="At equal loss, exits at every third layer cost no more than exits at every layer.",
    published="advice, no number",
    judged_by="FLOPs",
)
def exits_at_intervals_suffice(results):
    check_exits(results.spaced.values("mean_exit_layer", every=[1, 3]), results.layers)
    some = results.spaced.value("flops_share", every=3)
    every = results.spaced.value("flops_share", every=1)
    return f"FLOPs {some:.1%} against {every:.1%}", some <= every + 0.005


@statement(
    "fewer mistakes later in a sentence",
    source="Survey, section 3.4 (MuE)",
    quote="The decoder makes fewer mistakes in the last third of an output than in the first.",
    published="motivation",
    judged_by="predictions",
)
def fewer_mistakes_later_in_a_sentence(results):
    begin = results.thirds.value("wrong", what="full depth", part=1)
    end = results.thirds.value("wrong", what="full depth", part=3)
    return f"{begin:.1%} wrong in the first third, {end:.1%} in the last", end < begin


@statement(
    "confidence moves with the domain",
    source="Survey, section 5",
    quote=(
        "A threshold chosen in-domain loses more in another domain (here, another task or corpus), by more "
        "than the target loss."
    ),
    published="named, no number",
    judged_by="loss",
    untested="no other domain here",
)
def confidence_moves_with_the_domain(results):
    home = results.travelled.value("loss", rule="surest", place="at home")
    away = results.travelled.values("loss", rule="surest", place=lambda place: place != "at home")
    check_exits(results.travelled.values("mean_exit_layer", rule="surest"), results.layers)
    worst = away.max()
    return f"loss {away:.1%} against {home:.1%} in-domain", worst > home + results.demand


@statement(
    "confidence is less right in another domain",
    source="Survey, section 5",
    quote=(
        "On another corpus of the task, the last layer contradicts more of the tokens that the first exit is "
        "confident of."
    ),
    published="named, no number",
    judged_by="predictions",
    untested="no other corpus of the task here",
)
def confidence_is_less_right_in_another_domain(results):
    home = results.moved.value("wrong", place="at home")
    away = results.moved.values("wrong", place=lambda place: place != "at home")
    worst = away.max()
    return f"{away:.1%}, {home:.1%} in-domain", worst > home


@statement(
    "a bandit finds the threshold",
    source="Survey, section 3.4 (UCBEE, CeeBERT)",
    quote=(
        "Over one stream a bandit comes within a reward of 0.01 per token (1 % of the depth) of the best "
        "fixed threshold."
    ),
    published="named, no number",
    judged_by="loss",
)
def a_bandit_finds_the_threshold(results):
    regret = results.keepers.value("regret", who="bandit, one stream")
    return f"regret {regret:.3f} per token", regret < 0.01


@statement(
    "a bandit keeps the quality",
    source="Survey, section 5 (CeeBERT)",
    quote="What the bandit's thresholds lose is at most what a calibrated threshold may lose.",
    published="named, no number",
    judged_by="loss",
)
def a_bandit_keeps_the_quality(results):
    loss = results.keepers.value("loss", who="bandit, one stream")
    calibrated = results.keepers.value("loss", who="calibrated")
    return f"loss {loss:.1%}, calibrated {calibrated:.1%}", loss <= results.delta
