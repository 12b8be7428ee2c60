"""One question a module: from traces, replays and decoded outputs to tables.

Layers are counted from 1; column `l - 1` of an array belongs to layer `l`. `labels` are constant columns put
in front of a table; intervals are 95 % intervals over sequences.
"""
