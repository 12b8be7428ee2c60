"""What verified exits do (`propagation="verify"`): the work of one sentence, and which drafts are kept."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..decoding.generation import Generation, generate
from ..exits.policy import ExitPolicy
from ..traces.drafts import drafts_of
from ..traces.replay import PolicyReplay
from .comparison import decode, retained
from .statistics import NOTHING, mean_interval

KEPT, REPLACED, DROPPED, LAST = "kept", "replaced", "dropped", "from the last layer"


def one_output(found: Generation, number: int, layers: int, decode: Callable) -> pd.DataFrame:
    """Every token that was run for one output, in order.

    `round`, from 1; `position`; `layer` at which it was drafted (L: the policy was not sure); `fate`: of a
    draft "kept", "replaced" by the last layer's token or "dropped" since one before it was, else "from the
    last layer"; `token`, what `decode` makes of the id that stands there in the end, "" past the end.
    """
    if found.drafts is None:
        raise MeeError('These exits were not verified: decode with propagation="verify".')
    ids, exits, drafts = found.token_ids[number], found.exit_layers[number], found.drafts[number]
    position, layer = drafts.positions, drafts.exit_layers
    begins = position[np.append(True, np.diff(drafts.in_round) > 0)]
    until = np.append(begins[1:], len(ids))[drafts.in_round - 1]  # what the round has settled
    there = np.minimum(position, len(ids) - 1)
    fates = [position >= until, layer == layers, exits[there] == layers]
    fate = np.select(fates, [DROPPED, LAST, REPLACED], KEPT)
    tokens = [decode(ids[place]) if place < len(ids) else "" for place in position]
    columns = {"round": drafts.in_round, "position": position, "layer": layer, "fate": fate}
    return pd.DataFrame(columns | {"token": tokens})


def acceptance(replayed: PolicyReplay, max_new_tokens: int = 64, **labels) -> pd.DataFrame:
    """How many tokens are drafted at each layer, and which share of these drafts is right: one row a layer.

    `drafted` is a share of all tokens; `kept` of those drafted there. Before a draft all words are right.
    """
    place, rows = replayed.exits(max_new_tokens), []
    right = replayed.same_token[np.arange(len(place)), place]
    for number, layer in enumerate(replayed.decision_layers):
        here = place == number
        interval = mean_interval(right[here], replayed.trace.sequence[here]) if here.any() else NOTHING
        rows.append({**labels, "layer": layer, "drafted": here.mean(), **interval.columns("kept")})
    return pd.DataFrame(rows)


def summary(replayed: PolicyReplay, max_draft: int, max_new_tokens: int = 64) -> dict[str, float]:
    """Drafts of all outputs together: share of tokens `drafted`, `acceptance`, tokens settled a round."""
    foretold, tokens = drafts_of(replayed, max_draft, max_new_tokens), len(replayed.trace)
    drafted = {"drafted": foretold.judged.sum() / tokens, "acceptance": foretold.acceptance}
    return drafted | {"tokens_a_round": tokens / foretold.rounds.sum()}


def verified_and_not(model, task, policies: dict[str, ExitPolicy], max_draft: int, **options) -> pd.DataFrame:
    """Each policy with its exits verified (drafts of at most `max_draft`) and unverified, on one task.

    One row a policy (`rule`): `other_outputs`, how many are not those of full depth, token for token;
    `acceptance`; `flops_share`, with all that is thrown away; and of the same policy unverified
    `flops_unverified` and `kept_unverified`, the share of the score at full depth.
    """
    full, rows = decode(model, task, None, **options), []
    for rule, policy in policies.items():
        verified = replace(policy, propagation="verify", max_draft=max_draft)
        found = generate(model, task.inputs, verified, **options)
        plain = decode(model, task, replace(policy, propagation="copy", max_draft="auto"), full, **options)
        others = sum(a != b for a, b in zip(full.token_ids, found.token_ids, strict=True))
        row = {"rule": rule, "other_outputs": others, "acceptance": found.acceptance}
        row |= {"flops_share": found.flops.sum() / full.tokens / full.flops}
        row |= {"flops_unverified": plain.flops / full.flops, "kept_unverified": retained(plain, full)[0]}
        rows.append(row)
    return pd.DataFrame(rows)
