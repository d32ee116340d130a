#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what a Hugging Face model computes, for `lariat verify` (docs/verify.md).

usage: record_hf.py MODEL OUT.safetensors [--random SEED] [--batch 2] [--prefill 11] [--steps 5]

MODEL is a model's folder or name; with --random it is a config.json (or a folder or name that has
one), and the model gets random weights from that seed. The model runs in float64 with eager
attention: the first --prefill tokens in one call, then --steps times one token. Writes
OUT.safetensors, and the model's config beside it as OUT.config.json.

Needs torch, transformers (5.x) and safetensors. Attention layers are found by the names of their
projections: q_proj, k_proj, v_proj; a fused qkv_proj of [q | k | v]; or those of MLA.
"""
import argparse
import collections
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

# What of an attention module is recorded: the outputs of these children, as they come.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm")
# Norms of single heads, by the projection that they read: brought to [B, T, heads, head_dim].
NORMS = {"q_norm": "q_proj", "k_norm": "k_proj", "v_norm": "v_proj",
         "q_layernorm": "q_proj", "k_layernorm": "k_proj"}
WEIGHTS = ("q_norm", "k_norm", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "q_a_proj",
           "q_a_layernorm", "q_b_proj")
OUTPUT = ("o_proj", "out_proj", "dense")  # reads the attention's output
MARKS = ("k_proj", "qkv_proj", "kv_a_proj_with_mqa")  # a child that only attention has
LIMIT = 1 << 31  # bytes of a recording at most


def build_model(name, seed):
    """The model in float64, with the weights there are or with random ones."""
    options = {"attn_implementation": "eager"}
    if seed is None:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float64, **options)
        return model.eval()
    if pathlib.Path(name).is_file():
        fields = json.loads(pathlib.Path(name).read_text(encoding="utf-8"))
        config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    else:
        config = transformers.AutoConfig.from_pretrained(name)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, **options).double().eval()
    # Norms begin as ones and biases as zeros, where leaving one out would not be seen.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model


def find_attention(model):
    """The attention modules by their layer."""
    found = {}
    for name, module in model.named_modules():
        children = dict(module.named_children())
        layer = getattr(module, "layer_idx", None)
        if layer is None or not any(mark in children for mark in MARKS):
            continue
        if layer in found:
            sys.exit(f"{name}: a second attention of layer {layer}; this model is not supported")
        found[layer] = module
    if not found:
        sys.exit("no attention layer with one of: " + ", ".join(MARKS))
    return found


class Recorder:
    """Hooks on every attention module; keeps what each call saw, in order."""

    def __init__(self, model):
        self.config = model.config.get_text_config()
        self.calls = collections.defaultdict(list)  # tensor name -> one tensor per call
        self.weights = {}
        self.layers = find_attention(model)
        for layer, module in sorted(self.layers.items()):
            self.watch(layer, module)

    def keep(self, name, tensor):
        self.calls[name].append(tensor.detach().clone())

    def watch(self, layer, module):
        prefix = f"l{layer}."
        children = dict(module.named_children())

        def hidden(_, args, kwargs):
            self.keep(prefix + "hidden", args[0] if args else kwargs["hidden_states"])

        module.register_forward_pre_hook(hidden, with_kwargs=True)
        for name, child in children.items():
            if name in PROJECTIONS:
                child.register_forward_hook(
                    lambda _, args, out, key=prefix + name: self.keep(key, out))
            elif name == "qkv_proj":
                child.register_forward_hook(
                    lambda _, args, out, module=module: self.split(prefix, module, out))
            elif name in NORMS:
                child.register_forward_hook(
                    lambda _, args, out, name=name: self.norm(prefix, name, args[0], out))
            elif name in OUTPUT:
                child.register_forward_pre_hook(
                    lambda _, args: self.keep(prefix + "attn_out", args[0]))
            weight = getattr(child, "weight", None)
            if name in WEIGHTS and weight is not None:
                # kv_a_layernorm and its like exist in models without MLA too; q_b_proj does not.
                self.weights[f"{prefix}w.{name}"] = weight.detach()
                bias = getattr(child, "bias", None)
                if bias is not None:
                    self.weights[f"{prefix}b.{name}"] = bias.detach()
        sinks = getattr(module, "sinks", None)
        if sinks is not None:
            self.weights[prefix + "w.sinks"] = sinks.detach()

    def split(self, prefix, module, out):
        """A fused projection of q, k and v, one behind the other."""
        dim = module.head_dim
        q = self.config.num_attention_heads * dim
        kv = self.config.num_key_value_heads * dim
        if out.shape[-1] != q + 2 * kv:
            sys.exit(f"{prefix}qkv_proj gives {out.shape[-1]} elements; expected {q + 2 * kv}")
        for name, part in zip(("q_proj", "k_proj", "v_proj"), out.split([q, kv, kv], dim=-1)):
            self.keep(prefix + name, part)

    def norm(self, prefix, name, given, out):
        """A norm of heads, [B, T, heads, dim] whatever order of axes the model works in."""
        projection = self.calls[prefix + NORMS[name]][-1]
        batch, tokens = projection.shape[:2]
        key = prefix + name.replace("layernorm", "norm")
        if given.dim() == 3 and torch.equal(given, projection):  # over all heads at once
            dim = getattr(self.layers[int(prefix[1:-1])], "head_dim", out.shape[-1])
            self.keep(key, out.reshape(batch, tokens, -1, dim))
            return
        heads = projection.view(batch, tokens, -1, given.shape[-1])
        if given.shape == heads.shape and torch.equal(given, heads):
            self.keep(key, out)
        elif given.dim() == 4 and torch.equal(given.transpose(1, 2), heads):
            self.keep(key, out.transpose(1, 2))
        else:  # behind RoPE, say: then it is not what RoPE turns
            sys.exit(f"{prefix}{name} does not read {NORMS[name]}; this model is not supported")

    def tensors(self, cache):
        result = {name: torch.cat(calls, dim=1) for name, calls in self.calls.items()}
        result.update(self.weights)
        for layer in self.layers:
            kept = cache.layers[layer] if layer < len(cache.layers) else None
            if getattr(kept, "keys", None) is None:
                continue  # shares another layer's cache, or has none
            result[f"l{layer}.cache_k"] = kept.keys
            result[f"l{layer}.cache_v"] = kept.values
        return {name: t.detach().to(torch.float32).contiguous().cpu().clone()
                for name, t in sorted(result.items())}


@torch.no_grad()
def record(model, seed, batch, prefill, steps):
    """Runs the model on random tokens and returns what `lariat verify` wants to know."""
    recorder = Recorder(model)
    generator = torch.Generator().manual_seed(seed)
    vocab = recorder.config.vocab_size
    ids = torch.randint(0, vocab, (batch, prefill + steps), generator=generator)
    ids = ids.to(next(model.parameters()).device)
    out = model(input_ids=ids[:, :prefill], use_cache=True)
    for t in range(prefill, prefill + steps):
        out = model(input_ids=ids[:, t:t + 1], past_key_values=out.past_key_values, use_cache=True)
    return recorder.tensors(out.past_key_values)


def write(path, model, tensors, batch, prefill, steps):
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    if size > LIMIT:
        sys.exit(f"the recording would take {size} bytes; take fewer tokens or a smaller model")
    path = pathlib.Path(path)
    metadata = {"model": path.name.removesuffix(".safetensors"), "B": str(batch),
                "prefill": str(prefill), "steps": str(steps)}
    save_file(tensors, str(path), metadata)
    config = path.with_name(metadata["model"] + ".config.json")
    config.write_text(model.config.to_json_string(), encoding="utf-8")


def count(least):
    def parse(text):
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}; allowed: {least} and up")
        return value
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--random", type=int, metavar="SEED",
                        help="random weights from this seed; MODEL is a config")
    parser.add_argument("--tokens-seed", type=int, default=0, help="of the token ids (0)")
    parser.add_argument("--batch", type=count(1), default=2, help="sequences (2)")
    parser.add_argument("--prefill", type=count(1), default=11, help="tokens of the first call (11)")
    parser.add_argument("--steps", type=count(1), default=5, help="calls of one token after it (5)")
    arguments = parser.parse_args()
    if not arguments.out.endswith(".safetensors"):
        parser.error(f"OUT = {arguments.out}; it must end in .safetensors")
    model = build_model(arguments.model, arguments.random)
    shape = (arguments.batch, arguments.prefill, arguments.steps)
    tensors = record(model, arguments.tokens_seed, *shape)
    write(arguments.out, model, tensors, *shape)
    elements = sum(tensor.numel() for tensor in tensors.values())
    print(f"{arguments.out}: {len(tensors)} tensors, {elements} elements")


if __name__ == "__main__":
    main()
