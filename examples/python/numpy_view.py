#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""numpy looks at a cache on the CPU: keys appended through the C API, seen in place.

usage: LARIAT_C=.../liblariat_c.so numpy_view.py
"""
import gc

import lariat

try:
    import numpy as np
except ImportError:
    print("SKIPPED: numpy is not here")
    raise SystemExit(0) from None

LAYERS, HEADS, DIM, BLOCK, TOKENS = 2, 3, 8, 4, 11


def turned(k):
    """Keys of positions 0, 1, ... with pairs (i, i + DIM / 2), each operation rounded to fp32."""
    frequencies = 10000.0 ** (-2.0 * np.arange(DIM // 2) / DIM)
    angles = np.arange(len(k))[:, None] * frequencies
    c, s = np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None]
    x, y = k[..., :DIM // 2], k[..., DIM // 2:]
    return np.concatenate([x * c - y * s, y * c + x * s], axis=-1)


def gathered(plane, blocks):
    """A sequence's rows in order: its blocks, one behind the other."""
    return plane[blocks].reshape(-1, *plane.shape[2:])[:TOKENS]


def main():
    random = np.random.default_rng(7)
    k = random.standard_normal((TOKENS, HEADS, DIM), dtype=np.float32)
    v = random.standard_normal((TOKENS, HEADS, DIM), dtype=np.float32)
    prompt = list(range(100, 100 + TOKENS))
    layer = lariat.struct(lariat.Layer, kv_heads=HEADS, k_dim=DIM, v_dim=DIM, rope=0)
    cache = lariat.Cache([layer] * LAYERS, [lariat.struct(lariat.Rope, rotary_dim=DIM)],
                         dtype=lariat.FP32, backend=lariat.BACKEND_CPU, num_blocks=8,
                         block_size=BLOCK, max_tokens_per_sequence=64)
    keys = np.from_dlpack(cache.tensor(LAYERS - 1, lariat.K))
    values = np.from_dlpack(cache.tensor(LAYERS - 1, lariat.V))
    assert keys.shape == (8, BLOCK, HEADS, DIM) and keys.dtype == np.float32
    assert not keys.any()  # the pool begins with zeros

    for request in range(2):
        sequence = cache.open(prompt)
        step, rows = cache.plan((sequence, TOKENS))
        hit, start = rows[0].hit, rows[0].start
        cache.prepare(step)
        for number in range(LAYERS):
            cache.append(step, number, dtype=lariat.FP32, k=k[start:].ctypes.data,
                         v=v[start:].ctypes.data)
        cache.commit(step)
        print(f"request {request}: {hit} of {TOKENS} tokens were cached")
        # The arrays were made before these rows were: they are the pool itself.
        blocks = cache.block_table(sequence)
        np.testing.assert_array_equal(gathered(keys, blocks), turned(k))
        np.testing.assert_array_equal(gathered(values, blocks), v)
    assert hit == 8

    # An array keeps the memory that it looks at; one that nobody takes is given back.
    del values
    cache.tensor(0, lariat.K)
    cache.close()
    gc.collect()
    np.testing.assert_array_equal(gathered(keys, blocks), turned(k))
    try:
        lariat.Cache([], dtype=7)
    except lariat.Error as error:
        print(f"refused: {error}")
    print("numpy saw every row in place")


if __name__ == "__main__":
    main()
