"""Bandits over thresholds (`mee_utils.exits.thresholds.BanditThreshold`), played on a replay."""

from collections.abc import Sequence

import numpy as np

from ..traces.replay import PolicyReplay
from ..traces.trace import Trace


def arm_rewards(
    replayed: PolicyReplay, arms: Sequence[float], cost: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """What each threshold of a bandit would have earned, and its exits (indices of `layers`): `[token, arm]`.

    As in `BanditThreshold`: the gain in confidence since the first decision minus `cost` by share of depth.
    """
    confidences = replayed.confidences  # [token, decision]
    above = confidences[:, :, None] > np.asarray(arms)  # [token, decision, arm]
    exits = np.where(above.any(axis=1), above.argmax(axis=1), len(replayed.decision_layers))
    last_seen = np.minimum(exits, confidences.shape[1] - 1)
    gain = np.take_along_axis(confidences, last_seen, axis=1) - confidences[:, :1]
    return gain - cost * replayed.layers[exits] / replayed.trace.layers, exits


def play(rewards: np.ndarray, streams: Sequence[np.ndarray], exploration: float = 1.0) -> list[np.ndarray]:
    """The arm of each token of each stream, `[stream][token]`, if UCB plays every stream by itself.

    Arms are tried in their order, then the one with the largest `mean + exploration sqrt(ln t / n)`.

    Args:
        rewards: `[token, arm]`.
        streams: indices of tokens, in the order in which they are played; all streams go side by side.
        exploration: how much an arm's bonus for being rarely tried weighs.
    """
    lengths = np.array([len(stream) for stream in streams])
    tokens = np.zeros((len(streams), lengths.max()), dtype=np.int64)  # [stream, play]
    for row, stream in zip(tokens, streams, strict=True):
        row[: len(stream)] = stream
    count = rewards.shape[1]
    chosen = np.zeros_like(tokens)
    earned = np.zeros((len(streams), count))
    times = np.zeros((len(streams), count))
    for played in range(tokens.shape[1]):
        running = np.flatnonzero(lengths > played)
        arm = np.full(len(running), played)
        if played >= count:
            bonus = exploration * np.sqrt(np.log(played) / times[running])
            arm = (earned[running] / times[running] + bonus).argmax(axis=1)
        chosen[running, played] = arm
        earned[running, arm] += rewards[tokens[running, played], arm]
        times[running, arm] += 1
    return [row[:length] for row, length in zip(chosen, lengths, strict=True)]


def bandit_players(rewards: np.ndarray, trace: Trace, splits: int) -> list[tuple[str, np.ndarray]]:
    """Who, and the arm of each token `[token]`: a bandit for each output; one stream in `splits` orders."""
    outputs = trace.by_output(np.arange(len(rewards)))
    random = np.random.default_rng(0)
    orders = [random.permutation(len(outputs)) for _ in range(splits)]
    streams = [np.concatenate([outputs[number] for number in order]) for order in orders]
    players = [("bandit, each output", np.concatenate(play(rewards, outputs)))]
    for stream, arms in zip(streams, play(rewards, streams), strict=True):
        in_order = np.zeros(len(rewards), dtype=np.int64)
        in_order[stream] = arms
        players.append(("bandit, one stream", in_order))
    return players
