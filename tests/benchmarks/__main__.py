"""The command behind `make bench`: all parts, or some (`make bench PART="one decision"`)."""

import sys
from functools import partial

from mee_utils.__main__ import OPTIONS
from mee_utils.__main__ import main as command
from mee_utils.common.errors import check_choice

from . import decoder, rules, shapes, tables


def bench(options) -> None:
    """Times the decoder against its peers, and a profile's exit rules against full depth."""
    sizes = [check_choice("shape", name, decoder.WORKLOADS) for name in options.shape]
    known = [*decoder.PARTS, *shapes.PARTS, *([] if sizes else rules.PARTS)]
    of_profile, timing = (options.profile, options.data), (options.rounds, partial(print, flush=True))
    for part in [check_choice("part", name, known) for name in options.part] or known:
        if part in decoder.PARTS:
            path = tables.save(decoder.run(part, sizes, *timing))
        elif part in shapes.PARTS:
            path = tables.save(shapes.run(part, *of_profile, sizes, *timing), "shapes", shapes.KEYS)
        else:
            path = tables.save(rules.run(part, *of_profile, *timing), part, rules.KEYS)
        print(f"table: {path}")


OPTIONS |= {"--shape": OPTIONS["--part"] | {"help": "only this size"}, "--rounds": dict(type=int, default=3)}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; a mistake in its input is one line on standard error and exit status 2."""
    options = ["--profile", "--data", "--shape", "--part", "--rounds"]
    return command(["bench", *(sys.argv[1:] if arguments is None else arguments)], {bench: options})


if __name__ == "__main__":
    sys.exit(main())
