"""Do classifiers learn from the right examples? A measurement (`make measure`), read by notebook 05.

Each classifier learns from as many examples of three kinds: training examples along their references
(teacher-forced, as MEE's and CALM's learn), the model's own outputs for these, and its own outputs for
examples that it was not trained on, where the corpora have more than thresholds are chosen on. Then all of
them rank the tokens of test examples. From the last kind the rule over the history of predictions also learns
without each group of its features, and from each group alone.
"""

from collections.abc import Iterator
from itertools import product

import pandas as pd

from .. import ExitPolicy, Trace, trace, train_classifier
from ..analysis.decisions import area_interval, overall_ranking
from ..exits.classifiers import new_classifier
from ..exits.history_classifier import FEATURES
from ..traces.classifier_training import Histories, fit_history, histories
from ..traces.replay import StoredStates, replay_policy
from .artifacts import deciding_policy, how_it_learns, with_tokens
from .catalogue import MAIN_MODEL, RULES
from .inputs import load_tasks

HISTORY = "history"
ON_STATES = ("hidden", "three_hidden")
MARGIN = "fixed"  # learns from nothing; what the others stand beside
REFERENCES = "training examples, references"
OUTPUTS = "training examples, own outputs"
UNSEEN = "unseen examples, own outputs"
SHARE = 5  # of `classifiers.tokens` a fifth is taken: real text has no more unseen summaries
ALL = "all"
GROUPS = {  # of `FEATURES`
    "margin": ["margin", "margin before", "margin two before"],
    "top-1": ["top-1", "top-1 before"],
    "entropy": ["entropy", "entropy before"],
    "similarity": ["similarity", "similarity before"],
    "same prediction": ["same as before", "same as two before", "unchanged"],
    "input": ["in source", "source"],
    "position": ["position"],
    "depth": ["depth", "decided before"],
}


def learned_from(experiment) -> pd.DataFrame:
    """How well classifiers of the main model rank tokens, by what they learned from.

    One row a rule, kind of examples (`learned_from`, "" of the margin), choice of `features`, seed and task;
    its other columns are those of `decisions.overall_ranking`.
    """
    comparison = _Comparison(experiment)
    margin = RULES[MARGIN].policy(0.9, experiment.profile.results.model_dump())
    tables = comparison.ranks(margin, rule=MARGIN, learned_from="", features="", seed=0)
    traces = comparison.training_traces()
    last_kind = list(traces)[-1]
    for kind, training_trace in traces.items():
        tables += comparison.of_classifiers(kind, training_trace)
        tables += comparison.of_history(kind, training_trace, every_choice=kind == last_kind)
    return pd.concat(tables, ignore_index=True)


def choices_of_features() -> Iterator[tuple[str, list[str]]]:
    """The choices of features, and what each goes without."""
    yield ALL, []
    for group, names in GROUPS.items():
        yield f"without {group}", names
        yield f"only {group}", [name for name in FEATURES if name not in names]


class _Comparison:
    """The main model, what its classifiers learn from, and the test examples whose tokens they rank."""

    def __init__(self, experiment):
        self.experiment = experiment
        self.profile = experiment.profile
        self.model = experiment.models([MAIN_MODEL])[MAIN_MODEL]
        self.seeds = range(self.profile.classifiers.seeds)
        tests = load_tasks(self.profile, "test", self.profile.results.examples)
        self.tests = {task.name: self._traced(task.name, task.inputs) for task in tests}

    def training_traces(self) -> dict[str, Trace]:
        """One trace of each kind, of as many examples of a task; `UNSEEN` only where a corpus has such."""
        seen = []
        targets = []
        unseen = []
        wanted = self.profile.classifiers.tokens // SHARE
        names = list(self.profile.corpora)
        seen_tasks = [with_tokens(self.profile, "train", name, wanted) for name in names]
        unseen_tasks = [with_tokens(self.profile, "unseen", name, wanted) for name in names]
        compares_unseen = any(len(task) for task in unseen_tasks)
        for seen_task, unseen_task in zip(seen_tasks, unseen_tasks, strict=True):
            count = min(len(seen_task), len(unseen_task)) if compares_unseen else len(seen_task)
            seen += seen_task.inputs[:count]
            targets += seen_task.targets[:count]
            unseen += unseen_task.inputs[:count]
        traces = {
            REFERENCES: self._traced("references", seen, targets),
            OUTPUTS: self._traced("outputs", seen),
        }
        return traces | ({UNSEEN: self._traced("unseen", unseen)} if compares_unseen else {})

    def _traced(self, name: str, inputs: list[str], targets: list[str] | None = None) -> Trace:
        """The model's own outputs, or along some targets, with states."""
        longest = self.profile.results.max_new_tokens
        states = self.experiment.scratch(f"{name}.npy")
        return trace(self.model, inputs, targets, max_new_tokens=longest, states=states)

    def of_classifiers(self, kind: str, training_trace: Trace) -> list[pd.DataFrame]:
        """The classifiers on states, every seed."""
        tables = []
        for rule, seed in product(ON_STATES, self.seeds):
            variant = RULES[rule].classifier
            options = variant.options(self.model.network.config.hidden_size)
            learning = how_it_learns(self.profile, rule)
            classifier, _ = train_classifier(
                variant.kind, training_trace, self.model, seed=seed, **learning, **options
            )
            policy = RULES[rule].policy(0.9, self.profile.results.model_dump(), {rule: classifier})
            tables += self.ranks(policy, rule=rule, learned_from=kind, features="states", seed=seed)
        return tables

    def ranks(self, policy: ExitPolicy, **labels) -> list[pd.DataFrame]:
        """How well a policy ranks the tokens of the test examples; one table a task."""
        replays = {task: replay_policy(test, policy, self.model) for task, test in self.tests.items()}
        return [overall_ranking(replayed, task=task, **labels) for task, replayed in replays.items()]

    def of_history(self, kind: str, training_trace: Trace, every_choice: bool) -> list[pd.DataFrame]:
        """The history of predictions, every seed; with all features, or with every choice of them."""
        import torch

        data = self._histories(training_trace)
        tests = {task: self._histories(test) for task, test in self.tests.items()}
        tables = []
        choices = list(choices_of_features()) if every_choice else [(ALL, [])]
        for seed, (features, without) in product(self.seeds, choices):
            classifier = self._untrained(seed)
            fit_history(classifier, [data], without, seed=seed, **how_it_learns(self.profile, HISTORY))
            for task, test in tests.items():
                with torch.no_grad():
                    scores = classifier.log_odds(test.features).cpu().numpy()
                labels = test.labels.cpu().numpy()
                area = area_interval(scores, labels, self.tests[task].sequence)
                row = {"task": task, "rule": HISTORY, "learned_from": kind, "features": features}
                tables.append(pd.DataFrame([row | {"seed": seed} | area.columns("roc_area", "roc_area_")]))
        return tables

    def _histories(self, seen: Trace) -> Histories:
        policy = deciding_policy(self.profile, HISTORY)
        return histories(self._untrained(0), StoredStates(seen, self.model), "consistency", policy)

    def _untrained(self, seed: int):
        import torch

        variant = RULES[HISTORY].classifier
        width = self.model.network.config.hidden_size
        classifier = new_classifier(variant.kind, width, seed, **variant.options(width))
        return classifier.to(self.model.device, torch.promote_types(self.model.network.dtype, torch.float32))
