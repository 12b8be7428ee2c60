"""Statements of the survey about confidence, compared with what 10 measures.

Tables: `thinking` (overthinking), `fake` (confidence by layer). Parameters: `first` and `last` (layers).
"""

from ..statement import statement


@statement(
    "deep layers overthink",
    source="Survey, section 1 (Kaya et al. 2019)",
    quote="Some tokens that an earlier layer has right are wrong at the last layer (here, at least 1 %).",
    published="named, no number",
    judged_by="predictions",
)
def deep_layers_overthink(results):
    share = results.thinking.value("overthought", model="calm")
    return f"{share:.1%} of the tokens", share > 0.01


@statement(
    "confidence is fake at early layers",
    source="Survey, sections 2 and 7.3",
    quote=(
        "Tokens that an early exit is confident of are wrong more often than those that the last layer is "
        "confident of."
    ),
    published="a figure on SST-2",
    judged_by="predictions",
)
def confidence_is_fake_at_early_layers(results):
    early = results.fake.value("wrong", model="calm", layer=results.first)
    late = results.fake.value("wrong", model="calm", layer=results.last)
    return f"{early:.1%} against {late:.1%}", early > late


@statement(
    "training for exits cures fake confidence",
    source="not asked by the survey",
    of_our_own=True,
    quote=(
        "Of the tokens that the first exit is confident of, fewer are wrong under CALM than under vanilla."
    ),
    published="not tested",
    judged_by="predictions",
    models=["calm", "vanilla"],
)
def training_for_exits_cures_fake_confidence(results):
    calm = results.fake.value("wrong", model="calm", layer=results.first)
    vanilla = results.fake.value("wrong", model="vanilla", layer=results.first)
    return f"{calm:.1%} against {vanilla:.1%}", calm < vanilla
