"""Claims as code: what the papers say, and what our tables say about it.

A claim is a sentence of a paper in our own words with a number or a predicate read off a table. Its verdict is "holds" or
"does not hold" for the data at hand; a claim that does not hold is a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .tasks.scores import PRIMARY as PRIMARY


@dataclass(frozen=True)
class Claim:
    """One testable statement.

    Attributes:
        name: short, for tables.
        source: paper and place.
        statement: what it says, in our words.
        published: the published value, as text.
        measure: tables of one task -> our value, as text.
        holds: tables of one task -> whether the statement is true of them.
        models: the models it speaks of; without one of them it cannot be tested.
    """

    name: str
    source: str
    statement: str
    published: str
    measure: Callable[[dict[str, pd.DataFrame]], str]
    holds: Callable[[dict[str, pd.DataFrame]], bool]
    models: tuple[str, ...] = ()


def judge(claims: list[Claim], tables: dict[str, dict[str, pd.DataFrame]]) -> pd.DataFrame:
    """Checks every claim on every task. `tables`: task -> name of the table -> table."""
    rows = []
    for claim in claims:
        for task, found in tables.items():
            testable = set(claim.models) <= {model for table in found.values() for model in table["model"]}
            ours = claim.measure(found) if testable else ""
            verdict = "cannot be tested" if not testable else "holds" if claim.holds(found) else "does not hold"
            rows.append(
                {
                    "claim": claim.name, "source": claim.source, "statement": claim.statement, "published": claim.published,
                    "task": task, "ours": ours, "verdict": verdict,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def value(table: pd.DataFrame, column: str, model: str, layer: int) -> float:
    """One number of a table with columns `model` and `layer`."""
    return float(table.loc[(table.model == model) & (table.layer == layer), column].iloc[0])


def curve_of(table: pd.DataFrame, column: str, model: str) -> np.ndarray:
    """A column over the blocks of one model, `[layer]`."""
    return table[table.model == model].sort_values("layer")[column].to_numpy(dtype=np.float64)


def first_above(curve: np.ndarray, level: float) -> int:
    """The first block (1-based) at which a curve reaches a level; one past the last if it never does."""
    above = np.flatnonzero(curve >= level)
    return int(above[0]) + 1 if len(above) else len(curve) + 1


def _stable(tables, model: str, layer: int) -> float:
    return value(tables["stable"], "share", model, layer)


def _confidence(tables, model: str) -> np.ndarray:
    return curve_of(tables["confidence"], "confidence", model)


def _half(tables, model: str) -> int:
    return first_above(_confidence(tables, model), 0.5)


def _shape(tables, model: str) -> tuple[float, float, float]:
    """Mean confidence at FREE's exit point, its lowest value after it, and at the last block."""
    curve = _confidence(tables, model)
    exit_layer = len(curve) // 3
    return curve[exit_layer - 1], curve[exit_layer:].min(), curve[-1]


def monotonicity_claims() -> list[Claim]:
    """The statements of MEE, section 3, on tables `stable` (Figure 1) and `confidence` (Figure 2)."""
    report, blog = "MEE report, section 3", "MEE blog, section 2"
    return [
        Claim(
            "CALM settled after block 2", report, "Under CALM, 75 % of the tokens keep their top-1 after block 2.", "75 %",
            lambda t: f"{_stable(t, 'calm', 2):.1%}", lambda t: _stable(t, "calm", 2) >= 0.75,
            models=("calm",),
        ),
        Claim(
            "CALM settled after block 4", report, "Under CALM, 90 % of the tokens keep their top-1 after block 4.", "90 %",
            lambda t: f"{_stable(t, 'calm', 4):.1%}", lambda t: _stable(t, "calm", 4) >= 0.9,
            models=("calm",),
        ),
        Claim(
            "vanilla settles later", report, "The vanilla model changes its top-1 far more often after block 4 than CALM.",
            "lower curve", lambda t: f"{_stable(t, 'vanilla', 4):.1%} against {_stable(t, 'calm', 4):.1%}",
            lambda t: _stable(t, "vanilla", 4) < _stable(t, "calm", 4) - 0.05,
            models=("vanilla", "calm"),
        ),
        Claim(
            "FREE settles later", report, "FREE too changes its top-1 far more often after block 4 than CALM.",
            "lower curve", lambda t: f"{_stable(t, 'free', 4):.1%} against {_stable(t, 'calm', 4):.1%}",
            lambda t: _stable(t, "free", 4) < _stable(t, "calm", 4) - 0.05,
            models=("calm", "free"),
        ),
        Claim(
            "CALM grows block by block", blog, "CALM's mean confidence in the final prediction never falls from block to block.",
            "monotonic", lambda t: f"largest fall {max(0.0, -np.diff(_confidence(t, 'calm')).min()):.4f}",
            lambda t: bool((np.diff(_confidence(t, "calm")) >= 0).all()),
            models=("calm",),
        ),
        Claim(
            "vanilla gains confidence later", blog, "Vanilla's mean confidence passes one half at a later block than CALM's.",
            "much later", lambda t: f"block {_half(t, 'vanilla')} against {_half(t, 'calm')}",
            lambda t: _half(t, "vanilla") > _half(t, "calm"),
            models=("vanilla", "calm"),
        ),
        Claim(
            "FREE dips after its exit", blog,
            "FREE's mean confidence rises to its exit point, falls after it, and rises again to the end.", "rise, dip, rise",
            lambda t: "{:.3f}, {:.3f}, {:.3f}".format(*_shape(t, "free")),
            lambda t: _shape(t, "free")[1] < min(_shape(t, "free")[0], _shape(t, "free")[2]),
            models=("free",),
        ),
        Claim(
            "late weighting keeps early blocks free", "MEE blog, closing section (a hypothesis)",
            "Weighting only the last 70 % of the blocks leaves the first 30 % unsettled, and settles as early as CALM after them.",
            "not tested",
            lambda t: f"block 3: {_stable(t, 'late_weighted', 3):.1%} against {_stable(t, 'calm', 3):.1%}; "
            f"block 6: {_stable(t, 'late_weighted', 6):.1%} against {_stable(t, 'calm', 6):.1%}",
            lambda t: _stable(t, "late_weighted", 3) < _stable(t, "calm", 3) - 0.05
            and _stable(t, "late_weighted", 6) > _stable(t, "calm", 6) - 0.05,
            models=("calm", "late_weighted"),
        ),
    ]  # fmt: skip


def _property(tables, name: str, group: str, model: str = "calm") -> float:
    found = tables["table_1"]
    return float(found[(found.model == model) & (found.property == name) & (found.group == group)]["mean"].iloc[0])


def _rises(tables, place: int, group: str) -> float:
    """Share of prefixes that rise strictly after the first, second or third of the blocks asked about."""
    names = sorted({p for p in tables["table_1"].property if p.startswith("rises_after_")}, key=lambda name: int(name.split("_")[-1]))
    return _property(tables, names[place], group)


def _both(tables, name: str) -> str:
    return f"{_property(tables, name, 'easy'):.2f} against {_property(tables, name, 'difficult'):.2f}"


def _length_and_depth(tables) -> pd.Series:
    found = tables["depth"]
    return found[(found.model == "calm") & (found.measure == "prefix_tokens") & (found.depth == "settled_from")].iloc[0]


def _first_block(tables) -> float:
    found = tables["reached"]
    return float(found[(found.model == "calm") & (found.depth == "first_similar") & (found.layer == 2)].share.iloc[0])


def saturation_claims() -> list[Claim]:
    """The statements of MEE, section 4, on tables `table_1`, `depth` (what foretells it) and `reached`; all about CALM."""
    report, model = "MEE report, section 4", ("calm",)
    return [
        Claim(
            "easy states saturate earlier", report, "Easy prefixes have their first similar state much earlier than difficult ones.",
            "block 9.65 against 19.46 of 24", lambda t: _both(t, "first_similar"),
            lambda t: _property(t, "first_similar", "easy") < _property(t, "first_similar", "difficult") - 1, model,
        ),
        Claim(
            "easy prefixes are longer", report, "Easy prefixes are considerably longer than difficult ones.", "58.16 against 11.48 tokens",
            lambda t: _both(t, "prefix_tokens"), lambda t: _property(t, "prefix_tokens", "easy") > 1.5 * _property(t, "prefix_tokens", "difficult"),
            model,
        ),
        Claim(
            "easy states rise from the first block", report, "More easy than difficult prefixes rise strictly from the first block on.",
            "24 % against 3 %", lambda t: f"{_rises(t, 0, 'easy'):.1%} against {_rises(t, 0, 'difficult'):.1%}",
            lambda t: _rises(t, 0, "easy") > _rises(t, 0, "difficult") + 0.05, model,
        ),
        Claim(
            "difficult states rise later on", report, "Nearly all difficult prefixes rise strictly after a sixth of the blocks (4 of 24).",
            "97 %", lambda t: f"{_rises(t, 1, 'difficult'):.1%}", lambda t: _rises(t, 1, "difficult") > 0.9, model,
        ),
        Claim(
            "difficult states rise more than easy ones later on", report,
            "After a third of the blocks (8 of 24) more difficult than easy prefixes rise strictly.", "98 % against 85 %",
            lambda t: f"{_rises(t, 2, 'difficult'):.1%} against {_rises(t, 2, 'easy'):.1%}",
            lambda t: _rises(t, 2, "difficult") > _rises(t, 2, "easy"), model,
        ),
        Claim(
            "length foretells depth", report, "An exit rule could benefit from the length: longer prefixes settle earlier.", "suggested",
            lambda t: f"rank correlation {_length_and_depth(t).spearman:+.2f} ({_length_and_depth(t).low:+.2f} to {_length_and_depth(t).high:+.2f})",
            lambda t: bool(_length_and_depth(t).high < 0), model,
        ),
        Claim(
            "the first blocks are of no use", report, "The first few blocks cannot be used for exits, even for the easiest prefixes.",
            "no similar state", lambda t: f"{_first_block(t):.1%} have a similar state by block 2", lambda t: _first_block(t) < 0.05, model,
        ),
    ]  # fmt: skip


MEE_RULES, CALM_RULES = ("three_hidden", "lstm", "rising_top1"), ("softmax_margin", "hidden_similarity", "hidden")


def _area(tables, rule: str) -> pd.Series:
    found = tables["ranking"]
    return found[(found.model == "calm") & (found.target == "consistency") & (found.rule == rule)].iloc[0]


def _published(tables, column: str, rules: tuple[str, ...], level: float = 0.9) -> list[float]:
    found = tables["published"]
    found = found[found.threshold == level].set_index("rule")
    return [float(found.loc[rule, column]) for rule in rules]


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.1%}" for value in values)


def _better(tables, rule: str, than: str) -> bool:
    return _area(tables, rule).roc_area_low > _area(tables, than).roc_area_high


def _areas(tables, *rules: str) -> str:
    return " against ".join(f"{_area(tables, rule).roc_area:.3f}" for rule in rules)


def _precision(tables, rule: str) -> float:
    found = tables["decisions"]
    found = found[(found.rule == rule) & (found.above > 0)]
    return float((found.precision * found.above).sum() / found.above.sum())


SEVERAL = ("three_hidden", "low_rank_three", "narrow_lstm", "lstm")


def _several(tables) -> pd.DataFrame:
    """Rules over several blocks that keep the score on the half that chose them and are not refuted by the other."""
    found = tables["kept"]
    return found[found.rule.isin(SEVERAL) & found.not_refuted]


def classifier_claims() -> list[Claim]:
    """The statements of MEE, sections 5 to 8, on tables `ranking`, `published` (thresholds), `decisions` and `kept`; all about CALM."""
    report, blog, model = "MEE report, section 5", "MEE blog, section 3", ("calm",)
    return [
        Claim(
            "three blocks decide better than one", report, "A classifier on three states decides better than one on the current state.",
            "hypothesis", lambda t: f"area {_areas(t, 'three_hidden', 'hidden')}", lambda t: _better(t, "three_hidden", "hidden"), model,
        ),
        Claim(
            "it is the blocks, not the parameters", "not asked by the papers",
            "Three states decide better than one state with as many parameters.", "not tested",
            lambda t: f"area {_areas(t, 'three_hidden', 'wide_hidden')}", lambda t: _better(t, "three_hidden", "wide_hidden"), model,
        ),
        Claim(
            "an LSTM decides better than one block", report, "An LSTM over all states decides better than a classifier on the current state.",
            "hypothesis", lambda t: f"area {_areas(t, 'lstm', 'hidden')}", lambda t: _better(t, "lstm", "hidden"), model,
        ),
        Claim(
            "states say more than probabilities", report, "A trained classifier on states can tell more than the softmax scores do.",
            "motivation", lambda t: f"area {_areas(t, 'three_hidden', 'softmax_margin')}",
            lambda t: _area(t, "three_hidden").roc_area_low > _area(t, "softmax_margin").roc_area, model,
        ),
        Claim(
            "three rising scores above 0.9 are final", report, "Three rising top-1 scores, the last above 0.9, almost never change later.",
            "almost never", lambda t: f"{_precision(t, 'rising_top1'):.1%} stay", lambda t: _precision(t, "rising_top1") > 0.99, model,
        ),
        Claim(
            "MEE keeps more quality at 0.9", blog, "At a threshold of 0.9 MEE's three measures score far above CALM's three.",
            "SQuAD F1 86.1 to 88.6 against 76.0 to 86.9",
            lambda t: f"keep {_listed(_published(t, 'retained', MEE_RULES))} against {_listed(_published(t, 'retained', CALM_RULES))}",
            lambda t: np.mean(_published(t, "retained", MEE_RULES)) > np.mean(_published(t, "retained", CALM_RULES)) + 0.02, model,
        ),
        Claim(
            "softmax and saturation ruin the output at 0.9", blog, "At 0.9 the softmax margin and saturation lose most of the score.",
            "CNN/DM ROUGE-1 12.9 and 3.3 of 43.8",
            lambda t: f"keep {_listed(_published(t, 'retained', ('softmax_margin', 'hidden_similarity')))}",
            lambda t: max(_published(t, "retained", ("softmax_margin", "hidden_similarity"))) < 0.5, model,
        ),
        Claim(
            "MEE is slower than no exit", blog, "MEE's measures are mostly slower than no exit (here: take more operations, at 0.9).",
            "8.4 to 11.3 against 11.0 samples a second (SQuAD)", lambda t: f"operations {_listed(_published(t, 'flops_share', MEE_RULES))} of no exit",
            lambda t: sum(share > 1 for share in _published(t, "flops_share", MEE_RULES)) >= 2, model,
        ),
        Claim(
            "several blocks can be cheap and keep quality", "MEE blog, open question 1",
            "A rule over several blocks keeps 99 % of the score for fewer operations than no exit.", "open",
            lambda t: "operations " + _listed(list(_several(t).flops_share)) if len(_several(t)) else "none keeps it on both halves",
            lambda t: bool((_several(t).flops_share < 1).any()), model,
        ),
    ]  # fmt: skip


def _recall(tables, model: str, layer: int, k: int) -> float:
    found = tables["recall"]
    return float(found[(found.model == model) & (found.layer == layer) & (found.k == k)].recall.iloc[0])


def _excess(tables, model: str, layer: int) -> pd.Series:
    found = tables["honesty"]
    return found[(found.model == model) & (found.layer == layer)].iloc[0]


def _minimum(tables, model: str) -> int:
    found = tables["minimum"]
    return int(found[found.model == model].minimum_block.iloc[0])


FORMS = ("fixed", "decaying", "adaptive")


def _reduced(tables, column: str, forms: tuple[str, ...] = FORMS) -> list[float]:
    """A column of the complete table for CALM: of the run that is not pruned, then of each form."""
    found = tables["complete"]
    found = found[found.model == "calm"].set_index("reduction")
    return [float(found.loc[form, column]) for form in ("unpruned", *forms)]


def _scores(tables) -> str:
    unpruned, *rest = _reduced(tables, "score")
    return f"{unpruned:.1f} unpruned, " + ", ".join(f"{score:.1f} {form}" for form, score in zip(FORMS, rest, strict=True))


def _wanted(tables, rule: str, wanted: float = 0.98) -> float:
    found = tables["equal"]
    return float(found[(found.rule == rule) & (found.wanted == wanted)].flops_share.iloc[0])


def pruning_claims() -> list[Claim]:
    """The statements of "Not all FLOPs" about the softmax, on tables `recall`, `honesty`, `minimum`, `complete` and `equal`."""
    paper, results, calm = "Not all FLOPs, section 4", "Not all FLOPs, softmax results", ("calm",)
    return [
        Claim(
            "the final token ranks high early", paper, "The final token is often highly ranked after the first few blocks.", "figure",
            lambda t: f"{_recall(t, 'vanilla', 2, 8):.1%} among the best 8 after block 2", lambda t: _recall(t, "vanilla", 2, 8) >= 0.5, ("vanilla",),
        ),
        Claim(
            "more so after fine-tuning", paper, "The final token ranks higher in fine-tuned than in pre-trained models.", "figure",
            lambda t: f"{_recall(t, 'vanilla', 4, 8):.1%} against {_recall(t, 'base', 4, 8):.1%} among the best 8 after block 4",
            lambda t: _recall(t, "vanilla", 4, 8) > _recall(t, "base", 4, 8) + 0.02, ("base", "vanilla"),
        ),
        Claim(
            "early blocks are too sure", paper, "The first blocks are confident where they are wrong.", "figure",
            lambda t: f"after block 1: confidence {_excess(t, 'vanilla', 1).confidence:.1%}, right {_excess(t, 'vanilla', 1).accuracy:.1%}",
            lambda t: bool(_excess(t, "vanilla", 1).confidence_low > _excess(t, "vanilla", 1).accuracy_high), ("vanilla",),
        ),
        Claim(
            "fine-tuned models may exit earlier", paper, "The minimum exit block of a fine-tuned model is smaller.", "expected",
            lambda t: f"block {_minimum(t, 'vanilla')} against {_minimum(t, 'base')}", lambda t: _minimum(t, "vanilla") < _minimum(t, "base"),
            ("base", "vanilla"),
        ),
        Claim(
            "pruning costs score", results, "Every way of pruning lowers the score.", "SAMSum ROUGE-L 36.0 to 2.5 and 0", _scores,
            lambda t: all(score < 0.98 * _reduced(t, "score")[0] for score in _reduced(t, "score")[1:]), calm,
        ),
        Claim(
            "pruning saves work", results, "Pruned runs take less time (here: fewer operations) than unpruned ones.", "36.0 to 7.6 s (CNN/DM, decaying)",
            lambda t: "operations " + _listed(_reduced(t, "flops_share")) + " of no exit",
            lambda t: all(share < _reduced(t, "flops_share")[0] for share in _reduced(t, "flops_share")[1:]), calm,
        ),
        Claim(
            "only irrelevant tokens are discarded", paper, "What pruning discards is irrelevant: the output stays what it was.", "argued",
            lambda t: "other tokens " + ", ".join(f"{share:.2%}" for share in _reduced(t, "other_token")[1:]),
            lambda t: max(_reduced(t, "other_token")[1:]) < 0.01, calm,
        ),
        Claim(
            "pruned confidence is cheaper than no exit", "Not all FLOPs, title", "With pruning, deciding on probabilities pays at 98 % of predictions kept.",
            "open", lambda t: f"operations {_wanted(t, 'unpruned'):.0%} unpruned, {_wanted(t, 'fixed'):.0%} fixed, of no exit",
            lambda t: _wanted(t, "fixed") < 1, calm,
        ),
    ]  # fmt: skip


def _mean_area(tables, rule: str, model: str = "calm") -> float:
    found = tables["ranking"]
    return float(found[(found.rule == rule) & (found.model == model)].roc_area.mean())


def _at(tables, table: str, rule: str, column: str, wanted: float | None = None) -> float:
    found = tables[table]
    found = found[found.rule == rule] if wanted is None else found[(found.rule == rule) & (found.wanted == wanted)]
    return float(found[column].iloc[0])


def contrast_claims() -> list[Claim]:
    """The statements of "Not all FLOPs" about contrast, on tables `ranking`, `equal`, `threshold`, `verdict`, `decoder` and `head`; all about CALM."""
    paper, final, calm = "Not all FLOPs, contrastive decoding", "Not all FLOPs, final run", ("calm",)

    def blocks(rule):
        return lambda t: f"block {_at(t, 'equal', rule, 'mean_exit_layer', 0.98):.2f} against {_at(t, 'equal', 'unpruned', 'mean_exit_layer', 0.98):.2f}"

    return [
        Claim(
            f"{name} contrast improves confidence of {model}", paper, f"The notion of confidence is improved by {name} contrast ({model}).", "speculated",
            lambda t, rule=rule, model=model: f"area {_mean_area(t, rule, model):.3f} against {_mean_area(t, 'unpruned', model):.3f}",
            lambda t, rule=rule, model=model: _mean_area(t, rule, model) > _mean_area(t, "unpruned", model) + 0.005, (model,),
        )
        for name, rule in (("weighted", "weighted"), ("JSD", "jsd")) for model in ("calm", "vanilla")
    ] + [
        Claim(
            "weighted contrast exits earlier at equal quality", paper, "With weighted contrast tokens exit earlier at 98 % of predictions kept.", "expected",
            blocks("weighted"), lambda t: _at(t, "equal", "weighted", "mean_exit_layer", 0.98) < _at(t, "equal", "unpruned", "mean_exit_layer", 0.98) - 0.05,
            calm,
        ),
        Claim(
            "contrast is a Pareto improvement", "Not all FLOPs, introduction", "Contrast improves the score at no more cost.", "claimed",
            lambda t: f"{t['verdict'].improves.sum()} of {len(t['verdict'])} settings, {t['verdict'].worse.sum()} worse",
            lambda t: bool(t["verdict"].improves.any()), calm,
        ),
        Claim(
            "a contrasted token is a better token", "Gera et al. 2023, as cited", "The contrast of two blocks picks better tokens than the last block.",
            "premise", lambda t: f"keeps {_listed(list(t['decoder'][t['decoder'].rule != 'none'].retained))}",
            lambda t: bool((t["decoder"][t["decoder"].rule != "none"].low > 1).any()), ("calm", "vanilla"),
        ),
        Claim(
            "JSD keeps predictions", final, "With JSD contrast as confidence little is lost at the same threshold (here: at most 1 % of predictions more).",
            "F1 91.47 against 92.45", lambda t: f"{_at(t, 'threshold', 'jsd', 'same_token'):.1%} against {_at(t, 'threshold', 'unpruned', 'same_token'):.1%} of predictions stay",
            lambda t: _at(t, "threshold", "jsd", "same_token") > _at(t, "threshold", "unpruned", "same_token") - 0.01, calm,
        ),
        Claim(
            "without the mass, contrast is a looser threshold", "not asked by the papers",
            "Without the head's mass contrast exits earlier at the same threshold and keeps fewer predictions.", "not tested",
            lambda t: f"block {_at(t, 'threshold', 'weighted, without the mass', 'mean_exit_layer'):.2f} against "
            f"{_at(t, 'threshold', 'unpruned', 'mean_exit_layer'):.2f}, {_at(t, 'threshold', 'weighted, without the mass', 'same_token'):.1%} against "
            f"{_at(t, 'threshold', 'unpruned', 'same_token'):.1%} stay",
            lambda t: _at(t, "threshold", "weighted, without the mass", "mean_exit_layer") < _at(t, "threshold", "unpruned", "mean_exit_layer")
            and _at(t, "threshold", "weighted, without the mass", "same_token") < _at(t, "threshold", "unpruned", "same_token"), calm,
        ),
    ]  # fmt: skip


MEE_MEASURES, CALM_MEASURES = ("three_hidden", "lstm", "rising_top1"), ("softmax_margin", "hidden_similarity", "linear", "hidden")
GUARANTEED = 0.1  # mean textual loss at which calibrated rules are compared; CALM's middle demand


def _demand(tables, delta: float = GUARANTEED) -> pd.DataFrame:
    found = tables["calibrated"]
    return found[(found.kind == "textual") & (found.bound == "hoeffding_bentkus") & (found.delta == delta)].set_index("rule")


def _spent(tables, rules: tuple[str, ...]) -> float:
    """The fewest operations of some rules; no more than those of no exit, which is always there to fall back on."""
    return float(_demand(tables).loc[list(rules), "flops_share"].clip(upper=1.0).min())


def _exit(tables, rule: str) -> str:
    at = _demand(tables).loc[rule].mean_exit_layer
    return "none" if np.isnan(at) else f"{at:.1f}"


def _setting(tables, model: str, rule: str) -> pd.Series:
    found = tables["settings"]
    return found[(found.model == model) & (found.rule == rule)].iloc[0]


def _kept(tables, fault: str, version: str, rule: str, batch: int | None = None) -> float:
    found = tables["faults"]
    found = found[(found.fault == fault) & (found.version == version) & (found.rule == rule) & (found.model == "calm")]
    return float((found if batch is None else found[found.batch == batch]).retained.iloc[0])


def _faulty(tables, fault: str, rule: str, batch: int | None = None) -> str:
    return f"{_kept(tables, fault, 'faulty', rule, batch):.1%} against {_kept(tables, fault, 'correct', rule, batch):.1%}"


def _fastest_of_several(tables) -> pd.DataFrame:
    found = tables["answer"]
    return found[found.rule.isin(("rising_top1", *SEVERAL)) & (found.batch == 1)]


def _broken(tables) -> float:
    found = tables["rates"]
    return float(found[found.bound != "no_test"].violated.max())


def results_claims(limit: float) -> list[Claim]:
    """The statements about calibration, speed and faults, on tables of notebook 06; `limit`: the share of cases that may fail by chance."""
    calm, model = "CALM, results", ("calm",)
    return [
        Claim(
            "the guarantee holds", "CALM, sections 3 and 4", "A calibrated threshold breaks its promise in at most a share eps of the cases (and chance), for every rule.",
            "proved, 95 %", lambda t: f"at worst {_broken(t):.0%} of the splits", lambda t: _broken(t) <= limit, model,
        ),
        Claim(
            "the oracle keeps quality", calm, "Exiting where the prediction is final keeps the score at a small part of the depth.",
            "ROUGE-L 38.24 of 38.32 at 1.53 of 8 blocks",
            lambda t: f"keeps {_setting(t, 'calm', 'oracle').retained:.1%} at block {_setting(t, 'calm', 'oracle').mean_exit_layer:.1f}",
            lambda t: _setting(t, "calm", "oracle").retained >= 0.99 and _setting(t, "calm", "oracle").flops_share < 0.7, model,
        ),
        Claim(
            "calibrated softmax saves blocks", calm, "With a textual loss of at most 0.1 guaranteed, the margin exits well before the last block.",
            "5.73, 3.35, 1.65 of 8 blocks", lambda t: f"block {_exit(t, 'softmax_margin')}",
            lambda t: bool(_demand(t).loc["softmax_margin"].mean_exit_layer < 0.75 * _setting(t, "calm", "none").mean_exit_layer), model,
        ),
        Claim(
            "softmax exits earliest when calibrated", calm, "At the same guaranteed quality the softmax measure exits earlier than classifier and similarity.",
            "figures", lambda t: ", ".join(_exit(t, rule) for rule in ("softmax_margin", "linear", "hidden_similarity")),
            lambda t: bool(_demand(t).loc["softmax_margin"].mean_exit_layer < _demand(t).loc[["linear", "hidden_similarity"]].mean_exit_layer.fillna(np.inf).min()),
            model,
        ),
        Claim(
            "pruning is cheaper at the same guarantee", "Not all FLOPs, title and abstract", "With pruning the margin spends less for the same guaranteed quality.",
            "announced", lambda t: f"operations {_spent(t, ('fixed',)):.1%} against {_spent(t, ('softmax_margin',)):.1%} of no exit",
            lambda t: _spent(t, ("fixed",)) < _spent(t, ("softmax_margin",)), model,
        ),
        Claim(
            "contrast is a Pareto improvement at the same guarantee", "Not all FLOPs, introduction",
            "With contrast less is spent for the same guaranteed quality (both pruned).", "claimed",
            lambda t: f"operations {_spent(t, ('weighted_fixed', 'jsd_fixed')):.1%} against {_spent(t, ('fixed', 'decaying')):.1%} of no exit",
            lambda t: _spent(t, ("weighted_fixed", "jsd_fixed")) < _spent(t, ("fixed", "decaying")), model,
        ),
        Claim(
            "MEE's measures are better at the same guarantee", "MEE blog, section 3", "At the same guaranteed quality MEE's measures spend less than CALM's.",
            "implied (at 0.9)", lambda t: f"operations {_spent(t, MEE_MEASURES):.1%} against {_spent(t, CALM_MEASURES):.1%} of no exit",
            lambda t: _spent(t, MEE_MEASURES) < _spent(t, CALM_MEASURES), model,
        ),
        Claim(
            "several blocks, full quality and faster", "MEE blog, open question 1", "A rule over several blocks keeps 99 % of the score and emits more tokens a second.",
            "open", lambda t: f"{_fastest_of_several(t).speed.max():.2f} of no exit (batch 1)" if len(_fastest_of_several(t)) else "none of the timed ones keeps 99 %",
            lambda t: bool((_fastest_of_several(t).lowest > 1).any()), model,
        ),
        Claim(
            "FREE saves at full quality", "FREE, abstract", "On FREE's own model the adaptive threshold saves work and keeps (here: 98 % of) the score.",
            "claimed",
            lambda t: f"keeps {_setting(t, 'free', 'free_adaptive').retained:.1%} for {_setting(t, 'free', 'free_adaptive').flops_share:.0%} of the operations",
            lambda t: _setting(t, "free", "free_adaptive").retained >= 0.98 and _setting(t, "free", "free_adaptive").flops_share < 1, ("free",),
        ),
        Claim(
            "the depth collapse ruins the margin", "MEE, code (not in the papers)",
            "The published collapse of the softmax margin comes from the decoder, which cuts itself short: so cut, one row at a time, it keeps less than half.",
            "CNN/DM ROUGE-1 12.88 of 43.75", lambda t: f"keeps {_faulty(t, 'depth collapse', 'softmax_margin', 1)}",
            lambda t: _kept(t, "depth collapse", "faulty", "softmax_margin", 1) < 0.5 <= _kept(t, "depth collapse", "correct", "softmax_margin", 1), model,
        ),
        Claim(
            "the depth collapse ruins similarity", "MEE, code (not in the papers)",
            "The published collapse of hidden similarity comes from the same fault: so cut it keeps less than half, and uncut it does not.",
            "CNN/DM ROUGE-1 3.32 of 43.75", lambda t: f"keeps {_faulty(t, 'depth collapse', 'hidden_similarity', 1)}",
            lambda t: _kept(t, "depth collapse", "faulty", "hidden_similarity", 1) < 0.5 <= _kept(t, "depth collapse", "correct", "hidden_similarity", 1), model,
        ),
        Claim(
            "zeros come from positions", "Not all FLOPs, code (not in the papers)",
            "Positions in the kept list emitted as ids explain scores near 0 (below a seventh); ids do not lose a tenth.", "0 (fixed pruning, six of nine rows)",
            lambda t: f"keeps {_faulty(t, 'positions for ids', 'fixed')}",
            lambda t: _kept(t, "positions for ids", "faulty", "fixed") < 1 / 7 and _kept(t, "positions for ids", "correct", "fixed") > 0.9, model,
        ),
        Claim(
            "the sorted list costs the score", "Not all FLOPs, code (not in the papers)",
            "A kept list sorted by id explains losses under decaying pruning (a tenth or more); in order of score it loses less.",
            "SAMSum 2.5 of 36.0, CNN/DM 2.05 of 25.0", lambda t: f"keeps {_faulty(t, 'list sorted by id', 'decaying')}",
            lambda t: _kept(t, "list sorted by id", "faulty", "decaying") < 0.9 < _kept(t, "list sorted by id", "correct", "decaying"), model,
        ),
    ]  # fmt: skip


def ledger(stored: pd.DataFrame, latest: pd.DataFrame) -> pd.DataFrame:
    """One row a statement of all notebooks: on how many tasks it holds.

    Args:
        stored: claims of notebooks, one row a claim and task; those of `latest` are taken from there.
        latest: the claims of notebook 06 itself.

    Returns:
        `notebook`, `claim`, `source`, `statement`, `published`, `ours` (one value a task) and `verdict`: "holds", "does not hold", "holds on some
        tasks" or "cannot be tested".
    """
    both = pd.concat([stored[stored.notebook != "06_results"], latest.assign(notebook="06_results")], ignore_index=True)
    rows = []
    for claim, part in both.groupby("claim", sort=False):
        tested = part[part.verdict != "cannot be tested"]
        held = int((tested.verdict == "holds").sum())
        verdict = "cannot be tested" if tested.empty else "holds" if held == len(tested) else "does not hold" if not held else "holds on some tasks"
        first = part.iloc[0]
        rows.append({"notebook": first.notebook, "claim": claim, "source": first.source, "statement": first.statement, "published": first.published,
                     "ours": "; ".join(map(str, tested.ours)), "tasks": len(tested), "held": held, "verdict": verdict})  # fmt: skip
    return pd.DataFrame(rows)
