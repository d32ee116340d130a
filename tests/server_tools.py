# SPDX-License-Identifier: Apache-2.0
"""What the tests of tiny_server share: a server, HTTP clients, checkpoints."""
import array
import http.client
import json
import math
import pathlib
import random
import re
import socket
import struct
import subprocess
import time


class Server:
    """A running tiny_server. As a context manager: stopped at the end, and must end well."""

    def __init__(self, program, *arguments):
        # A file for stderr: a pipe that nobody reads could fill up.
        self.process = subprocess.Popen([program, "--port", "0", *map(str, arguments)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.communicate()[1])
        self.port = int(line.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        code, errors = self.wait()
        if kind is None:
            assert (code, errors) == (0, ""), (code, errors)

    def wait(self, timeout=60):
        """Exit code, and what it wrote to stderr (where a sanitizer would report)."""
        try:
            errors = self.process.communicate(timeout=timeout)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, errors

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def socket(self, data=b"", timeout=60):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        connection.sendall(data)
        return connection

    def ask(self, method, path, body=None, connection=None, **headers):
        """(status, body as JSON or text)."""
        own = connection or self.connect()
        own.request(method, path, body if body is None or isinstance(body, (bytes, str))
                    else json.dumps(body), headers)
        response = own.getresponse()
        text = response.read().decode()
        if connection is None:
            own.close()
        is_json = response.headers.get("Content-Type") == "application/json"
        return response.status, json.loads(text) if is_json else text

    def complete(self, connection=None, **fields):
        status, answer = self.ask("POST", "/v1/completions", fields, connection)
        assert status == 200, (status, answer)
        return answer

    def stream(self, **fields):
        """The open connection, and an iterator of the events."""
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps({**fields, "stream": True}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["Content-Type"] == "text/event-stream"
        return connection, events(response)

    def complete_by_stream(self, **fields):
        """As complete, put together from the events."""
        connection, news = self.stream(**fields)
        answer = {"tokens": [], **({"logprobs": []} if fields.get("logprobs") else {})}
        for event in news:
            for name in ("tokens", "logprobs"):
                if name in event:
                    answer[name] += event.pop(name)
            answer.update(event)
        connection.close()
        return answer

    def metrics(self):
        """{'name{labels}': value}; None where the server was built without."""
        status, text = self.ask("GET", "/metrics")
        if status == 501:
            return None
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s*(\d+) kB", status).group(1))


def events(response):
    """Server-sent events, up to [DONE]."""
    while True:
        line = response.readline()
        if not line:
            return
        if line.strip():
            data = line.decode().removeprefix("data: ").strip()
            if data == "[DONE]":
                assert response.readline() == b"\n"
                assert response.read() == b""
                return
            yield json.loads(data)


def read_all(connection):
    """What a raw socket gives until its end."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError("it did not come about")
        time.sleep(0.01)
    return value


# --- Checkpoints ------------------------------------------------------------------------------


def bf16(value):
    """Cut to the upper half of its bits."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def write_safetensors(path, tensors, dtype):
    """tensors: {name: (shape, floats)}."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = (array.array("f", values) if dtype == "F32"
               else array.array("H", map(bf16, values))).tobytes()
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_llama(folder, seed=1, dtype="F32", files=1, tied=False, layers=2, hidden=24, heads=3,
               kv_heads=1, head_dim=8, intermediate=40, vocab=48, length=512):
    """Writes config.json and weights. Returns both, weights as the files hold them."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
              "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
              "num_key_value_heads": kv_heads, "head_dim": head_dim,
              "intermediate_size": intermediate, "vocab_size": vocab,
              "max_position_embeddings": length, "rms_norm_eps": 1e-4, "rope_theta": 500.0,
              "hidden_act": "silu", "tie_word_embeddings": tied, "torch_dtype": "float32"}
    draw = random.Random(seed)
    weights = {}

    def add(name, *shape, gain=1.0):
        scale = gain * math.sqrt(3 / shape[-1])
        values = [(1 + 0.5 * draw.uniform(-1, 1) if len(shape) == 1
                   else scale * draw.uniform(-1, 1)) for _ in range(math.prod(shape))]
        if dtype == "BF16":
            values = [struct.unpack("<f", struct.pack("<I", bf16(v) << 16))[0] for v in values]
        weights[name] = (list(shape), array.array("f", values))

    add("model.embed_tokens.weight", vocab, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        add(at + "input_layernorm.weight", hidden)
        add(at + "post_attention_layernorm.weight", hidden)
        add(at + "self_attn.q_proj.weight", heads * head_dim, hidden, gain=1.5)
        add(at + "self_attn.k_proj.weight", kv_heads * head_dim, hidden, gain=1.5)
        add(at + "self_attn.v_proj.weight", kv_heads * head_dim, hidden, gain=3)
        add(at + "self_attn.o_proj.weight", hidden, heads * head_dim, gain=3)
        add(at + "mlp.gate_proj.weight", intermediate, hidden)
        add(at + "mlp.up_proj.weight", intermediate, hidden)
        add(at + "mlp.down_proj.weight", hidden, intermediate)
    add("model.norm.weight", hidden)
    if not tied:
        add("lm_head.weight", vocab, hidden)

    folder = pathlib.Path(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = list(weights)
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors" if files > 1 else "model.safetensors"
        write_safetensors(folder / name, {n: weights[n] for n in names[i::files]}, dtype)
    return config, weights
