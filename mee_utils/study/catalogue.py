"""The exit rules of the study: what each is called, how it is drawn, what it needs and how it is made.

This is the only place to add a rule: one row of `RULES`. Sweeps, notebooks, figures, claims and benchmarks
look it up here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..common.errors import check_choice

if TYPE_CHECKING:
    from ..exits.policy import ExitPolicy

MAIN_MODEL = "calm"  # all rules are swept on this backbone, a few on the others
FAMILY_COLOURS = {
    "reference": "#000000",
    "probabilities": "#0173b2",
    "pruned": "#de8f05",
    "contrast": "#cc78bc",
    "one layer": "#56b4e9",
    "several layers": "#029e73",
    "learned threshold": "#7a0177",
}
PRUNED_SIZES = {"fixed": {"top_k": "top_k"}, "decaying": {"top_k": "first_k", "least_k": "least_k"}}


@dataclass(frozen=True)
class Variant:
    """A trained exit classifier of the study; see `mee_utils.exits.classifiers` for the kinds.

    MEE's report gives its LSTM two layers and no width; its code one layer of 250 units, a quarter of the
    width of T5-large.

    Attributes:
        kind: of the classifier.
        layers: how many decoder layers it sees side by side; None: what the kind says.
        depth: layers of the LSTM.
        width: hidden units as a multiple of d_model.
        ablated: whether it is also trained for the other target and on the vanilla backbone.
    """

    kind: str
    layers: int | None = None
    depth: int | None = None
    width: float | None = None
    ablated: bool = False

    def options(self, d_model: int) -> dict[str, int]:
        """What `new_classifier` is told besides the kind."""
        hidden = max(1, round(self.width * d_model)) if self.width else None
        given = {"blocks": self.layers, "depth": self.depth, "hidden": hidden}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Rule:
    """An exit rule of the study.

    Attributes:
        name: in tables.
        label: in figures and text, with who proposed it.
        family: a key of `FAMILY_COLOURS`; figures in which all rules meet are coloured by it.
        colour, marker, dashes: its style among rules of its own kind.
        measure: the confidence measure, by name; a classifier's comes from `classifier`.
        pruning, pruning_form, contrast, contrast_token: options of `ExitPolicy`.
        classifier: what has to be trained for it.
        thresholded: whether it has a threshold to sweep ("static": its layer).
    """

    name: str
    label: str
    family: str
    colour: str
    marker: str = "o"
    dashes: tuple[float, ...] = ()
    measure: str = "softmax_margin"
    pruning: str | None = None
    pruning_form: str = "recursion"
    contrast: str | None = None
    contrast_token: bool = False
    classifier: Variant | None = None
    thresholded: bool = True

    def policy(
        self,
        threshold: float | None,
        settings: Mapping[str, Any],
        classifiers: Mapping[str, Any] | None = None,
        decay: float | None = None,
    ) -> ExitPolicy:
        """The policy of this rule at a threshold.

        Args:
            threshold: for "static" the layer; means nothing to the oracle and to FREE's adaptive rule.
            settings: `min_layer`; `top_k`, `first_k`, `least_k` of pruned rules; `exit_layer` of FREE's;
                `alpha` of a contrast.
            classifiers: name of a rule -> its trained classifier.
            decay: temperature of a threshold that falls with the position; None for a constant one.
        """
        from ..exits.contrast import ALPHA
        from ..exits.policy import ExitPolicy

        if self.name == "static":
            return ExitPolicy("static", min_layer=int(threshold))
        if self.name == "oracle":
            return ExitPolicy("oracle", min_layer=settings["min_layer"])
        if self.name == "free_adaptive":
            layers = [settings["exit_layer"]]
            return ExitPolicy(self.measure, threshold="adaptive", propagation="parallel", exit_layers=layers)
        options = {option: settings[name] for option, name in PRUNED_SIZES.get(self.pruning, {}).items()}
        if self.contrast:
            options["contrast_alpha"] = settings.get("alpha", ALPHA)
        return ExitPolicy(
            classifiers[self.name] if self.classifier else self.measure,
            threshold=float(threshold),
            decay=decay,
            min_layer=settings["min_layer"],
            pruning=self.pruning,
            pruning_form=self.pruning_form,
            contrast=self.contrast,
            contrast_token=self.contrast_token,
            **options,
        )


LINE, DASH, DOT, MIXED = (), (4, 1.5), (1, 1), (3, 1, 1, 1)
_P, _C, _ONE, _SEVERAL = "probabilities", "contrast", "one layer", "several layers"
_M = "softmax_margin"


def _classifier(
    name: str, label: str, family: str, colour: str, marker: str, dashes: tuple, *variant, **options
):
    return Rule(name, label, family, colour, marker, dashes, classifier=Variant(*variant, **options))


_HIDDEN, _LOW_RANK, _LSTM = "hidden_classifier", "low_rank_classifier", "lstm_classifier"
_THREE = "three_hidden_classifier"
# fmt: off
_ROWS = (
    Rule("full_depth", "full depth", "reference", "#000000", "+", LINE, "", thresholded=False),
    Rule("static", "static", "reference", "#000000", ".", DOT, "static"),
    Rule("oracle", "oracle", "reference", "#000000", "*", LINE, "oracle", thresholded=False),
    Rule("softmax_margin", "softmax margin (CALM)", _P, "#0173b2"),
    Rule("unpruned", "margin, all ids", _P, "#0173b2"),
    Rule("max_probability", "max probability (CALM's code)", _P, "#56b4e9", "P", DASH, "max_probability"),
    Rule("fixed", "margin, fixed pruning", "pruned", "#de8f05", "s", LINE, _M, "fixed"),
    Rule("decaying", "margin, decaying pruning", "pruned", "#029e73", "^", DASH, _M, "decaying"),
    Rule("decaying_closed", "margin, decaying, closed form", "pruned", "#949494", "v", DOT, _M, "decaying",
         "closed"),
    Rule("adaptive", "margin, adaptive pruning", "pruned", "#cc78bc", "D", MIXED, _M, "adaptive"),
    Rule("rising_fixed", "rising top-1, fixed pruning", "pruned", "#ca9161", "p", DOT, "rising_top1",
         "fixed"),
    Rule("weighted", "weighted contrast", _C, "#d55e00", "v", DASH, contrast="weighted"),
    Rule("jsd", "JSD contrast", _C, "#cc78bc", "D", MIXED, contrast="jsd"),
    Rule("weighted_fixed", "weighted contrast, fixed pruning", _C, "#a63603", "*", DOT, _M, "fixed",
         contrast="weighted"),
    Rule("jsd_fixed", "JSD contrast, fixed pruning", _C, "#7a0177", "h", DOT, _M, "fixed", contrast="jsd"),
    Rule("weighted_token", "weighted contrast, token too", _C, "#fdae6b", "<", DASH, _M, "fixed",
         contrast="weighted",
         contrast_token=True),
    Rule("jsd_token", "JSD contrast, token too", _C, "#fbb4d9", ">", MIXED, _M, "fixed", contrast="jsd",
         contrast_token=True),
    Rule("rising_top1", "rising top-1 (MEE)", _SEVERAL, "#d55e00", "v", MIXED, "rising_top1"),
    Rule("hidden_similarity", "hidden similarity (CALM)", _ONE, "#949494", "x", DOT, "hidden_similarity"),
    _classifier("linear", "linear (CALM)", _ONE, "#56b4e9", "<", DOT, "linear_classifier"),
    _classifier("low_rank", "low rank, one layer (ours)", _ONE, "#f781bf", "P", DOT, _LOW_RANK),
    _classifier("low_rank_three", "low rank, three layers (ours)", _SEVERAL, "#a63603", "*", LINE,
                _LOW_RANK, layers=3),
    _classifier("hidden", "hidden, one layer (CALM)", _ONE, "#de8f05", "s", LINE, _HIDDEN, ablated=True),
    _classifier("wide_hidden", "hidden, one layer, three times as wide", _ONE, "#ca9161", "h", DOT, _HIDDEN,
                width=3.0),
    _classifier("two_hidden", "hidden, two layers", _SEVERAL, "#c7a76c", "2", DASH, _HIDDEN, layers=2),
    _classifier("three_hidden", "hidden, three layers (MEE)", _SEVERAL, "#029e73", "^", DASH, _THREE,
                ablated=True),
    _classifier("four_hidden", "hidden, four layers", _SEVERAL, "#7a7a00", "d", DASH, _HIDDEN, layers=4),
    _classifier("narrow_lstm", "narrow LSTM (MEE's code)", _SEVERAL, "#b5a300", "p", DOT, _LSTM, depth=1,
                width=0.25,
                ablated=True),
    _classifier("lstm", "LSTM, two layers (MEE)", _SEVERAL, "#cc78bc", "D", MIXED, _LSTM, width=0.5),
    Rule("free_adaptive", "adaptive threshold (FREE)", "learned threshold", "#7a0177", "X", LINE,
         "max_probability",
         thresholded=False),
)
# fmt: on
RULES: dict[str, Rule] = {rule.name: rule for rule in _ROWS}
VARIANTS: dict[str, Variant] = {rule.name: rule.classifier for rule in _ROWS if rule.classifier}

# groups, in the order of tables and figures
MAIN_SWEEP = (
    "softmax_margin",
    "fixed",
    "decaying",
    "weighted_fixed",
    "jsd_fixed",
    "max_probability",
    "rising_top1",
    "hidden_similarity",
    "linear",
    "low_rank_three",
    "hidden",
    "three_hidden",
    "lstm",
)
OTHER_SWEEP = ("softmax_margin", "fixed", "weighted_fixed", "rising_top1", "hidden_similarity")
ABLATED = tuple(name for name, variant in VARIANTS.items() if variant.ablated)
SEVERAL_LAYERS = tuple(rule.name for rule in _ROWS if rule.family == _SEVERAL)
PRUNED = ("fixed", "decaying", "decaying_closed", "adaptive")
CONTRASTED = ("weighted", "jsd", "weighted_fixed", "jsd_fixed", "weighted_token", "jsd_token")
CALM_RULES = ("softmax_margin", "hidden_similarity", "hidden")
MEE_RULES = ("three_hidden", "lstm", "rising_top1")


def rule_policies(
    names: Iterable[str],
    threshold: float,
    settings: Mapping[str, Any],
    classifiers: Mapping[str, Any] | None = None,
) -> dict[str, ExitPolicy]:
    """Policies of several rules at one threshold, by name; arguments as in `Rule.policy`."""
    return {name: find_rule(name).policy(threshold, settings, classifiers) for name in names}


def find_rule(name: str) -> Rule:
    """A rule by name. Raises `CompanionError` for an unknown one."""
    return RULES[check_choice("rule", name, RULES)]
