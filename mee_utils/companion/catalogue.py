"""The exit rules of the study: what each is called, how it is drawn, what it needs and how it is made.

Their table is `rules.yaml`, the only place to add a rule: all else looks it up here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..common.errors import MeeError, check_choice
from ..common.files import read_yaml

if TYPE_CHECKING:
    from ..exits.policy import ExitPolicy

MAIN_MODEL = "calm"  # all rules are swept on this backbone, a few on the others
BASELINE = "vanilla"  # beside whose full depth rivals of exits stand
SHALLOW = "decoder trained shallow"
DASHES = {"solid": (), "dash": (4, 1.5), "dot": (1, 1), "mixed": (3, 1, 1, 1)}
PRUNED_SIZES = {"fixed": {"top_k": "top_k"}, "decaying": {"top_k": "first_k", "least_k": "least_k"}}


@dataclass(frozen=True)
class Variant:
    """A trained exit classifier of the study; see `mee_utils.exits.classifiers` for the kinds."""

    kind: str
    layers: int | None = None  # decoder layers it sees side by side; None: what the kind says
    depth: int | None = None  # layers of the LSTM
    width: float | None = None  # hidden units as a multiple of d_model
    ablated: bool = False  # also trained for the other target and on the vanilla backbone

    @property
    def learns_from(self) -> str:
        """What it learns from: the model's own "outputs", or its states along "references"."""
        return "outputs" if self.kind == "history_classifier" else "references"

    def options(self, d_model: int) -> dict[str, int]:
        """What `new_classifier` is told besides the kind."""
        hidden = max(1, round(self.width * d_model)) if self.width else None
        given = {"layers": self.layers, "depth": self.depth, "hidden": hidden}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Rule:
    """An exit rule of the study; from `measure` to `contrast_token` options of `ExitPolicy`."""

    name: str
    label: str  # in figures and text, with who proposed it
    family: str  # gives it its colour (`FAMILY_COLOURS`)
    marker: str = "o"  # tells it from others of its family, with the dashes
    dashes: tuple[float, ...] = ()
    measure: str = "softmax_margin"
    pruning: str | None = None
    pruning_form: str = "recursion"
    prune_last_layer: bool = True
    contrast: str | None = None
    contrast_token: bool = False
    classifier: Variant | None = None  # has to be trained, and is the measure
    thresholded: bool = True  # whether there is a threshold to sweep ("static": its layer)
    threshold: str | None = None  # "bandit", in place of a number
    decay: float | None = None  # of the threshold, unless `policy` is told another
    survey: bool = False  # of the survey: on the main model only, one seed, fewer settings
    idea: str = ""  # of a rule on the survey's bench (notebook 06): what it goes by, and who proposed it
    source: str = ""
    bug: str = ""  # what its public code does instead; see `mee_utils.companion.statements`

    def policy(
        self, threshold: float | None, settings: Mapping, classifiers: Mapping | None = None, decay=None
    ) -> ExitPolicy:
        """The policy at a threshold (None: the measure's own); the oracle, FREE and a bandit have none.

        The threshold of "static" is a layer. `settings` holds `min_layer`; `top_k`, `first_k`, `least_k` of
        pruned rules; `exit_layer` of FREE's; `alpha` of a contrast. `classifiers` are trained ones by rule;
        `decay` is that of the threshold. Raises `MeeError` if the rule's classifier is not there.
        """
        from ..exits.policy import ALPHA, ExitPolicy

        if self.name == "static":
            return ExitPolicy("static", min_layer=int(threshold))
        if self.name == "oracle":
            return ExitPolicy("oracle", min_layer=settings["min_layer"])
        if self.name == "free_adaptive":
            layers = [settings["exit_layer"]]
            return ExitPolicy(self.measure, threshold="adaptive", propagation="parallel", exit_layers=layers)
        measure = self.measure
        if self.classifier:
            if not classifiers or self.name not in classifiers:
                advice = "train exit classifiers (classifiers: seeds), or name the notebook in left_out"
                raise MeeError(f'Rule "{self.name}" has no exit classifier here: {advice}.')
            measure = classifiers[self.name]
        sizes = {option: settings[name] for option, name in PRUNED_SIZES.get(self.pruning, {}).items()}
        return ExitPolicy(
            measure=measure,
            threshold=self.threshold or (None if threshold is None else float(threshold)),
            decay=self.decay if decay is None else decay,
            min_layer=settings["min_layer"],
            pruning=self.pruning,
            pruning_form=self.pruning_form,
            prune_last_layer=self.prune_last_layer,
            **sizes,
            contrast=self.contrast,
            contrast_alpha=settings.get("alpha", ALPHA) if self.contrast else ALPHA,
            contrast_token=self.contrast_token,
        )


def _rule(name: str, dashes: str = "solid", classifier: dict | None = None, **row) -> Rule:
    return Rule(name, dashes=DASHES[dashes], classifier=classifier and Variant(**classifier), **row)


_TABLES = read_yaml("companion/rules.yaml")
FAMILY_COLOURS: dict[str, str] = _TABLES["families"]
RULES = {name: _rule(name, **row) for name, row in _TABLES["rules"].items()}
SURVEY = tuple(name for name, rule in RULES.items() if rule.survey)
HEADS = ("exit_heads",)  # trained by the references on `vanilla` (the survey's "separate training")
VARIANTS = {
    name: rule.classifier
    for name, rule in RULES.items()
    if rule.classifier and not rule.survey and name not in HEADS
}
SURVEY_VARIANTS = {name: RULES[name].classifier for name in SURVEY if RULES[name].classifier}
DISTILLED = ("past_future",)  # also trained to say what the last layer says, as FastBERT's exits are

_GROUPS = {name: tuple(rules) for name, rules in _TABLES["groups"].items()}
MAIN_SWEEP = _GROUPS["main_sweep"]
OTHER_SWEEP = _GROUPS["other_sweep"]
BESIDE_SURVEY = _GROUPS["beside_survey"]
PRUNED = _GROUPS["pruned"]
CALM_RULES = _GROUPS["calm"]
MEE_RULES = _GROUPS["mee"]
ABLATED = tuple(name for name, variant in VARIANTS.items() if variant.ablated)
IDEAS = {name: rule.idea for name, rule in RULES.items() if rule.idea}  # the rules of notebook 06
SEVERAL_LAYERS = tuple(name for name, rule in RULES.items() if rule.family == "several layers")


def target_of(rule: str) -> str:
    """What the classifier of a rule learns to predict where the rule is measured; others are ablations."""
    return "correctness" if rule in HEADS else "consistency"


def rule_policies(names: Iterable[str], threshold: float, settings: Mapping) -> dict[str, ExitPolicy]:
    """Policies of several rules at one threshold, by name; arguments as in `Rule.policy`."""
    return {name: RULES[check_choice("rule", name, RULES)].policy(threshold, settings) for name in names}
