"""The command behind `make bench`: all parts, or some (`make bench PART="one decision"`)."""

import sys
from functools import partial

from mee_utils.__main__ import Parser, profile_options
from mee_utils.__main__ import main as command
from mee_utils.common.errors import check_choice

from . import decoder, rules, shapes, tables


def bench(options) -> None:
    """Times the decoder against its peers, and a profile's exit rules against full depth."""
    progress = partial(print, flush=True)
    shape_names = [check_choice("shape", name, decoder.WORKLOADS) for name in options.shape]
    parts = [*decoder.PARTS, *shapes.PARTS]
    if not shape_names:
        parts += rules.PARTS
    for part in [check_choice("part", name, parts) for name in options.part] or parts:
        if part in decoder.PARTS:
            path = tables.save(decoder.run(part, shape_names, options.rounds, progress))
        elif part in shapes.PARTS:
            table = shapes.run(part, options.profile, options.data, shape_names, options.rounds, progress)
            path = tables.save(table, "shapes", shapes.KEYS)
        else:
            table = rules.run(part, options.profile, options.data, options.rounds, progress)
            path = tables.save(table, part, rules.KEYS)
        print(f"table: {path}")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; a mistake in its input is one line on standard error and exit status 2."""
    parser = Parser(prog="benchmarks", description=__doc__, parents=[profile_options()])
    parser.add_argument("--part", action="append", default=[], help="only this part (may be given again)")
    parser.add_argument("--shape", action="append", default=[], help="only this size (may be given again)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=bench)
    return command(arguments, parser)


if __name__ == "__main__":
    sys.exit(main())
