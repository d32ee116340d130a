#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch attends to a cache, on a GPU where there is one: bf16 keys and values are appended through
the C API on torch's stream, seen in place through DLPack, and gathered by the block table. The
result is compared with attention over the rows as they were computed.

usage: LARIAT_C=.../liblariat_c.so torch_view.py [cuda|cpu]   (cuda where there is a GPU)
"""
import math
import sys

import lariat

try:
    import torch
except ImportError:
    print("SKIPPED: torch is not here")
    raise SystemExit(0) from None

LAYERS, HEADS, DIM, BLOCK, PROMPT, DECODED = 2, 4, 64, 16, 100, 5


def rotation(positions, device):
    frequencies = 10000.0 ** (-2.0 * torch.arange(DIM // 2, dtype=torch.float64) / DIM)
    angles = positions.double()[:, None] * frequencies
    return (angles.cos().float()[:, None].to(device), angles.sin().float()[:, None].to(device))


def turned(k, positions):
    """As the cache stores keys: each operation rounded to fp32, then one rounding to bf16."""
    c, s = rotation(positions, k.device)
    x, y = k.float()[..., :DIM // 2], k.float()[..., DIM // 2:]
    return torch.cat([x * c - y * s, y * c + x * s], dim=-1).to(torch.bfloat16)


def attention(q, k, v):
    """One query [HEADS, DIM] over rows [T, HEADS, DIM]."""
    scores = torch.einsum("hd,thd->ht", q.float(), k.float()) / math.sqrt(DIM)
    return torch.einsum("ht,thd->hd", scores.softmax(-1), v.float())


def main():
    cuda = sys.argv[1] == "cuda" if len(sys.argv) > 1 else torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    backend = lariat.BACKEND_CUDA if cuda else lariat.BACKEND_CPU
    generator = torch.Generator().manual_seed(7)
    total = PROMPT + DECODED
    # [layer, token, head, element]; projections would make these.
    shape = (LAYERS, total, HEADS, DIM)
    k_new, v_new = (torch.randn(shape, generator=generator).to(device, torch.bfloat16)
                    for _ in range(2))
    layer = lariat.struct(lariat.Layer, kv_heads=HEADS, k_dim=DIM, v_dim=DIM, rope=0)
    cache = lariat.Cache([layer] * LAYERS, [lariat.struct(lariat.Rope, rotary_dim=DIM)],
                         dtype=lariat.BF16, backend=backend, num_blocks=64, block_size=BLOCK,
                         max_tokens_per_sequence=1024)
    keys = [torch.from_dlpack(cache.tensor(i, lariat.K)) for i in range(LAYERS)]
    values = [torch.from_dlpack(cache.tensor(i, lariat.V)) for i in range(LAYERS)]
    assert keys[0].device == device and keys[0].dtype == torch.bfloat16
    assert keys[0].shape == (64, BLOCK, HEADS, DIM)

    # All work is on one stream, so that it is in order: torch's own. The cache borrows it.
    torch_stream = torch.cuda.Stream() if cuda else None
    stream = torch_stream.cuda_stream if cuda else None
    if cuda:
        torch_stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(torch_stream)
    worst, checked = 0.0, 0
    for request in range(2):
        sequence = cache.open(list(range(PROMPT)))
        length = 0
        while length < total:
            step, rows = cache.plan((sequence, PROMPT if length == 0 else 1))
            start, length = rows[0].start, rows[0].start + rows[0].count
            if start + rows[0].count == PROMPT:
                print(f"request {request}: {rows[0].hit} of {PROMPT} prompt tokens were cached")
            cache.prepare(step, stream)
            table = torch.tensor(cache.block_table(sequence), device=device)
            for i in range(LAYERS):
                cache.append(step, i, stream, dtype=lariat.BF16,
                             k=k_new[i, start:].data_ptr(), v=v_new[i, start:].data_ptr())
                k = keys[i][table].flatten(0, 1)[:length]
                v = values[i][table].flatten(0, 1)[:length]
                expected = turned(k_new[i, :length], torch.arange(length))
                assert torch.equal(v, v_new[i, :length]), f"layer {i}: values differ"
                assert torch.equal(k, expected), f"layer {i}: keys differ"
                q = turned(v_new[i, length - 1:length], torch.tensor([length - 1]))[0]
                got = attention(q, k, v)
                want = attention(q.cpu(), expected.cpu(), v_new[i, :length].cpu())
                worst = max(worst, (got.cpu() - want).abs().max().item())
                checked += 1
            cache.commit(step, stream)
    # fp32 sums of at most `total` products each, of values around 1.
    assert worst < 1e-4, worst
    if cuda:
        torch.cuda.synchronize()
    cache.close()
    # The tensors keep the pool: it is still there, though the cache is not.
    assert torch.equal(values[0][table].flatten(0, 1)[:total], v_new[0])
    print(f"torch on {device} attended in place {checked} times; largest difference {worst:.1e}")


if __name__ == "__main__":
    main()
