"""`make bench PROFILE=smollm2`: a published causal model, beside others who decode it with drafts.

All have the same weights and prompts and decode one prompt at a time, from its text to the output's.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pandas as pd

from mee_utils import Copies, ExitPolicy, Model, generate, plan_drafts
from mee_utils.common.errors import MeeError
from mee_utils.companion.catalogue import MAIN_MODEL
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.inputs import load_profile_model, load_tasks, weights_digest
from mee_utils.companion.result_tables import AGAIN
from mee_utils.decoding.planning import DEFAULT_TOP_K, default_policies
from mee_utils.tasks.loading import Task

from .clock import beside_first, in_random_order

PART = "causal"
# what identifies lines
KEYS = ("profile", "task", "model", "dtype", "decoder", "way", "exit_layer")
PROMPTS = 32
LAYERS = (8, 16, 24)  # at which the shipped adapter was trained to exit
DRAFTED = 3  # tokens at most, before the last layer verifies
THRESHOLD = 0.9  # of the softmax margin, where exits are not verified
PRECISIONS = ("float32", "bfloat16")

FULL = "full depth"  # the ways of decoding; verified ones are lossless
AT_A_LAYER = "exits at a layer, verified"
BY_A_RULE = "exits by a rule, verified"
COPIES = "copies, verified"
PLANNED = "copies, exits or both, planned"
UNVERIFIED = "exits at a layer"
MARGIN = "softmax margin, every layer"
FEW_TOKENS = "softmax margin, few tokens, three layers"
AGAIN_FULL = "again"
COUNTED = ("verified", "accepted", "flops")  # of an output


class Decoded(NamedTuple):
    """An output, and its drafts: those behind a wrong one are neither verified nor counted."""

    ids: list[int]
    text: str
    verified: int = 0
    accepted: int = 0
    flops: float = np.nan  # of the decoder; nobody counts those of others


class Contender(NamedTuple):
    """A decoder, how it drafts or exits, and at which layer where that is fixed; `decode` takes a prompt."""

    decoder: str
    way: str
    exit_layer: int | None
    decode: Callable[[str], Decoded]


def with_transformers(model: Model, length: int, drafted: int | None = None, **options) -> Callable:
    """`generate` of `transformers` at batch 1, with options such as `assistant_early_exit`.

    `drafted` tokens a round, however sure the draft is, where `transformers` would plan otherwise.
    """
    network, tokenizer = model.network, model.tokenizer
    planned = {}
    if drafted:
        planned = {
            "num_assistant_tokens": drafted,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }

    def decode(prompt: str) -> Decoded:
        given = tokenizer(prompt, return_tensors="pt")
        start = given.input_ids.shape[1]
        before = network.generation_config
        network.generation_config = deepcopy(before)
        network.generation_config.update(**planned)  # read from here, wherever the other options are
        try:
            with drafts_of_transformers() as rounds:
                output = network.generate(**given, max_new_tokens=length, do_sample=False, **options)
        finally:
            network.generation_config = before
        output = output[0].tolist()
        text = tokenizer.decode(output[start:], skip_special_tokens=True)
        accepted = [right(draft, output[place:]) for place, draft in rounds]
        verified = [min(n + 1, len(draft)) for n, (_, draft) in zip(accepted, rounds, strict=True)]
        return Decoded(output[start:], text, sum(verified), sum(accepted))

    return decode


def right(draft: list[int], output: list[int]) -> int:
    """How many tokens of a draft are the output's, up to the first that is not."""
    same = [drafted == token for drafted, token in zip(draft, output, strict=False)]
    return same.index(False) if False in same else len(same)


@contextmanager
def drafts_of_transformers() -> Iterator[list[tuple[int, list[int]]]]:
    """The drafts that `transformers` makes meanwhile: where each begins, and its ids."""
    from transformers.generation import candidate_generator as generators

    rounds = []
    kinds = generators.AssistedCandidateGenerator, generators.PromptLookupCandidateGenerator
    own = [kind.get_candidates for kind in kinds]

    def recorded(get: Callable) -> Callable:
        def candidates(generator, input_ids, *args, **options):
            found = get(generator, input_ids, *args, **options)
            place = input_ids.shape[1]
            if found[0].shape[1] > place:
                rounds.append((place, found[0][0, place:].tolist()))
            return found

        return candidates

    try:
        for kind, get in zip(kinds, own, strict=True):
            kind.get_candidates = recorded(get)
        yield rounds
    finally:
        for kind, get in zip(kinds, own, strict=True):
            kind.get_candidates = get


def ours(model: Model, length: int, policy: ExitPolicy | Copies | None = None) -> Callable:
    """Our decoder at batch 1."""

    def decode(prompt: str) -> Decoded:
        made = generate(model, [prompt], policy, max_new_tokens=length, batch_size=1)
        drafts = made.drafts[0] if made.drafts else None
        counts = (drafts.verified, drafts.accepted) if drafts else (0, 0)
        return Decoded(made.token_ids[0], made.texts[0], *counts, made.flops[0])

    return decode


def with_economize(model: Model, length: int, technique: object, drafted: int = 0) -> Callable:
    """`economize`, whose techniques decode the unchanged model."""
    import economize

    decoder = economize.apply(model.network, technique)
    settings = economize.DecodeConfig(cycle_length=1 + drafted)
    ends = model.network.generation_config.eos_token_id

    def decode(prompt: str) -> Decoded:
        given = model.tokenizer(prompt, return_tensors="pt").input_ids[0]
        made = decoder.decode(given, length, decoding=settings, stop=ends)
        text = model.tokenizer.decode(made.tokens, skip_special_tokens=True)
        verified = sum(min(accepted + 1, drafted) for drafted, accepted in made.acceptance)
        accepted = sum(accepted for _, accepted in made.acceptance)
        return Decoded(made.tokens.tolist(), text, verified, accepted)

    return decode


def contenders(
    model: Model, length: int, planned: Mapping[str, ExitPolicy | None], beside_peers: bool
) -> Iterator[Contender]:
    """Who takes part: `generate` of `transformers` first, beside which all else is set, and once more.

    Others that draft take part only `beside_peers`.
    """
    theirs, own = partial(with_transformers, model, length), partial(ours, model, length)
    for way in (FULL, AGAIN_FULL):
        yield Contender("transformers", way, None, theirs())
    yield Contender("ours", FULL, None, own())
    for layer in LAYERS:
        fixed = {"measure": "static", "exit_layers": (layer,)}
        yield Contender("ours", UNVERIFIED, layer, own(ExitPolicy(**fixed)))
        policy = ExitPolicy(**fixed, propagation="verify", max_draft=DRAFTED)
        yield Contender("ours", AT_A_LAYER, layer, own(policy))
        if beside_peers:
            yield Contender("transformers", AT_A_LAYER, layer, theirs(DRAFTED, assistant_early_exit=layer))
    yield Contender("ours", COPIES, None, own(Copies()))
    for way, policy in planned.items():
        yield Contender("ours", way, None, own(policy))
    few = ExitPolicy(threshold=THRESHOLD, exit_layers=LAYERS, pruning="fixed", top_k=DEFAULT_TOP_K)
    yield Contender("ours", FEW_TOKENS, None, own(few))
    if beside_peers:
        yield Contender("ours", MARGIN, None, own(ExitPolicy(threshold=THRESHOLD, min_layer=LAYERS[0])))
        drafted = Copies().max_draft
        yield Contender("transformers", COPIES, None, theirs(prompt_lookup_num_tokens=drafted))
        yield from of_economize(model, length)


def of_economize(model: Model, length: int) -> Iterator[Contender]:
    """The techniques of `economize` that are those of others here."""
    try:
        from economize.techniques.dynamic_depth import CalmConfig
        from economize.techniques.early_exit import EarlyExitConfig
        from economize.techniques.lookup import LookupConfig
    except ImportError as error:
        message = 'The peer economize is not installed: run "make bench", which installs it.'
        raise MeeError(message) from error
    run = partial(with_economize, model, length)
    technique = EarlyExitConfig(exit_layer=LAYERS[0], head="shared")
    yield Contender("economize", AT_A_LAYER, LAYERS[0], run(technique, DRAFTED))
    yield Contender("economize", COPIES, None, run(LookupConfig(), Copies().max_draft))
    technique = CalmConfig(threshold=THRESHOLD, min_layer=LAYERS[0])
    yield Contender("economize", MARGIN, None, run(technique))


def plans(model: Model, inputs: list[str], length: int) -> dict[str, ExitPolicy | None]:
    """What is planned for prompts like these: exits alone, and whichever of copies and exits is fastest."""
    exits = list(dict.fromkeys(replace(policy, copies=None) for policy in default_policies()))
    options = {"max_new_tokens": length, "batch_size": 1}
    tried = {BY_A_RULE: exits, PLANNED: None}
    return {way: plan_drafts(model, inputs, some, **options).policy for way, some in tried.items()}


def timed(these: list[Contender], task: Task) -> pd.DataFrame:
    """One row a contender, beside the first: its speed, whether its outputs are the same, what they score.

    `acceptance` is the share of verified drafts that the last layer accepts, `flops_share` that of the
    decoder's FLOPs a token at our full depth. Intervals are over prompts, paired.
    """

    def run(contender: Contender) -> Callable[[int], tuple[Decoded, float]]:
        def once(number: int) -> tuple[Decoded, float]:
            started = perf_counter()
            made = contender.decode(task.inputs[number])
            return made, perf_counter() - started

        return once

    by_prompt = in_random_order({number: run(one) for number, one in enumerate(these)}, len(task))
    made = [[row[number][0] for row in by_prompt] for number in range(len(these))]  # [contender][prompt]
    seconds = np.array([[row[number][1] for number in range(len(these))] for row in by_prompt])
    tokens = np.array([[len(one.ids) for one in outputs] for outputs in made]).T  # [prompt, contender]
    scores = [task.score_examples([one.text for one in outputs])[task.metric] for outputs in made]
    speed = beside_first(tokens, seconds)
    kept = beside_first(np.array(scores).T, np.ones(seconds.shape))
    sums = pd.DataFrame(
        [{name: sum(getattr(one, name) for one in outputs) for name in COUNTED} for outputs in made]
    )
    table = pd.DataFrame(these, columns=Contender._fields).drop(columns="decode")
    table = table.astype({"exit_layer": "Int64"}).assign(
        speed=speed.value,
        low=speed.low,
        high=speed.high,
        acceptance=sums.accepted / sums.verified.where(sums.verified > 0),
        same_outputs=[np.mean([a.ids == b.ids for a, b in zip(one, made[0], strict=True)]) for one in made],
        score=np.mean(scores, axis=1),
        kept=kept.value,
        kept_low=kept.low,
        kept_high=kept.high,
        tokens=tokens.sum(axis=0),
        tokens_per_second=tokens.sum(axis=0) / seconds.sum(axis=0),
        prompts=len(task),
    )
    full = (table.decoder == "ours") & (table.way == FULL)
    of_a_token = sums.flops / tokens.sum(axis=0)
    table["flops_share"] = of_a_token / of_a_token[full].item()
    again = table.loc[table.way == AGAIN_FULL, ["speed", "low", "high"]].iloc[0]
    return table[table.way != AGAIN_FULL].assign(**dict(zip(AGAIN, again, strict=True)))


def run(experiment: Experiment, progress: Callable[[str], None]) -> Iterator[pd.DataFrame]:
    """The tables of the first task's prompts, of each model in each precision, as soon as they are there."""
    profile = experiment.profile
    length = profile.results.max_new_tokens
    (task,) = load_tasks(profile, "test", PROMPTS, next(iter(profile.corpora)))
    (choices,) = load_tasks(profile, "choices", only=task.name)
    names = sorted(experiment.backbones, key=lambda name: name != MAIN_MODEL)
    for dtype, name in product(PRECISIONS, names):
        progress(f"{profile.name}, {name}, {task.name}, {dtype}")
        model = load_profile_model(profile, name, dtype, task.name)
        planned = plans(model, choices.inputs, length)
        table = timed(list(contenders(model, length, planned, name == MAIN_MODEL)), task)
        labels = {"profile": profile.name, "task": task.name, "model": name, "dtype": dtype}
        table = table.assign(**labels, metric=task.metric, weights=weights_digest(profile, name)[:12])
        yield table[[*KEYS, *(column for column in table if column not in KEYS)]]
