"""Statements on saturation, compared with what 02 measures; all about CALM.

Tables: `selections` (easy and difficult prefixes), `depth` (what predicts it), `reached` (by layer),
`confident` and `thirds`. Prefixes are selected by loss: selected by similarity, they differ in it by
construction. Parameter: `layers`, the depth.
"""

from ...analysis.statistics import Estimate
from ..statement import Rows, statement

EASY = {"model": "calm", "selected_by": "loss", "group": "easy"}
DIFFICULT = {"model": "calm", "selected_by": "loss", "group": "difficult"}


def rises_after(selections: Rows, number: int, **values) -> Estimate:
    """The share of prefixes whose similarity rises strictly after one of the three layers that 02 looks at.

    `number` 0, 1 and 2 are the first layer, a sixth and a third of the layers.
    """
    prefix = "rises_after_"
    names = selections.values("property", **values, property=lambda name: name.startswith(prefix)).value
    ordered = sorted(names, key=lambda name: int(name.removeprefix(prefix)))
    return selections.value("mean", **values, property=ordered[number])


@statement(
    "easy states saturate earlier",
    source="MEE report, section 4",
    quote="Easy prefixes have their first similar state much earlier than difficult ones.",
    published="40 % against 81 % of the depth (layers 8.65 and 18.46 of 24, counted from 0)",
    judged_by="states and tokens",
)
def easy_states_saturate_earlier(results):
    easy = results.selections.value("mean", **EASY, property="first_similar")
    difficult = results.selections.value("mean", **DIFFICULT, property="first_similar")
    shares = f"{easy / results.layers:.0%} against {difficult / results.layers:.0%} of the depth"
    return shares, easy / results.layers < difficult / results.layers - 1 / 12


@statement(
    "easy prefixes are longer",
    source="MEE report, section 4",
    quote="Easy prefixes are considerably longer than difficult ones.",
    published="58.16 against 11.48 tokens",
    judged_by="states and tokens",
)
def easy_prefixes_are_longer(results):
    easy = results.selections.value("mean", **EASY, property="prefix_tokens")
    difficult = results.selections.value("mean", **DIFFICULT, property="prefix_tokens")
    return f"{easy:.2f} against {difficult:.2f}", easy > 1.5 * difficult


@statement(
    "easy states rise from the first layer",
    source="MEE report, section 4",
    quote="For more easy than difficult prefixes similarity rises strictly from the first layer on.",
    published="24 % against 3 %",
    judged_by="states and tokens",
)
def easy_states_rise_from_the_first_layer(results):
    easy = rises_after(results.selections, 0, **EASY)
    difficult = rises_after(results.selections, 0, **DIFFICULT)
    return f"{easy:.1%} against {difficult:.1%}", easy > difficult + 0.05


@statement(
    "difficult states rise later on",
    source="MEE report, section 4",
    quote=(
        "For nearly all difficult prefixes similarity rises strictly after a sixth of the layers (4 of 24)."
    ),
    published="97 %",
    judged_by="states and tokens",
)
def difficult_states_rise_later_on(results):
    difficult = rises_after(results.selections, 1, **DIFFICULT)
    return f"{difficult:.1%}", difficult > 0.9


@statement(
    "difficult states rise more than easy ones later on",
    source="MEE report, section 4",
    quote=(
        "After a third of the layers (8 of 24) similarity rises strictly for more difficult than easy "
        "prefixes."
    ),
    published="98 % against 85 %",
    judged_by="states and tokens",
)
def difficult_states_rise_more_than_easy_ones_later_on(results):
    difficult = rises_after(results.selections, 2, **DIFFICULT)
    easy = rises_after(results.selections, 2, **EASY)
    return f"{difficult:.1%} against {easy:.1%}", difficult > easy


@statement(
    "length predicts depth",
    source="MEE report, section 4",
    quote="An exit rule could benefit from the length: longer prefixes settle earlier.",
    published="suggested",
    judged_by="states and tokens",
)
def length_predicts_depth(results):
    correlation = results.depth.value("spearman", model="calm", measure="prefix_tokens", depth="settled_from")
    return f"rank correlation {correlation:+z.2f}", correlation < 0


@statement(
    "the first layers are of no use",
    source="MEE report, section 4",
    quote=(
        "The first few layers cannot be used for exits, even for the easiest prefixes (here, those of low "
        "loss have their final prediction at layer 3 or later, on average)."
    ),
    published="no similar state",
    judged_by="states and tokens",
)
def the_first_layers_are_of_no_use(results):
    settled = results.selections.value("mean", **EASY, property="settled_from")
    similar = results.reached.value("share", model="calm", depth="first_similar", layer=2)
    ours = f"final from layer {settled:.2f}; {similar:.1%} of all have a similar state by layer 2"
    return ours, settled > 2.5


@statement(
    "confident without saturation",
    source="MEE report, section 5",
    quote=(
        "A layer can be confident of a token while its state is far from the last one (here: after a third "
        "of the layers, more than a tenth of the tokens with a probability above 0.9 have such a state)."
    ),
    published="argued",
    judged_by="confidence",
)
def confident_without_saturation(results):
    unsaturated = results.confident.value("unsaturated", model="calm")
    return f"{unsaturated:.1%}", unsaturated > 0.1


@statement(
    "tokens get more certain along the output",
    source="MEE report, section 4",
    quote=(
        "The space of likely tokens is larger at the beginning of an output (here, entropy at full depth "
        "in the first third against the last)."
    ),
    published="argued",
    judged_by="confidence",
)
def tokens_get_more_certain_along_the_output(results):
    begin = results.thirds.value("entropy", model="calm", part=1)
    end = results.thirds.value("entropy", model="calm", part=3)
    return f"{begin:.3f} against {end:.3f} nats", begin > end
