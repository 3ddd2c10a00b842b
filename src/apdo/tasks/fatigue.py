"""Fatigue damage of a load, step by step: rainflow counting with a state of fixed size.

Rainflow counting (ASTM E1049-85, 5.4.4) splits a load's history into cycles. A cycle of range r does damage in
proportion to r^m (Wöhler, Miner). The standard defines it for a whole history. Here the damage is computed for each
step. The state is the residue: the turning points that no closed cycle has removed yet, newest first, where s_0 is the
current load. With

    Φ(s) = ½ Σ_i |s_i - s_{i+1}|^m                        (open cycles count as half cycles, as in the standard)

the damage of a sample is Φ(after) - Φ(before) + Σ r^m over the cycles that it closes. Summed over a history this is
exactly the standard's count, as long as the residue fits into the state. If it does not fit, the oldest half cycle is
counted and dropped. A cycle that it could have closed later then counts as two halves.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

CLOSINGS = 3
"""The most cycles that one sample closes. Further ones are closed by later samples, or remain half cycles."""


def begin(load: Float[Array, " L"], length: int) -> Float[Array, "L K"]:
    """The residues of L loads without a history. Free places repeat the oldest point, so their ranges are zero."""
    return jnp.broadcast_to(load[:, None], (load.shape[0], length))


def add(
    residue: Float[Array, "L K"], load: Float[Array, " L"], exponent: Float[Array, " L"]
) -> tuple[Float[Array, "L K"], Float[Array, " L"]]:
    """The residues after one more sample of each load, and the damage of that sample."""
    before = _open(residue, exponent)
    onward = (load - residue[:, 0]) * (residue[:, 0] - residue[:, 1]) >= 0.0
    dropped = jnp.where(onward, 0.0, 0.5 * _damage(residue[:, -1] - residue[:, -2], exponent))
    extended = jnp.concatenate([load[:, None], residue[:, 1:]], axis=1)
    turned = jnp.concatenate([load[:, None], residue[:, :-1]], axis=1)
    residue = jnp.where(onward[:, None], extended, turned)
    paid = dropped
    for _ in range(CLOSINGS):
        residue, closed = _close(residue, exponent)
        paid = paid + closed
    return residue, paid + _open(residue, exponent) - before


def _close(
    residue: Float[Array, "L K"], exponent: Float[Array, " L"]
) -> tuple[Float[Array, "L K"], Float[Array, " L"]]:
    """Remove the newest inner pair if its range is within both neighbouring ranges: it is a whole cycle."""
    outer, inner, last = (jnp.abs(residue[:, i] - residue[:, i + 1]) for i in (2, 1, 0))
    closes = (inner <= outer) & (inner <= last)
    oldest = residue[:, -1:]
    shorter = jnp.concatenate([residue[:, :1], residue[:, 3:], oldest, oldest], axis=1)
    return jnp.where(closes[:, None], shorter, residue), jnp.where(closes, _damage(inner, exponent), 0.0)


def _open(residue: Float[Array, "L K"], exponent: Float[Array, " L"]) -> Float[Array, " L"]:
    return 0.5 * jnp.sum(_damage(residue[:, :-1] - residue[:, 1:], exponent[:, None]), axis=1)


def _damage(span: Float[Array, "..."], exponent: Float[Array, "..."]) -> Float[Array, "..."]:
    # The gradient of a plain power would be NaN at zero.
    size = jnp.abs(span)
    return jnp.where(size > 0.0, jnp.exp(exponent * jnp.log(jnp.where(size > 0.0, size, 1.0))), 0.0)
