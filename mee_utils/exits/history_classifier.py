"""`history_classifier`, ours: it looks at the last three decisions about a token, and at no states."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .classifier_kinds import ExitClassifier

FEATURES = (
    "margin",  # log-odds of the difference of the two largest probabilities
    "margin before",
    "margin two before",
    "top-1",  # log-odds of the largest probability
    "top-1 before",
    "entropy",
    "entropy before",
    "similarity",  # to the state one layer before
    "similarity before",
    "same as before",  # 1 if the prediction is that of the decision layer before
    "same as two before",
    "unchanged",  # at how many decision layers in a row it has been the same, this one included
    "in source",  # 1 if the predicted token stands in the input
    "source",  # log of the length of the input
    "position",  # log(1 + position)
    "depth",  # layer / L
    "decided before",  # at how many decision layers before this one, at most two
)
DEPTHS = 12  # steps of depth that a history classifier tells apart
LEAST_ODDS = 1e-6  # added to a probability and to what it lacks to 1, so that log-odds are finite


class Evidence(NamedTuple):
    """What one decision layer says of some tokens, `[rows]` each."""

    margin: Tensor  # log-odds
    top1: Tensor  # log-odds
    entropy: Tensor
    similarity: Tensor
    top1_id: Tensor
    unchanged: Tensor  # at how many decision layers in a row this has been the prediction


class HistoryClassifier(ExitClassifier):
    """Looks at what the last three decision layers predict and with what confidence, not at states (ours).

    An example: the decision layers 4, 5 and 6 of a decoder of 12 predict the ids 7, 9 and 9 with margins 0.2,
    0.5 and 0.9. At layer 6 the features "margin", "margin before" and "margin two before" are 2.2, 0.0 and
    -1.4, "same as before" is 1, "same as two before" 0, "unchanged" 2, "depth" 0.5 and "decided before" 2.
    At layer 4, where nothing was decided before, the layer itself stands for those before it. At layer 6 "in
    source" is 1 if id 9 stands in the input. The length of the input tells tasks apart.

    A hidden unit is a weighted sum of the standardised features. Its constant, and its weight of the margin,
    differ with the depth, in twelfths of the decoder. The features are standardised with the mean and
    deviation of the tokens that it learned from, which are stored with the weights. It learns from the
    logits of a policy (`train_classifier`), and decides from the same: over few ids, so that a decision costs
    less than a hundredth of a layer of T5-large.

    The shipped ones learned from the model's own outputs, since those are what it decides about, for examples
    that the model was not trained on where there are such, filled up with training examples
    (`mee_utils.companion.artifacts.unseen_first`).
    """

    readout = True
    uses_exit_history = True

    def build(self, hidden: int) -> None:
        self.network = nn.Linear(len(FEATURES), hidden)
        self.at_depth = nn.Embedding(DEPTHS, hidden)  # what a depth adds to the hidden units
        self.margin_at_depth = nn.Embedding(DEPTHS, hidden)  # and how much the margin counts there
        for embedding in (self.at_depth, self.margin_at_depth):
            nn.init.zeros_(embedding.weight)  # a depth that it has not seen makes no difference
        self.head = nn.Linear(hidden, 1)
        self.register_buffer("mean", torch.zeros(len(FEATURES)))
        self.register_buffer("deviation", torch.ones(len(FEATURES)))

    def standardise(self, features: Tensor, without: Collection[str] = ()) -> None:
        """Takes mean and deviation from the features that it learns from, `[example, feature]`.

        Features that it is to go `without` are all standardised to 0.
        """
        deviation, mean = torch.std_mean(features.double(), dim=0)
        self.mean = mean.to(self.mean)
        self.deviation = torch.where(deviation > 0, deviation, 1.0).to(self.deviation)
        self.deviation[[FEATURES.index(name) for name in without]] = torch.inf

    def log_odds(self, features: Tensor) -> Tensor:
        """Log-odds of "exit": `[..., feature]`, see `FEATURES`, to `[...]`."""
        standardised = (features - self.mean) / self.deviation
        margin = standardised[..., :1]
        depth = (features[..., FEATURES.index("depth")] * DEPTHS).round().long().clamp(1, DEPTHS) - 1
        hidden = self.network(standardised) + self.at_depth(depth) + self.margin_at_depth(depth) * margin
        return self.head(hidden.relu())[..., 0]

    def confidence(self, state) -> Tensor:
        return torch.sigmoid(self.log_odds(self.features(state)))

    def flops(self, d_model: int) -> int:
        return 2 * (self.network.weight.numel() + self.head.weight.numel())

    def features(self, state) -> Tensor:
        """`FEATURES` of some tokens at a decision layer, `[rows, feature]`."""
        now = state.memo(id(self), self._evidence)
        before = self._evidence_before(state, 1) or now
        two_before = self._evidence_before(state, 2) or before
        decided_before = sum(layer < state.layer for layer in state.decision_layers)
        columns = {
            "margin": now.margin,
            "margin before": before.margin,
            "margin two before": two_before.margin,
            "top-1": now.top1,
            "top-1 before": before.top1,
            "entropy": now.entropy,
            "entropy before": before.entropy,
            "similarity": now.similarity,
            "similarity before": before.similarity,
            "same as before": now.top1_id == before.top1_id,
            "same as two before": now.top1_id == two_before.top1_id,
            "unchanged": now.unchanged,
            "in source": self._numbers(state.in_source),
            "source": torch.log(self._numbers(state.source_tokens)),
            "position": torch.log1p(self._numbers(state.position)),
            "depth": self._numbers(state.layer / state.layers),
            "decided before": self._numbers(min(decided_before, 2)),
        }
        return torch.stack([columns[name].to(self._dtype).expand_as(now.margin) for name in FEATURES], dim=-1)

    def _evidence(self, state) -> Evidence:
        """What this decision layer says, with a count of how long it has said so; kept by `memo`."""
        top1_id = torch.as_tensor(state.top1_id, device=self.mean.device)
        unchanged = torch.ones_like(top1_id)
        before = self._evidence_before(state, 1)
        if before is not None:
            unchanged = torch.where(top1_id == before.top1_id, before.unchanged + 1, unchanged)
        return Evidence(
            margin=log_odds_of(self._numbers(state.margin)),
            top1=log_odds_of(self._numbers(state.top1_probability)),
            entropy=self._numbers(state.entropy),
            similarity=self._numbers(state.similarity),
            top1_id=top1_id,
            unchanged=unchanged,
        )

    def _evidence_before(self, state, decisions: int) -> Evidence | None:
        """The evidence so many decision layers before; None if there were fewer."""
        layers = [layer for layer in state.decision_layers if layer < state.layer]
        if len(layers) < decisions:
            return None
        return state.earlier(state.layer - layers[-decisions]).memo(id(self), self._evidence)

    def _numbers(self, values) -> Tensor:
        """A number, array (in a replay) or tensor as a tensor beside the weights, in their precision."""
        return torch.as_tensor(values, dtype=self._dtype).to(self.mean.device, non_blocking=True)


def log_odds_of(probability: Tensor) -> Tensor:
    """`log p / (1 - p)`, finite at 0 and 1."""
    return torch.log((probability + LEAST_ODDS) / (1 - probability + LEAST_ODDS))
