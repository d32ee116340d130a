# SPDX-License-Identifier: Apache-2.0
"""A Llama in plain Python and double precision, written from the architecture alone."""
import math


class Model:
    def __init__(self, config, weights):
        self.config = config
        self.weights = weights

    def matrix(self, name):
        (rows, columns), values = self.weights[name]
        return [values[r * columns:(r + 1) * columns] for r in range(rows)]

    def norm(self, x, name):
        scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + self.config["rms_norm_eps"])
        return [v * scale * w for v, w in zip(x, self.weights[name][1])]

    def turn(self, head, position):
        """Pairs (i, i + half), as Hugging Face's checkpoints have them."""
        half = len(head) // 2
        out = list(head)
        for i in range(half):
            angle = position * self.config["rope_theta"] ** (-i / half)
            a, b = head[i], head[i + half]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def attention(self, at, xs):
        dim, heads = self.config["head_dim"], self.config["num_attention_heads"]
        group = heads // self.config["num_key_value_heads"]

        def project(what, x):
            return multiply(self.matrix(f"{at}self_attn.{what}_proj.weight"), x)

        def head(row, number):
            return row[number * dim:(number + 1) * dim]

        queries, keys, values = ([project(what, x) for x in xs] for what in "qkv")
        out = []
        for p, query in enumerate(queries):
            row = []
            for h in range(heads):
                turned = self.turn(head(query, h), p)
                scores = [dot(turned, self.turn(head(keys[j], h // group), j)) / math.sqrt(dim)
                          for j in range(p + 1)]
                parts = [math.exp(score - max(scores)) for score in scores]
                row += [sum(part * head(values[j], h // group)[i] for j, part in enumerate(parts)) /
                        sum(parts) for i in range(dim)]
            out.append(project("o", row))
        return out

    def mlp(self, at, x):
        gate, up = (multiply(self.matrix(f"{at}mlp.{what}_proj.weight"), x) for what in ("gate", "up"))
        return multiply(self.matrix(f"{at}mlp.down_proj.weight"),
                        [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)])

    def logits(self, tokens):
        """Of what comes behind each of the tokens."""
        embedding = self.matrix("model.embed_tokens.weight")
        xs = [list(embedding[token]) for token in tokens]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            attended = self.attention(at, [self.norm(x, at + "input_layernorm.weight") for x in xs])
            xs = [add(x, y) for x, y in zip(xs, attended)]
            xs = [add(x, self.mlp(at, self.norm(x, at + "post_attention_layernorm.weight")))
                  for x in xs]
        head = embedding if self.config["tie_word_embeddings"] else self.matrix("lm_head.weight")
        return [multiply(head, self.norm(x, "model.norm.weight")) for x in xs]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def add(a, b):
    return [x + y for x, y in zip(a, b)]


def multiply(matrix, x):
    return [dot(row, x) for row in matrix]
