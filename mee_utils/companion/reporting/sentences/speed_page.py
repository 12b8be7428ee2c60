"""What the text of `figures/results/speed.md` rests on."""

from ...result_tables import one_machine


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    peers = one_machine(real("../bench/decoder").fillna({"against": ""}))
    int8 = peers[peers.against.str.contains("int8") & (peers["shape"] == "t5-large")]
    of_int8 = int8.set_index("batch")["median"]  # our speed as a share of CTranslate2's
    large = real("../bench/shapes").query("shape == 't5-large'")
    alone = large[(large.kind == "planned") & (large.batch == 1)].speed
    yield (
        "an int8 step takes half the time of ours, one output at a time, and about 40 % of it at batch 32",
        0.45 < of_int8[1] < 0.55 and 0.35 < of_int8[32] < 0.45,
    )
    least, most = (f"{of_int8[1] * speed:.0%}".removesuffix("%") for speed in (alone.min(), alone.max()))
    yield f"planned drafts would bring ours to {least} to {most} % of int8's speed", alone.min() > 1
    in_batches = large[(large.batch > 1) & large.kind.isin(["copies", "verified", "planned"])]
    yield (
        "in batches copies win at most a tenth back, and exits are not planned at all",
        in_batches.speed.max() < 1.15 and set(in_batches.kind) == {"copies"},
    )
    types = peers[peers.what.str.startswith("CTranslate2")].what
    yield (
        "CTranslate2 computes in float32 and in int8 on this processor, not in bfloat16",
        types.str.contains("int8").any() and not types.str.contains("bfloat16").any(),
    )
    greedy = peers[peers.against.str.startswith("transformers generate") & (peers.group == "full depth")]
    yield (
        "faster than `generate` of `transformers` at every shape, batch size and precision",
        greedy["median"].min() > 1,
    )
    drafts = real("../bench/exits").query("profile == 'real' and kind == 'verified' and batch >= 8")
    yield (
        "In batches of 8 or more, exits as drafts gain next to nothing",
        drafts.speed[drafts.drafts.notna()].max() < 1.08,
    )
