"""What verified exits do (`propagation="verify"`): the work of one sentence, and which drafts are kept."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..decoding.generation import Generation, generate
from ..decoding.inputs import EncoderCache
from ..exits.policy import ExitPolicy
from ..traces.drafts import drafts_of
from ..traces.replay import PolicyReplay, values_at_exits
from .comparison import decode, retained
from .statistics import mean_of_chosen

# the fates of a token that was run
DRAFT_KEPT = "kept"
DRAFT_REPLACED = "replaced"
DRAFT_DROPPED = "dropped"
FROM_LAST_LAYER = "from the last layer"


def one_output(generation: Generation, number: int, layers: int, decode: Callable) -> pd.DataFrame:
    """Every token that was run for one output, in order.

    Args:
        generation: with verified exits.
        number: index of the output.
        layers: depth of the decoder.
        decode: id -> text.

    Returns:
        One row a token: `round`, from 1; `position`; `layer` at which it was drafted (L: the policy was not
        sure); `fate`: of a draft "kept", "replaced" by the last layer's token or "dropped" since one before
        it was, else "from the last layer"; `token`, the text of the id that stands there in the end, "" past
        the end.

    Raises:
        MeeError: the exits were not verified.
    """
    if generation.drafts is None:
        raise MeeError('These exits were not verified: decode with propagation="verify".')
    ids = generation.token_ids[number]
    drafts = generation.drafts[number]
    position = drafts.positions
    first_positions = position[np.append(True, np.diff(drafts.in_round) > 0)]  # of each round
    final_until = np.append(first_positions[1:], len(ids))[drafts.in_round - 1]
    final_layer = generation.exit_layers[number][np.minimum(position, len(ids) - 1)]
    fate = np.select(
        [position >= final_until, drafts.exit_layers == layers, final_layer == layers],
        [DRAFT_DROPPED, FROM_LAST_LAYER, DRAFT_REPLACED],
        default=DRAFT_KEPT,
    )
    return pd.DataFrame(
        {
            "round": drafts.in_round,
            "position": position,
            "layer": drafts.exit_layers,
            "fate": fate,
            "token": [decode(ids[at]) if at < len(ids) else "" for at in position],
        }
    )


def acceptance(replayed: PolicyReplay, max_new_tokens: int = 64, **labels) -> pd.DataFrame:
    """How many tokens are drafted at each layer, and which share of these drafts is right: one row per layer.

    `drafted` is a share of all tokens; `kept` of those drafted there. All tokens before a draft are taken to
    be right.
    """
    exits = replayed.exits(max_new_tokens)  # [token]
    right = values_at_exits(replayed.same_token, exits)
    rows = []
    for number, layer in enumerate(replayed.decision_layers):
        here = exits == number
        kept = mean_of_chosen(right, here, replayed.trace.sequence)
        rows.append({**labels, "layer": layer, "drafted": here.mean(), **kept.columns("kept")})
    return pd.DataFrame(rows)


def draft_summary(replayed: PolicyReplay, max_draft: int, max_new_tokens: int = 64) -> dict[str, float]:
    """Drafts of all outputs together: share of tokens `drafted`, `acceptance`, tokens that a round adds."""
    predicted = drafts_of(replayed, max_draft, max_new_tokens)
    tokens = len(replayed.trace)
    return {
        "drafted": predicted.verified.sum() / tokens,
        "acceptance": predicted.acceptance,
        "tokens_a_round": tokens / predicted.rounds.sum(),
    }


def verified_and_not(model, task, policies: dict[str, ExitPolicy], max_draft: int, **options) -> pd.DataFrame:
    """Each policy with its exits verified (drafts of at most `max_draft`) and unverified, on one task.

    One row a policy (`rule`): `other_outputs`, how many are not those of full depth, token for token;
    `acceptance`; `flops_share`, with all that is thrown away; and of the same policy unverified
    `flops_unverified` and `kept_unverified`, the share of the score at full depth.
    """
    options = {"encodings": EncoderCache(), **options}
    full = decode(model, task, None, **options)
    rows = []
    for rule, policy in policies.items():
        verified = generate(
            model, task.inputs, replace(policy, propagation="verify", max_draft=max_draft), **options
        )
        unverified = decode(
            model, task, replace(policy, propagation="copy", max_draft="auto"), full, **options
        )
        differs = [ids != full_ids for ids, full_ids in zip(verified.token_ids, full.token_ids, strict=True)]
        rows.append(
            {
                "rule": rule,
                "other_outputs": sum(differs),
                "acceptance": verified.acceptance,
                "flops_share": verified.flops.sum() / full.tokens / full.flops,
                "flops_unverified": unverified.flops / full.flops,
                "kept_unverified": retained(unverified, full).value,
            }
        )
    return pd.DataFrame(rows)
