"""What verified exits do (`propagation="verify"`): which drafts are kept, and what they cost."""

from dataclasses import replace

import pandas as pd

from ..decoding.generation import generate
from ..decoding.inputs import EncoderCache
from ..decoding.step_costs import StepCosts
from ..exits.policy import ExitPolicy
from ..traces.drafts import cost_of_drafts, drafts_of
from ..traces.replay import PolicyReplay, values_at_exits
from .comparison import decode, retained
from .statistics import mean_of_chosen


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
    """Drafts of all outputs together.

    `drafted` is a share of all tokens, and so is `copied`, of those accepted. `tokens_a_pass` are tokens for
    each pass of the decoder's weights, decisions and logits not counted: full depth has 1.
    """
    predicted = drafts_of(replayed, max_draft, max_new_tokens)
    tokens = len(replayed.trace)
    layers = replayed.bound.layers
    passes = StepCosts(layers, layer=1 / layers, readout=0.0, decision=0.0)
    return {
        "drafted": predicted.verified.sum() / tokens,
        "acceptance": predicted.acceptance,
        "copied": (predicted.exit_layers == 0).mean(),
        "tokens_a_round": tokens / predicted.rounds.sum(),
        "tokens_a_pass": tokens / cost_of_drafts(replayed, passes, max_draft, max_new_tokens).sum(),
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
            model, task, replace(policy, propagation="copy", max_draft="auto", copies=None), full, **options
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
