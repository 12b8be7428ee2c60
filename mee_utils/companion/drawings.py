"""Drawings of how early exits work, in the style of the figures; they show no measurement.

- `decoder_drawing`: layers that are run and layers that are skipped, and the keys and values that are copied.
- `measures_drawing`: what each of the six published confidence measures looks at.
- `round_drawing`: a round of verified drafts, the example of `decoding/verify.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np

from .figures import DARK, GREY, STYLES, use_style

RUN = "#c9d6e2"  # a layer that is run
WAITS = "#ffffff"  # a layer that is skipped, or not run yet
TOKEN = "#f3f0e6"
HEAD = "#f6dfb3"  # the LM head, or a classifier
RIGHT = "#b7d7bd"
WRONG = "#f2b8b5"


def decoder_drawing() -> matplotlib.figure.Figure:
    """The decoder of a T5 that writes four tokens with early exits: columns are tokens, rows layers."""
    fed_in = ["<start>", "Ada", "lives", "in"]
    written = ["Ada", "lives", "in", "York"]
    exit_layers = [4, 2, 1, 6]
    layers = 6
    figure, axis = _canvas(9.5, 5.2, (-2.6, 11.0), (-1.0, 8.3))
    _encoder(axis, layers)
    for number, exit_layer in enumerate(exit_layers):
        x = 1.3 + 2.6 * number
        _box(axis, x, -0.6, fed_in[number], TOKEN)
        for layer in range(1, layers + 1):
            _layer_of_token(axis, x, layer, exit_layer)
        _exit(axis, x, exit_layer, written[number], layers)
        if number + 1 < len(exit_layers):
            _feed_back(axis, x, layers)
    for layer in range(1, layers + 1):
        axis.text(11.0, layer, f"layer {layer}", ha="right", va="center", fontsize=8.5, color=GREY)
    _key(axis, 8.05, {RUN: "layer is run", WAITS: "layer is skipped: keys and values from the exit state"})
    return figure


def _encoder(axis, layers: int) -> None:
    """The encoder at the left, which runs once and which every layer attends to."""
    _box(
        axis,
        -1.6,
        (layers + 1) / 2,
        "encoder\n\nruns once,\nin full;\nevery layer\nattends to it",
        TOKEN,
        width=1.6,
        height=layers,
    )
    for layer in range(1, layers + 1):
        _arrow(axis, (-0.75, layer), (-0.15, layer), "#aaaaaa")


def _layer_of_token(axis, x: float, layer: int, exit_layer: int) -> None:
    """One layer at one token: run, or filled with keys and values from the exit state."""
    if layer <= exit_layer:
        _box(axis, x, layer, "", RUN)
        _arrow(axis, (x, layer - 0.75), (x, layer - 0.32))
        return
    _box(axis, x, layer, "copied K, V", WAITS, dashed=True, size=8, colour=GREY)
    _arrow(axis, (x - 0.88, exit_layer), (x - 0.88, layer), GREY, bend=-0.3)


def _exit(axis, x: float, exit_layer: int, token: str, layers: int) -> None:
    """The exit of a token: its layer's state, LM head, token."""
    said = "last layer" if exit_layer == layers else f"exit: confident\nafter layer {exit_layer}"
    axis.text(x, exit_layer, said, ha="center", va="center", fontsize=8, color=DARK)
    _box(axis, x, layers + 1.15, f'"{token}"', RIGHT, height=0.55)
    if exit_layer == layers:
        _arrow(axis, (x, exit_layer + 0.3), (x, layers + 0.85))
        return
    side = x + 1.02
    axis.plot([x + 0.85, side, side], [exit_layer, exit_layer, layers + 1.15], color=DARK, linewidth=1)
    _arrow(axis, (side, layers + 1.15), (x + 0.87, layers + 1.15))
    axis.text(side + 0.06, layers, "LM head", fontsize=8, color=DARK, va="center", rotation=270)


def _feed_back(axis, x: float, layers: int) -> None:
    """The path of a token that was written to the input of the next position."""
    turn = x + 1.45
    above = layers + 1.65
    corners = [(x, layers + 1.45), (x, above), (turn, above), (turn, -0.6)]
    axis.plot(*np.transpose(corners), color="#aaaaaa", linewidth=1, linestyle=":")
    _arrow(axis, (turn, -0.6), (x + 1.73, -0.6), "#aaaaaa")


def measures_drawing() -> matplotlib.figure.Figure:
    """What the six published measures look at after layer l; the upper three are CALM's, the lower MEE's."""
    panels: dict[str, tuple[str, Callable]] = {
        "softmax_margin": ("the gap between the two most probable tokens", _draw_margin),
        "hidden_similarity": ("how little layer l has moved the state", _draw_similarity),
        "hidden": ("a trained network on one state", _draw_one_state),
        "rising_top1": ("the top-1 probability, if it rose twice in a row", _draw_rising),
        "three_hidden": ("a trained network on three states side by side", _draw_three_states),
        "lstm": ("all states so far, one after the other", _draw_lstm),
    }
    use_style()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(9.5, 5.4), layout="constrained")
    for axis, (name, (looks_at, draw)) in zip(axes.flat, panels.items(), strict=True):
        axis.set(xlim=(0, 10), ylim=(0, 7))
        axis.set_axis_off()
        style = STYLES[name]
        axis.set_title(f"{style.label}\n", fontsize=11, color=style.colour, fontweight="bold")
        axis.text(5, 7.1, looks_at, ha="center", va="bottom", fontsize=8.5, color=DARK)
        draw(axis, style.colour)
    plt.close(figure)
    return figure


def _draw_margin(axis, colour: str) -> None:
    probabilities = [0.72, 0.17, 0.06, 0.03]
    for number, (token, share) in enumerate(zip(["York", "Paris", "the", "a"], probabilities, strict=True)):
        fill = colour if number < 2 else "#dddddd"
        axis.bar(1.8 + 1.9 * number, 6 * share, width=1.2, bottom=1.4, color=fill)
        axis.text(1.8 + 1.9 * number, 0.7, token, ha="center", va="center", fontsize=8.5)
    first, second = (1.4 + 6 * share for share in probabilities[:2])
    axis.plot([2.4, 5.0], [first, first], color=GREY, linewidth=0.8, linestyle=":")
    _arrow(axis, (3.7, second), (3.7, first), DARK, both=True)
    axis.text(4.0, (first + second) / 2, "confidence", va="center", fontsize=8.5)


def _draw_similarity(axis, colour: str) -> None:
    origin = (1.6, 1.2)
    _arrow(axis, origin, (8.4, 2.4), "#bbbbbb", width=2)
    _arrow(axis, origin, (6.4, 5.4), colour, width=2)
    axis.text(7.0, 1.6, "state after layer l - 1", ha="center", va="top", fontsize=8.5)
    axis.text(6.4, 5.6, "state after layer l", ha="center", va="bottom", fontsize=8.5)
    angles = np.linspace(*np.arctan2([1.2, 4.2], [6.8, 4.8]), 20)
    axis.plot(origin[0] + 3.4 * np.cos(angles), origin[1] + 3.4 * np.sin(angles), color=DARK, linewidth=1)
    axis.text(5.1, 3.2, "confidence: the cosine", va="center", fontsize=8.5)


def _draw_one_state(axis, colour: str) -> None:
    _state(axis, 2.2, 3.0, "layer l", colour)
    _network(axis, 5.4, 3.0, "two-layer\nnetwork", [(3.05, 3.0)])


def _draw_three_states(axis, colour: str) -> None:
    heights = [1.0, 3.0, 5.0]
    for height, name in zip(heights, ["layer l - 2", "layer l - 1", "layer l"], strict=True):
        _state(axis, 2.2, height, name, colour)
    _network(axis, 5.4, 3.0, "two-layer\nnetwork", [(3.05, height) for height in heights])


def _draw_lstm(axis, colour: str) -> None:
    heights = [0.8, 2.3, 3.8, 5.3]
    for number, (height, name) in enumerate(
        zip(heights, ["layer 1", "layer 2", "...", "layer l"], strict=True)
    ):
        if name == "...":
            axis.text(2.2, height, "...", ha="center", va="center", fontsize=12, color=GREY)
        else:
            _state(axis, 2.2, height, name, colour)
            _arrow(axis, (3.05, height), (4.3, height))
        _box(axis, 5.2, height, "LSTM", HEAD, height=0.9)
        if number:
            _arrow(axis, (5.2, heights[number - 1] + 0.45), (5.2, height - 0.47))
    _confidence(axis, 6.1, heights[-1])


def _draw_rising(axis, colour: str) -> None:
    probabilities = [0.35, 0.6, 0.92]
    for number, (name, share) in enumerate(zip(["l - 2", "l - 1", "l"], probabilities, strict=True)):
        axis.bar(2.2 + 2.3 * number, 5 * share, width=1.3, bottom=1.2, color=colour, alpha=0.4 + 0.3 * number)
        axis.text(2.2 + 2.3 * number, 0.5, f"layer {name}", ha="center", va="center", fontsize=8.5)
    for number in range(2):
        start, end = probabilities[number : number + 2]
        _arrow(axis, (2.3 + 2.3 * number, 1.4 + 5 * start), (4.0 + 2.3 * number, 1.3 + 5 * end), DARK)
    axis.text(7.7, 5.8, "confidence", va="center", fontsize=8.5)


def _state(axis, x: float, y: float, name: str, colour: str) -> None:
    """A state as a strip of numbers, with the name of its layer at the left."""
    for number in range(6):
        strip = matplotlib.patches.Rectangle(
            (x - 0.75 + 0.25 * number, y - 0.3),
            0.25,
            0.6,
            facecolor=colour,
            alpha=(0.3, 0.8, 0.5, 0.95, 0.4, 0.7)[number],
            edgecolor="white",
            linewidth=0.5,
        )
        axis.add_patch(strip)
    axis.text(x - 0.9, y, name, ha="right", va="center", fontsize=8)


def _network(axis, x: float, y: float, name: str, inputs: Sequence[tuple[float, float]]) -> None:
    """A trained network that turns states into a confidence."""
    for start in inputs:
        _arrow(axis, start, (x - 1.22, y + 0.35 * np.sign(start[1] - y)))
    _box(axis, x, y, name, HEAD, width=2.3, height=1.5)
    _confidence(axis, x + 1.2, y)


def _confidence(axis, x: float, y: float) -> None:
    _arrow(axis, (x, y), (x + 0.9, y))
    axis.text(x + 1.0, y, "confidence", va="center", fontsize=8.5)


def round_drawing() -> matplotlib.figure.Figure:
    """Draft, verify, accept: three tokens, four layers, a rule that decides at layers 1 and 2."""
    use_style()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.9), layout="constrained")
    drafts = ["the", "red", "car"]
    steps = {
        "1. draft": "each token stops where the rule is confident,\nand the next is drafted from it",
        "2. verify": "the layers not yet run process\nall waiting tokens together",
        "3. accept": "drafts are kept up to the first that\nthe last layer would not have written",
    }
    for axis, (name, text) in zip(axes, steps.items(), strict=True):
        axis.set(xlim=(-0.2, 6.5), ylim=(-0.6, 6.4))
        axis.set_axis_off()
        axis.set_title(name, fontsize=11, fontweight="bold")
        axis.text(3.1, 6.3, text, ha="center", va="top", fontsize=8.5, color=DARK)
    _draft(axes[0], drafts)
    _verify(axes[1], drafts)
    _accept(axes[2], drafts)
    for layer in range(1, 5):
        axes[0].text(-0.15, layer, f"layer {layer}", va="center", fontsize=8, color=GREY, ha="right")
    plt.close(figure)
    return figure


DRAFT_LAYERS = (1, 2, 1)  # where the three tokens stop
COLUMNS = (1.0, 3.1, 5.2)


def _draft(axis, drafts: Sequence[str]) -> None:
    """Layers below a draft are run; layer 2 takes along the first token, which waited before it."""
    reached = (2, 2, 1)
    for number, (x, token) in enumerate(zip(COLUMNS, drafts, strict=True)):
        for layer in range(1, 5):
            runs = layer <= reached[number]
            text = f'draft\n"{token}"' if layer == DRAFT_LAYERS[number] else ""
            _box(axis, x, layer, text, RUN if runs else WAITS, dashed=not runs, size=8)
        if number:
            _arrow(axis, (COLUMNS[number - 1] + 0.87, DRAFT_LAYERS[number - 1]), (x - 0.87, 1), DARK)


def _verify(axis, drafts: Sequence[str]) -> None:
    """What is left of layers 2 to 4 runs, a layer at a time for all tokens that wait before it."""
    for x, token in zip(COLUMNS, drafts, strict=True):
        axis.text(x, 0.1, f'"{token}"', ha="center", va="center", fontsize=8.5, color=GREY)
    together = {2: COLUMNS[2:], 3: COLUMNS, 4: COLUMNS}
    for layer in range(1, 5):
        for x in COLUMNS:
            new = x in together.get(layer, ())
            _box(axis, x, layer, "", HEAD if new else RUN)
    for layer, columns in together.items():
        _frame(axis, columns[0] - 0.95, layer - 0.38, columns[-1] - columns[0] + 1.9, 0.76)
    for x, token in zip(COLUMNS, ["the", "red", "house"], strict=True):
        axis.text(x, 4.75, f'"{token}"', ha="center", va="center", fontsize=8.5)


def _accept(axis, drafts: Sequence[str]) -> None:
    """What the last layer writes, beside the drafts."""
    axis.text(-0.1, 3.9, "drafts", fontsize=8, color=GREY, va="bottom")
    axis.text(-0.1, 1.1, "last layer", fontsize=8, color=GREY, va="top")
    for x, draft, last in zip(COLUMNS, drafts, ["the", "red", "house"], strict=True):
        same = draft == last
        _box(axis, x, 3.4, f'"{draft}"', RIGHT if same else WRONG)
        _box(axis, x, 1.6, f'"{last}"', RIGHT if same else HEAD)
        _arrow(axis, (x, 2.0), (x, 3.0), both=True)
        axis.text(x + 0.15, 2.5, "equal" if same else "not equal", fontsize=8, va="center")
    text = '"the", "red" are kept and "house" replaces "car":\nthree tokens for one pass of layers 3 and 4'
    axis.text(3.1, -0.1, text, ha="center", va="center", fontsize=8.5)


def _canvas(width: float, height: float, across: tuple[float, float], up: tuple[float, float]) -> tuple:
    """A figure with one empty panel without axes, closed, so that a notebook shows it once."""
    use_style()
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(width, height), layout="constrained")
    axis.set(xlim=across, ylim=up)
    axis.set_axis_off()
    plt.close(figure)
    return figure, axis


def _box(
    axis,
    x: float,
    y: float,
    text: str,
    fill: str,
    width: float = 1.7,
    height: float = 0.62,
    dashed: bool = False,
    size: float = 8.5,
    colour: str = DARK,
) -> None:
    """A rectangle around a point, with a text in it."""
    rectangle = matplotlib.patches.FancyBboxPatch(
        (x - width / 2 + 0.05, y - height / 2 + 0.05),
        width - 0.1,
        height - 0.1,
        boxstyle="round,pad=0.05",
        facecolor=fill,
        edgecolor=GREY,
        linewidth=0.8,
        linestyle=(0, (3, 2)) if dashed else "solid",
    )
    axis.add_patch(rectangle)
    axis.text(x, y, text, ha="center", va="center", fontsize=size, color=colour)


def _frame(axis, x: float, y: float, width: float, height: float) -> None:
    rectangle = matplotlib.patches.Rectangle((x, y), width, height, fill=False, edgecolor=DARK, linewidth=1.4)
    axis.add_patch(rectangle)


def _arrow(
    axis, start, end, colour: str = DARK, width: float = 1, both: bool = False, bend: float = 0
) -> None:
    look = {
        "arrowstyle": "<|-|>" if both else "-|>",
        "color": colour,
        "linewidth": width,
        "shrinkA": 0,
        "shrinkB": 0,
        "connectionstyle": f"arc3,rad={bend}",
        "mutation_scale": 9,
    }
    axis.annotate("", xy=end, xytext=start, arrowprops=look)


def _key(axis, y: float, entries: dict[str, str]) -> None:
    """What the fills mean, in a line."""
    x = 0.5
    for fill, text in entries.items():
        _box(axis, x, y, "", fill, width=0.6, height=0.4, dashed=fill == WAITS)
        axis.text(x + 0.45, y, text, va="center", fontsize=8.5)
        x += 1.6 + 0.19 * len(text)
