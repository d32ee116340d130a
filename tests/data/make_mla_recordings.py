#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes recordings of attention layers with latents (MLA) for `lariat verify`, from the formulas alone.

usage: make_mla_recordings.py [FOLDER]      (tests/data/recordings)

Plain Python floats, no library: a second opinion on what tools/record_hf.py records of the
transformers library, in shapes that no checkpoint has. Every layer gets hidden states of its own;
docs/verify.md has the format.
"""
import json
import math
import pathlib
import random
import struct
import sys

COMMON = {
    "first_k_dense_replace": 2, "hidden_act": "silu", "intermediate_size": 48,
    "max_position_embeddings": 512, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 1, "tie_word_embeddings": False, "vocab_size": 61,
}
# The norm of the latent adds 1e-6 whatever rms_norm_eps is.
LATENT_EPS = 1e-6
RECORDINGS = {
    # Halves turn; YaRN with an attention factor that is not 1; queries projected at once; odd widths.
    "mla_halves_yarn": {
        "seed": 11, "batch": 3, "prefill": 5, "steps": 6,
        "config": {
            "model_type": "deepseek_v3", "rope_interleave": False, "rms_norm_eps": 1e-5,
            "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
            "num_key_value_heads": 3, "kv_lora_rank": 20, "q_lora_rank": None,
            "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 7,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0,
                "beta_slow": 0.25, "mscale": 1.0, "mscale_all_dim": 0.7,
                "original_max_position_embeddings": 64},
        },
    },
    # Pairs turn where they lie, as in DeepSeek-V2; queries through a latent; one sequence.
    "mla_pairs": {
        "seed": 12, "batch": 1, "prefill": 8, "steps": 5,
        "config": {
            "model_type": "deepseek_v2", "rms_norm_eps": 1e-6,
            "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "kv_lora_rank": 33, "q_lora_rank": 9,
            "qk_nope_head_dim": 5, "qk_rope_head_dim": 8, "v_head_dim": 12,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
}


def matrix(random_source, rows, columns, scale):
    return [[random_source.gauss(0, scale) for _ in range(columns)] for _ in range(rows)]


def product(weights, x):
    return [sum(w * e for w, e in zip(row, x)) for row in weights]


def norm(x, weights):
    mean = sum(e * e for e in x) / len(x)
    return [e / math.sqrt(mean + LATENT_EPS) * w for e, w in zip(x, weights)]


def frequencies(dim, rope):
    """Radians per position of each pair, what cos and sin are multiplied by, and the scores."""
    plain = [rope["rope_theta"] ** (-2 * i / dim) for i in range(dim // 2)]
    if rope["rope_type"] == "default":
        return plain, 1.0, 1.0
    factor, length = rope["factor"], rope["original_max_position_embeddings"]

    def pair_of(turns):  # the pair that turns so often within the original length
        return dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(rope["rope_theta"]))

    low = max(math.floor(pair_of(rope["beta_fast"])), 0)
    high = min(math.ceil(pair_of(rope["beta_slow"])), dim - 1)
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(dim // 2)]
    turned = [f / factor * r + f * (1 - r) for f, r in zip(plain, ramp)]

    def grown(by):
        return 0.1 * by * math.log(factor) + 1

    amplitude = grown(rope["mscale"]) / grown(rope["mscale_all_dim"])
    return turned, amplitude, grown(rope["mscale_all_dim"]) ** 2


def turn(x, position, halves, inv_freq, amplitude):
    half = len(x) // 2
    result = list(x)
    for i, frequency in enumerate(inv_freq):
        a, b = (i, i + half) if halves else (2 * i, 2 * i + 1)
        cos = amplitude * math.cos(position * frequency)
        sin = amplitude * math.sin(position * frequency)
        result[a] = x[a] * cos - x[b] * sin
        result[b] = x[a] * sin + x[b] * cos
    return result


def attend(q, keys, values, scale):
    scores = [scale * sum(a * b for a, b in zip(q, key)) for key in keys]
    largest = max(scores)
    shares = [math.exp(s - largest) for s in scores]
    total = sum(shares)
    return [sum(p * v[e] for p, v in zip(shares, values)) / total for e in range(len(values[0]))]


class Layer:
    def __init__(self, config, seed):
        source = random.Random(seed)
        self.source = source
        self.config = config
        self.heads = config["num_attention_heads"]
        self.rank, self.rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
        self.nope, self.v = config["qk_nope_head_dim"], config["v_head_dim"]
        hidden, q_rank = config["hidden_size"], config["q_lora_rank"]
        q_out = self.heads * (self.nope + self.rope)
        self.weights = {
            "kv_a_proj_with_mqa": matrix(source, self.rank + self.rope, hidden, 0.05),
            "kv_a_layernorm": [1 + source.gauss(0, 0.3) for _ in range(self.rank)],
            "kv_b_proj": matrix(source, self.heads * (self.nope + self.v), self.rank, 0.3)}
        if q_rank is None:
            self.q_proj = matrix(source, q_out, hidden, 0.3)
        else:
            self.weights["q_a_proj"] = matrix(source, q_rank, hidden, 0.3)
            self.weights["q_a_layernorm"] = [1 + source.gauss(0, 0.3) for _ in range(q_rank)]
            self.weights["q_b_proj"] = matrix(source, q_out, q_rank, 0.5)

    def queries(self, hidden):
        if self.config["q_lora_rank"] is None:
            return product(self.q_proj, hidden)
        latent = norm(product(self.weights["q_a_proj"], hidden), self.weights["q_a_layernorm"])
        return product(self.weights["q_b_proj"], latent)

    def run(self, tokens):
        """One sequence: lists of T rows by name."""
        inv_freq, amplitude, grown = frequencies(self.rope, self.config["rope_parameters"])
        halves = self.config.get("rope_interleave") is False
        scale = grown / math.sqrt(self.nope + self.rope)
        q_name = "q_proj" if self.config["q_lora_rank"] is None else "q_b_proj"
        names = ("hidden", "kv_a_proj_with_mqa", "kv_a_layernorm", q_name, "cache_k", "cache_v",
                 "attn_out")
        rows = {name: [] for name in names}
        keys, values = [[] for _ in range(self.heads)], [[] for _ in range(self.heads)]
        for t in range(tokens):
            hidden = [self.source.gauss(0, 1) for _ in range(self.config["hidden_size"])]
            down = product(self.weights["kv_a_proj_with_mqa"], hidden)
            latent = norm(down[:self.rank], self.weights["kv_a_layernorm"])
            k_pe = turn(down[self.rank:], t, halves, inv_freq, amplitude)
            up = product(self.weights["kv_b_proj"], latent)
            q = self.queries(hidden)
            out = []
            for h in range(self.heads):
                head = up[h * (self.nope + self.v):(h + 1) * (self.nope + self.v)]
                keys[h].append(head[:self.nope] + k_pe)
                values[h].append(head[self.nope:])
                own = q[h * (self.nope + self.rope):(h + 1) * (self.nope + self.rope)]
                turned = turn(own[self.nope:], t, halves, inv_freq, amplitude)
                out += attend(own[:self.nope] + turned, keys[h], values[h], scale)
            for name, row in zip(names, (hidden, down, latent, q, latent, k_pe, out)):
                rows[name].append(row)
        return rows


def shape_of(values):
    return [len(values)] + shape_of(values[0]) if isinstance(values, list) else []


def flat(values):
    return [e for v in values for e in flat(v)] if isinstance(values, list) else [values]


def write(folder, name, recording):
    config = {**COMMON, **recording["config"]}
    tensors = {}
    for number in range(config["num_hidden_layers"]):
        layer = Layer(config, 1000 * recording["seed"] + number)
        runs = [layer.run(recording["prefill"] + recording["steps"])
                for _ in range(recording["batch"])]
        for key in runs[0]:
            cached = key.startswith("cache_")
            tensors[f"l{number}.{key}"] = [[run[key]] if cached else run[key] for run in runs]
        for key, values in layer.weights.items():
            tensors[f"l{number}.w.{key}"] = values
    header = {"__metadata__": {"model": name, "B": str(recording["batch"]),
                               "prefill": str(recording["prefill"]),
                               "steps": str(recording["steps"])}}
    data = b""
    for key, values in sorted(tensors.items()):
        numbers = flat(values)
        begin = len(data)
        data += struct.pack(f"<{len(numbers)}f", *numbers)
        header[key] = {"dtype": "F32", "shape": shape_of(values),
                       "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / f"{name}.config.json").write_text(json.dumps(config, indent=2) + "\n",
                                                encoding="utf-8")


def main():
    beside = pathlib.Path(__file__).resolve().parent / "recordings"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else beside
    for name, recording in RECORDINGS.items():
        write(folder, name, recording)


if __name__ == "__main__":
    main()
