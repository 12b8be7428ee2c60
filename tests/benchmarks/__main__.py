"""The command behind `make bench`: all parts, or some (`make bench PART="one decision"`).

What belongs to no profile is timed with profile `small`, unless it is named: `make bench PROFILE=real` times
the models of `real` alone. A GPU is used if there is one (`make bench DEVICE=cpu`: not), and has tables of
its own in `figures/bench/gpu`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from mee_utils.common.errors import check_choice
from mee_utils.companion.catalogue import MAIN_MODEL
from mee_utils.companion.cli import Parser, profile_options
from mee_utils.companion.cli import main as command
from mee_utils.companion.profiles import load_profile
from mee_utils.models.checkpoints import find_device

from . import causal, decoder, rules, shapes, tables
from .workloads import WORKLOADS

SHAPES = "shapes"
PARTS = [*decoder.PARTS, SHAPES, *rules.PARTS, causal.PART]
Timed = tuple[pd.DataFrame, str, Sequence[str]]  # a table, its file's name, and what identifies its lines


def bench(options) -> None:
    """Times the decoder against its peers, and a profile's exit rules against full depth."""
    for name in options.shape:
        check_choice("shape", name, WORKLOADS)
    for name in options.part:
        check_choice("part", name, PARTS)
    options.device = str(find_device(options.device))
    for table, name, keys in timed(options):
        print(f"table: {tables.save(table, name, keys, options.device)}")


def parts_of(profile: str) -> list[str]:
    """What is timed of a profile if no part is named; without a main model, what any models can be timed at.

    Chat models are set beside others' decoders. A line says which parts are left out.
    """
    if load_profile(profile).chat:
        return [causal.PART]
    if MAIN_MODEL not in load_profile(profile).training.backbones:
        left_out = [name for name in (SHAPES, *rules.PARTS) if name not in rules.OF_ANY_MODELS]
        print(f'Profile {profile} has no model "{MAIN_MODEL}": left out are {", ".join(left_out)}.')
        return list(rules.OF_ANY_MODELS)
    own = [] if profile != "small" else decoder.PARTS
    return [*own, SHAPES, *rules.PARTS]


def timed(options) -> Iterator[Timed]:
    """Times what the options name, size by size, so that a model is made once."""
    parts = options.part or parts_of(options.profile)
    sized = [name for name in parts if name in decoder.PARTS or name == SHAPES]
    for shape in options.shape or WORKLOADS:
        workload = replace(WORKLOADS[shape], device=options.device, compiling=not options.no_compiling)
        for part in sized:
            print(f"{shape}: {part}", flush=True)
            if part in decoder.PARTS:
                yield decoder.run(part, workload, options.rounds), "decoder", decoder.KEYS
            else:
                yield shapes.run(options.profile, options.data, workload), SHAPES, shapes.KEYS
    progress = partial(print, flush=True)
    for part in [name for name in parts if name in rules.PARTS and not options.shape]:
        table = rules.run(part, options.profile, options.data, options.device, progress)
        if table.empty:
            print(f"{part}: nothing to time here (rivals: make retrain PROFILE={options.profile} keeps them)")
        else:
            yield table, part, rules.keys_of(part)
    if causal.PART in parts:
        experiment = rules.experiment_on(options.device, options.profile, options.data)
        for table in causal.run(experiment, progress):
            yield table, causal.PART, causal.KEYS


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; a mistake in its input is one line on standard error and exit status 2."""
    parser = Parser(prog="benchmarks", description=__doc__, parents=[profile_options()])
    parser.add_argument("--part", action="append", default=[], help="only this part (may be given again)")
    parser.add_argument("--shape", action="append", default=[], help="only this size (may be given again)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda")
    parser.add_argument("--no-compiling", action="store_true", help="without the peer that is compiled")
    parser.set_defaults(run=bench)
    return command(arguments, parser)


if __name__ == "__main__":
    sys.exit(main())
