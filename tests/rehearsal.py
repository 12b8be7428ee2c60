"""`make rehearse`: a profile of the papers on random weights, from a stand-in for the hub.

Corpora of synthetic text in the hub's layout, and checkpoints of random weights at the true shape or a small
one, are served on loopback. A copy of the package fetches them with the real clients, registers or trains
the models and runs every notebook on a few examples, each in its own process. Reported are processor time,
the most memory, and counted operations. What the whole run takes is an estimate, for the true shape: counted
operations, times the ratio of the work of all examples and tokens there to that of these few. The work of an
example is our own count (`models/costs.py`, and the encoder); PyTorch's of an example is the same.

Random weights say nothing about quality, and write outputs of full length, as few trained models do. Here
they write words that end every reference, so that no score is 0 and everything that compares scores runs.
"""

import argparse
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import papers
from hub import serving

from mee_utils import MeeError
from mee_utils.companion.catalogue import MAIN_MODEL
from mee_utils.companion.profiles import Checkpoint, load_profile
from mee_utils.companion.running import jobs
from mee_utils.models.costs import DecoderSizes, generation_flops
from mee_utils.tasks.synthetic.generator import examples

MODELS = "models"  # the names of steps that are no notebooks
MEASURE = "measure"
IN_PROCESS = "in process"  # what `in_process.py` does, in the process of a step
COMMIT = "c" * 40
COMMITS = {"main": COMMIT, "refs/convert/parquet": COMMIT}
T5_TOKENIZER = Path(os.environ.get("DATA") or papers.ROOT.parent / "shared" / "data") / "t5_tokenizer"
PIECES = 32_000  # of T5's vocabulary; behind them stand the extra ids
EXTRA_IDS = 100
VOCABULARY = 32_128  # rows of T5's embedding: some belong to no id
SMALL = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 10}
TRUE = {
    "t5": {"d_model": 1024, "d_kv": 64, "num_heads": 16, "d_ff": 4096, "num_layers": 24},
    "longt5": {"d_model": 768, "d_kv": 64, "num_heads": 12, "d_ff": 2048, "num_layers": 12},
}
SUMMARIES = {  # the columns of a corpus, where they are not those of the synthetic one
    "cnn_dailymail": ("article", "highlights"),
    "big_patent": ("description", "abstract"),
}
LEAST_EXAMPLES = 5  # that notebooks take as `limit`
LEAST_TOKENS = 8  # and as `max_new_tokens`
WORDS = ("home", "more", "most", "found", "lost", "two")  # that random weights write, and references end with
START_SCALE = 2.0  # of the embedding of the token that begins outputs
WORD_SCALE = 1.5  # of that embedding in those of `WORDS`
WORD_DIFFERENCE = 0.1  # what is left of their own embeddings in them
LEARNING_RATE = 1e-9  # so low that trained models write `WORDS` too
CANDIDATES = 2  # thresholds of a rule that are tried
TOKENS_OF_CLASSIFIERS = 50  # that each learns from
ROWS = {"train": 40, "validation": 16, "test": 16}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
GIGA = 1e9
TERA = 1e12
PETA = 1e15
SUSTAINED = 10 * TERA  # FLOPs a second, an assumption: decoding keeps a GPU far below its peak


def t5_tokenizer(folder=T5_TOKENIZER):
    """T5's tokenizer, if its folder is there; else one of as many ids, made of synthetic words."""
    if folder.is_dir():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder)
    return made_tokenizer()


def made_tokenizer():
    """A unigram tokenizer with T5's 32,100 ids and special tokens: letters and synthetic words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {f"▁{word}" for word in WORDS}
    for task in ("question_answering", "summarization", "translation"):
        for example in itertools.islice(examples(task, "train"), 200):
            words |= {f"▁{word}" for word in f"{example.source} {example.target}".split()}
    letters = sorted({letter for word in words for letter in word} | {"▁"})
    pieces = [*letters, *sorted(words - set(letters))]
    pieces += [f"▁piece{number}" for number in range(PIECES - 3 - len(pieces))]
    scored = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    scored += [(piece, -5.0 if len(piece) > 1 else -9.0) for piece in pieces]
    extra_ids = [f"<extra_id_{number}>" for number in reversed(range(EXTRA_IDS))]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=extra_ids,
    )


def write_checkpoint(folder, checkpoint, shape, tokenizer, seed=0):
    """Random weights at the true shape of a checkpoint, or at a small one, without a tokenizer.

    Every output consists of `WORDS`, so that it scores more than 0.
    """
    import torch
    from transformers import (
        LongT5Config,
        LongT5ForConditionalGeneration,
        T5Config,
        T5ForConditionalGeneration,
    )

    long = "long-t5" in checkpoint or checkpoint.endswith(("multinews", "bigpatent"))
    sizes = SMALL if shape == "small" else TRUE["longt5" if long else "t5"]
    torch.manual_seed(seed)
    common = {**sizes, "vocab_size": VOCABULARY, "decoder_start_token_id": 0}
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a GPU draws in no time
        if long:
            config = LongT5Config(
                **common, encoder_attention_type="transient-global", feed_forward_proj="gated-gelu"
            )
            network = LongT5ForConditionalGeneration(config)
        else:
            network = T5ForConditionalGeneration(T5Config(**common))
    prefer_ids(network, [tokenizer(word, add_special_tokens=False).input_ids[-1] for word in WORDS])
    network.to(torch.bfloat16).save_pretrained(folder)


def prefer_ids(network, ids):
    """Makes a random network write `ids`, sometimes one and sometimes another.

    A state is near the embedding of its token, and logits are products of states and embeddings: a random
    network repeats its token, which is at first the start token. Here the embedding of the start token is
    scaled up, and those of `ids` are nearly the same, a little longer; the layers decide which of them wins.
    """
    import torch

    inputs = network.get_input_embeddings().weight
    outputs = network.get_output_embeddings().weight  # the same, or LongT5's own
    with torch.no_grad():
        inputs[network.config.decoder_start_token_id] *= START_SCALE
        start = inputs[network.config.decoder_start_token_id].clone()
        for rows in (inputs,) if outputs is inputs else (inputs, outputs):
            rows[ids] = WORD_SCALE * start + WORD_DIFFERENCE * rows[ids]


def corpus_rows(task, corpus, split, tokens):
    """Synthetic examples in the columns that a corpus has on the hub; references end with `WORDS`.

    Answers count if they are exact: further ones are one of `WORDS`, `tokens` times.
    """
    columns = SUMMARIES.get(corpus.source.rpartition("/")[2])
    ending = " " + " ".join(WORDS)
    for example in itertools.islice(examples(task, split), ROWS[split]):
        row = dict(example.columns)
        if task == "question_answering":
            texts = [text + ending for text in row["answers"]["text"]]
            texts += [" ".join([word] * tokens) for word in WORDS]
            yield {**row, "answers": {"text": texts, "answer_start": [-1] * len(texts)}}
        elif task == "translation":
            source, target = row["translation"].values()
            yield {"translation": dict(zip(corpus.languages, (source, target + ending), strict=True))}
        else:
            names = columns or tuple(row)
            document, summary = row.values()
            yield dict(zip(names, (document, summary + ending), strict=True))


def write_hub(root, profile, shape, tokenizer, tokens):
    """Everything that a profile asks the hub for: corpora, and checkpoints that all have the same weights.

    Args:
        tokens: how many an output has.
    """
    for task, corpus in profile.corpora.items():
        for split in ROWS:
            folder = root / "datasets" / corpus.source / COMMIT / (corpus.folder or "data") / split
            folder.mkdir(parents=True)
            table = pd.DataFrame(list(corpus_rows(task, corpus, split, tokens)))
            table.to_parquet(folder / "0000.parquet")
    training = profile.training
    ids = {each.checkpoint for name in training.models for each in training.checkpoints(name).values()}
    base = training.base.checkpoint
    weights = root / "weights"
    write_checkpoint(weights, base, shape, tokenizer)
    for checkpoint in ids:
        folder = root / "models" / checkpoint / COMMIT
        folder.mkdir(parents=True)
        for path in weights.iterdir():
            (folder / path.name).symlink_to(path)
        if checkpoint == base:  # the others take its tokenizer
            tokenizer.save_pretrained(folder)


def few(content, examples, tokens, source_tokens, layers):
    """A profile with few examples, short inputs and outputs, and few thresholds; all else as it is."""
    for corpus in content["corpora"].values():
        corpus.update(train=8 * examples, held_out=examples, choices=examples)
    content["training"].update(max_source=source_tokens, max_target=tokens)
    for backbone in content["training"]["backbones"].values():
        if "examples" in backbone:
            backbone["examples"] = dict.fromkeys(backbone["examples"], examples)
            backbone["learning_rate"] = LEARNING_RATE
    content["classifiers"]["tokens"] = TOKENS_OF_CLASSIFIERS
    content["results"].update(
        examples=examples,
        bug_examples=examples,
        validation=examples,
        test=examples,
        candidates=CANDIDATES,
        other_candidates=CANDIDATES,
        learning_tokens=[TOKENS_OF_CLASSIFIERS],
        max_new_tokens=tokens,
        batch_size=examples,
    )
    for parameters in content["notebooks"].values():
        parameters["limit"] = examples
        for name in {"decoded", "batch_size"} & parameters.keys():
            parameters[name] = examples
        if "max_new_tokens" in parameters:
            parameters["max_new_tokens"] = tokens
    content["notebooks"]["02_saturation"]["frequency_limit"] = 8 * examples
    content["notebooks"]["04_contrastive_decoding"].update(expert_layer=layers // 2, long_limit=1)


@dataclass(frozen=True)
class Step:
    """What one command took: seconds of wall and processor, the most memory in bytes, counted FLOPs.

    `gpu_memory` is the most that PyTorch has held on a GPU, in bytes; 0 without one.
    """

    name: str
    status: int
    wall: float
    processor: float
    memory: int
    flops: float
    said: str
    gpu_memory: int = 0


def measured_step(clone, environment, name, command):
    """Runs a command of the clone to its end, and measures it with all its children.

    What has ended well is kept beside the clone, and is not run again there.
    """
    record = clone.root.parent / "steps" / f"{' '.join(command)}.json"
    if record.exists():
        return Step(**json.loads(record.read_text()))
    step = _run_and_measured(clone, environment, name, command)
    if step.status == 0:
        record.parent.mkdir(exist_ok=True)
        record.write_text(json.dumps(asdict(step)))
    return step


def _run_and_measured(clone, environment, name, command):
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "counted.json"
        log = Path(folder) / "log"
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, __file__, "step", *command],
                cwd=clone.root,
                env=clone.environment | environment | {"COUNTED": str(counted)},
                stdout=output,
                stderr=output,
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        counts = json.loads(counted.read_text()) if counted.exists() else {}
        return Step(
            name=name,
            status=process.returncode,
            wall=time.monotonic() - started,
            processor=usage.ru_utime + usage.ru_stime,
            memory=usage.ru_maxrss * 1024,
            flops=counts.get("flops", 0.0),
            gpu_memory=counts.get("gpu_memory", 0),
            said=COLOURS.sub("", log.read_text(errors="replace")),
        )


def joined(steps):
    """Steps that ran one after the other as one: sums of times and operations, the most memory.

    Its status is the first that is not 0 (one that was killed has a negative one).
    """
    steps = list(steps)
    return Step(
        name=steps[0].name,
        status=next((step.status for step in steps if step.status), 0),
        wall=sum(step.wall for step in steps),
        processor=sum(step.processor for step in steps),
        memory=max(step.memory for step in steps),
        flops=sum(step.flops for step in steps),
        gpu_memory=max(step.gpu_memory for step in steps),
        said="".join(step.said for step in steps),
    )


def counting():
    """PyTorch's counter, with what it leaves out on a CPU: packed weights, and attention in one operation."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    def packed(rows, *_, out_shape, **__):
        return 2 * math.prod(out_shape) * rows[-1]

    def attention(query, keys, values, *_, **__):
        return sdpa_flop_count(query, keys, values)

    formulas = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
    if torch.backends.mkldnn.is_available():
        formulas[torch.ops.mkldnn._linear_pointwise] = packed
    return FlopCounterMode(display=False, custom_mapping=formulas)


def run_step(arguments):
    """In the process of a step: a command of the package, or measurements or a notebook without a kernel."""
    import in_process
    import torch

    from mee_utils.companion.cli import main

    with nullcontext() if os.environ.get("UNCOUNTED") else counting() as counter:
        if arguments[0] == IN_PROCESS:
            status = in_process.run_all(arguments[1], "", arguments[2:])
        else:
            status = main(arguments)
    counts = {"flops": counter.get_total_flops() if counter else 0.0}
    if torch.cuda.is_initialized():
        counts["gpu_memory"] = torch.cuda.max_memory_allocated()
    Path(os.environ["COUNTED"]).write_text(json.dumps(counts))
    return status


def steps_after_models(profile):
    """Measurements, if the profile has the model on which rules are measured; then its notebooks."""
    measured = [MEASURE] if MAIN_MODEL in profile.training.backbones else []
    return [*measured, *profile.run_notebooks]


def prepared(profile, shape, folder, **lengths):
    """A clone in which a profile has few examples, beside all that it asks the hub for.

    In the folder of an interrupted rehearsal it is the clone that is there, with the code that it has.
    Raises `MeeError` if that rehearsal was another one, or if something else is in the folder.
    """
    wanted = {"profile": profile, "shape": shape, **lengths}
    options = folder / "options.json"
    if options.exists():
        there = json.loads(options.read_text())
        if there != wanted:
            raise MeeError(
                f"{folder} has a rehearsal with {there}: go on with these, or give another folder."
            )
        return papers.Clone(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise MeeError(f"{folder} is not empty, and no rehearsal was begun there: give another folder.")
    settings = load_profile(profile)
    write_hub(folder / "hub", settings, shape, t5_tokenizer(), lengths["tokens"])
    clone = papers.Clone(folder)
    layers = json.loads((folder / "hub/weights/config.json").read_text())["num_decoder_layers"]
    clone.edit(lambda content: few(content, **lengths, layers=layers), profile)
    options.write_text(json.dumps(wanted))
    return clone


def commands_of(step, profile):
    """The commands of a step, as lists of arguments: each gets a process of its own.

    One training after the other in the same process leaves its memory in fragments, and so do measurements.
    """
    where = ["--profile", profile.name]
    if step == MODELS:
        return [["train", "--model", name, *where] for name in profile.training.models]
    if step == MEASURE:
        measured = [
            ["job", job.kind, "--model", job.model, "--task", job.task, *where]
            for job in jobs.measurements(profile)
        ]
        return [*measured, ["job", "tables", "--name", "measured", *where]]
    return [[IN_PROCESS, profile.name, step]]


def rehearse(profile, shape, folder, examples=5, tokens=8, source_tokens=64, notebooks=()):
    """Runs a profile on a stand-in for the hub; yields a `Step` for the models, the measurements if there are
    any, and each notebook. What an interrupted rehearsal in the same folder ran to its end is not run again.
    """
    lengths = {"examples": examples, "tokens": tokens, "source_tokens": source_tokens}
    clone = prepared(profile, shape, folder, **lengths)
    settings = load_profile(profile)
    with serving(folder, COMMITS) as (_, environment):
        environment |= {"HF_HUB_OFFLINE": "0", "PYTHONPATH": str(clone.root)}
        environment |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        for step in [MODELS, *(notebooks or steps_after_models(settings))]:
            commands = commands_of(step, settings)
            yield joined(measured_step(clone, environment, step, command) for command in commands)


def example_flops(sizes, encoder_layers, source_tokens, tokens):
    """FLOPs of one example at full depth: its input read, its output written. LongT5's encoder does less."""
    encoder = replace(sizes, cross_attention=False)  # its layers have no projections to a source
    attention = 4 * sizes.inner * source_tokens  # of a token, in one layer
    reading = encoder_layers * source_tokens * (encoder.projections + attention)
    exits = np.full(tokens, sizes.layers)
    rows = np.full(tokens, sizes.vocabulary)
    return reading + sum(generation_flops(sizes, exits, source_tokens, rows).values())


def shape_of(shape, long):
    """LongT5's or T5-large's true shape, or the small one, as in a configuration."""
    return SMALL if shape == "small" else TRUE["longt5" if long else "t5"]


def decoder_sizes(shape, long):
    """The sizes of a decoder, of LongT5's or T5-large's true shape or the small one."""
    sizes = shape_of(shape, long)
    return DecoderSizes(
        d_model=sizes["d_model"],
        inner=sizes["num_heads"] * sizes["d_kv"],
        d_ff=sizes["d_ff"],
        gated=long,
        layers=sizes.get("num_decoder_layers", sizes["num_layers"]),
        vocabulary=VOCABULARY,
    )


def is_long(profile):
    """Whether a profile's models are LongT5s."""
    return "long-t5" in profile.training.base.checkpoint


def work_of_example(profile, shape, source_tokens, tokens):
    """`example_flops` of a profile's model, in its true shape or the small one."""
    long = is_long(profile)
    encoder_layers = shape_of(shape, long)["num_layers"]
    return example_flops(decoder_sizes(shape, long), encoder_layers, source_tokens, tokens)


def growth(profile, name, shape, examples, tokens, source_tokens):
    """How many times the work of a rehearsed step the whole run has, which is of the true shape: of more and
    longer examples.

    Where models are trained, training is taken to be all the work of their step. NaN for measurements: how
    many thresholds a search decodes depends on the model.
    """
    if name == MEASURE:
        return math.nan
    training = profile.training
    given = profile.notebooks.get(name, {})
    longest = given.get("max_new_tokens", training.max_target)
    if name == MODELS and training.objectives:  # of a task: those learned from, else those held out
        count = max(max(backbone.examples.values()) for backbone in training.objectives.values())
    else:
        count = given.get("limit", max(corpus.held_out or 0 for corpus in profile.corpora.values()))
    whole = count * work_of_example(profile, "true", training.max_source, longest)
    return whole / (examples * work_of_example(profile, shape, source_tokens, tokens))


def report(profile, shape, steps, examples, tokens, source_tokens):
    """The measured steps as a table in markdown, with the estimate for the whole run in its last column.

    Where no operations were counted, their columns are left out, and there is no estimate.
    """
    counted = any(step.flops for step in steps)
    columns = ["step", "processor s", "peak memory GB"]
    columns += ["counted TFLOP", "whole run, estimated PFLOP"] if counted else []
    rows = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    total = 0.0
    for step in steps:
        failed = "" if step.status == 0 else " (failed)"
        cells = [f"{step.name}{failed}", f"{step.processor:.0f}", f"{step.memory / GIGA:.1f}"]
        if counted:
            whole = step.flops * growth(profile, step.name, shape, examples, tokens, source_tokens)
            estimated = "" if math.isnan(whole) else f"{whole / PETA:.2f}"
            total += whole if estimated else 0.0
            cells += [f"{step.flops / TERA:.2f}", estimated]
        rows.append(f"| {' | '.join(cells)} |")
    rows += [
        "",
        f"{profile.name} at the {shape} shape, random weights in {profile.dtype}: {examples} examples, "
        f"{source_tokens} source and {tokens} output tokens.",
    ]
    if not counted:
        return "\n".join([*rows, "No operations were counted (--uncounted), so that nothing is estimated."])
    hours = total / SUSTAINED / 3600
    left_out = ", without the measurements" if any(step.name == MEASURE for step in steps) else ""
    rows.append(
        f"Estimate of the whole run at the true shape{left_out}: {total / PETA:.0f} PFLOP. "
        f"At an assumed {SUSTAINED / TERA:.0f} TFLOP a second that takes {hours:.1f} hours. Inputs and "
        "outputs are taken to be as long as they may be."
    )
    return "\n".join(rows)


def parameters(profile):
    """How many numbers the weights of a profile's model are: matrices, without norms and relative biases."""
    long = is_long(profile)
    sizes = decoder_sizes("true", long)
    encoder = replace(sizes, cross_attention=False)
    flops = shape_of("true", long)["num_layers"] * encoder.projections
    flops += sizes.layers * (sizes.projections + sizes.key_value)  # keys and values of the source too
    embeddings = 2 if long else 1  # LongT5's LM head is a matrix of its own
    return flops // 2 + embeddings * sizes.vocabulary * sizes.d_model  # a number is one multiply-add a token


def needs(names):
    """What profiles of ready checkpoints take, as a table in markdown: estimates, none of them measured.

    States are those of traces, of every model and task, for each length traced; one pass is one decoding at
    full depth, by each model, of the examples of each notebook.
    """
    rows = [
        "| profile | checkpoints | weights in memory | weights on disk | states on disk, at most "
        "| one pass | minutes per pass |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        profile = load_profile(name)
        training = profile.training
        ids = {each.checkpoint for model in training.models for each in training.checkpoints(model).values()}
        numbers = len(ids) * parameters(profile)
        pairs = len(training.models) * len(profile.corpora)
        least = profile.results.examples
        longest = profile.results.max_new_tokens
        traced = {(least, longest)}
        limits = 0
        for notebook in profile.run_notebooks:
            given = profile.notebooks[notebook]
            limits += given["limit"]
            if "max_new_tokens" in given:
                traced.add((max(given["limit"], least), given["max_new_tokens"]))
        sizes = decoder_sizes("true", is_long(profile))
        tokens = sum(examples * length for examples, length in traced)
        states = pairs * tokens * sizes.layers * sizes.d_model * 4
        one_pass = pairs * limits * work_of_example(profile, "true", training.max_source, longest)
        rows.append(
            f"| `{name}` | {len(ids)} | {2 * numbers / GIGA:.1f} GB | {4 * numbers / GIGA:.1f} GB "
            f"| {states / GIGA:.0f} GB | {one_pass / PETA:.1f} PFLOP "
            f"| {one_pass / SUSTAINED / 60:.0f} |"
        )
    return "\n".join(rows)


def new_parser():
    """The options of `make rehearse`."""
    parser = argparse.ArgumentParser(prog="rehearsal", description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", default="paper_published")
    parser.add_argument("--shape", choices=("true", "small"), default="true")
    parser.add_argument("--examples", type=int, default=5, help="of each task")
    parser.add_argument("--tokens", type=int, default=8, help="longest output")
    parser.add_argument("--source-tokens", type=int, default=64, help="longest input")
    parser.add_argument(
        "--notebook", action="append", default=[], help='only this one (may be given again), or "measure"'
    )
    parser.add_argument("--uncounted", action="store_true", help="no FLOPs are counted: that takes time")
    parser.add_argument(
        "--folder", type=Path, help="work there, and keep it; a rehearsal that was interrupted there goes on"
    )
    return parser


def main(arguments):
    """Rehearses a profile; exit status 2 for options that do not fit, else that of `rehearse_aloud`."""
    options = new_parser().parse_args(arguments)
    if options.uncounted:
        os.environ["UNCOUNTED"] = "1"
    if not isinstance(load_profile(options.profile).training.base, Checkpoint):
        print(f"error: profile {options.profile} reads nothing from the hub.", file=sys.stderr)
        return 2
    if options.examples < LEAST_EXAMPLES or options.tokens < LEAST_TOKENS:
        needed = f"--examples {LEAST_EXAMPLES} and --tokens {LEAST_TOKENS}, or more"
        print(f"error: notebooks need {needed}.", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="mee-") as temporary:
            return rehearse_aloud(options, options.folder or Path(temporary))
    except MeeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def rehearse_aloud(options, folder):
    """Says what each step took as it ends, and then prints the report; exit status 1 if a step failed."""
    lengths = {"tokens": options.tokens, "source_tokens": options.source_tokens, "examples": options.examples}
    steps = []
    for step in rehearse(options.profile, options.shape, folder, notebooks=options.notebook, **lengths):
        steps.append(step)
        of_gpu = f", {step.gpu_memory / GIGA:.1f} GB of the GPU" if step.gpu_memory else ""
        took = f"{step.name}: {step.wall:.0f} seconds, {step.memory / GIGA:.1f} GB{of_gpu}"
        print(took, file=sys.stderr, flush=True)
        if step.status:
            print(step.said[-3000:], file=sys.stderr)
    print(report(load_profile(options.profile), options.shape, steps, **lengths))
    return int(any(step.status for step in steps))


if __name__ == "__main__":
    sys.exit(run_step(sys.argv[2:]) if sys.argv[1:2] == ["step"] else main(sys.argv[1:]))
