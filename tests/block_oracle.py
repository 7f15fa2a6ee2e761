"""A block decomposed by loops over heads, queries and keys in numpy, from its formula and the model's own modules.

Shares no line with `clearhead.linalg`: modules are named here again, vectors are kept one a pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Vector = np.ndarray
Norm = tuple[str, Vector, Vector, float] | None
"""("layer" or "rms", gain, beta, eps)."""


def array(tensor: Any) -> Vector:
    return tensor.detach().double().numpy()


def layer_norm(module: Any) -> Norm:
    return "layer", array(module.weight), array(module.bias), module.eps


def rms_norm(module: Any, offset: float = 0.0) -> Norm:
    eps = module.eps if offset else module.variance_epsilon
    return "rms", offset + array(module.weight), np.zeros(len(module.weight)), eps


def linear(module: Any) -> tuple[Vector, Vector]:
    """(weight [out, in], bias [out])."""
    weight = array(module.weight)
    if type(module).__name__ == "Conv1D":
        weight = weight.T
    return weight, np.zeros(len(weight)) if module.bias is None else array(module.bias)


@dataclass
class Plain:
    """One block in numpy."""

    value: tuple[Vector, Vector]
    output: tuple[Vector, Vector]
    up: tuple[Vector, Vector]
    down: tuple[Vector, Vector]
    act: Callable[[Vector], Vector]
    gate: tuple[Vector, Vector] | None = None
    before: Norm = None
    on_output: Norm = None
    after: Norm = None
    ff_before: Norm = None
    ff_on_output: Norm = None
    ff_after: Norm = None
    parallel: bool = False


def activation(name: str) -> Callable[[Vector], Vector]:
    def gelu(z: Vector) -> Vector:
        return np.array([0.5 * v * (1 + torch.erf(torch.tensor(v / 2**0.5, dtype=torch.float64)).item()) for v in z])

    def gelu_tanh(z: Vector) -> Vector:
        return 0.5 * z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))

    def silu(z: Vector) -> Vector:
        return z / (1 + np.exp(-z))

    return {"gelu": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "silu": silu}[name]


def plain(family: str, layer: Any, config: Any) -> Plain:
    """The block of a layer module, as the family's own source code has it."""
    if family in ("bert", "roberta", "electra"):
        return Plain(
            linear(layer.attention.self.value), linear(layer.attention.output.dense), linear(layer.intermediate.dense),
            linear(layer.output.dense), activation("gelu"), after=layer_norm(layer.attention.output.LayerNorm),
            ff_after=layer_norm(layer.output.LayerNorm),
        )  # fmt: skip
    if family == "mpnet":
        return Plain(
            linear(layer.attention.attn.v), linear(layer.attention.attn.o), linear(layer.intermediate.dense),
            linear(layer.output.dense), activation("gelu"), after=layer_norm(layer.attention.LayerNorm),
            ff_after=layer_norm(layer.output.LayerNorm),
        )  # fmt: skip
    if family == "distilbert":
        return Plain(
            linear(layer.attention.v_lin), linear(layer.attention.out_lin), linear(layer.ffn.lin1),
            linear(layer.ffn.lin2), activation("gelu"), after=layer_norm(layer.sa_layer_norm),
            ff_after=layer_norm(layer.output_layer_norm),
        )  # fmt: skip
    if family == "albert":
        return Plain(
            linear(layer.attention.value), linear(layer.attention.dense), linear(layer.ffn), linear(layer.ffn_output),
            activation("gelu_new"), after=layer_norm(layer.attention.LayerNorm),
            ff_after=layer_norm(layer.full_layer_layer_norm),
        )  # fmt: skip
    if family == "gpt2":
        weight, bias = linear(layer.attn.c_attn)
        third = len(weight) // 3
        return Plain(
            (weight[2 * third :], bias[2 * third :]), linear(layer.attn.c_proj), linear(layer.mlp.c_fc),
            linear(layer.mlp.c_proj), activation("gelu_new"), before=layer_norm(layer.ln_1),
            ff_before=layer_norm(layer.ln_2),
        )  # fmt: skip
    if family == "gptj":
        return Plain(
            linear(layer.attn.v_proj), linear(layer.attn.out_proj), linear(layer.mlp.fc_in), linear(layer.mlp.fc_out),
            activation("gelu_new"), before=layer_norm(layer.ln_1), ff_before=layer_norm(layer.ln_1), parallel=True,
        )  # fmt: skip
    if family == "gpt_neox":
        weight, bias = linear(layer.attention.query_key_value)
        width = len(weight) // 3 // config.num_attention_heads
        rows = [3 * width * h + 2 * width + k for h in range(config.num_attention_heads) for k in range(width)]
        return Plain(
            (weight[rows], bias[rows]), linear(layer.attention.dense), linear(layer.mlp.dense_h_to_4h),
            linear(layer.mlp.dense_4h_to_h), activation("gelu"), before=layer_norm(layer.input_layernorm),
            ff_before=layer_norm(layer.post_attention_layernorm), parallel=config.use_parallel_residual,
        )  # fmt: skip
    gemma = family == "gemma3_text"
    one = 1.0 if gemma else 0.0
    found = Plain(
        linear(layer.self_attn.v_proj), linear(layer.self_attn.o_proj), linear(layer.mlp.up_proj),
        linear(layer.mlp.down_proj), activation("gelu_pytorch_tanh" if gemma else "silu"),
        gate=linear(layer.mlp.gate_proj), before=rms_norm(layer.input_layernorm, one),
    )  # fmt: skip
    if gemma:
        found.on_output = rms_norm(layer.post_attention_layernorm, one)
        found.ff_before = rms_norm(layer.pre_feedforward_layernorm, one)
        found.ff_on_output = rms_norm(layer.post_feedforward_layernorm, one)
    else:
        found.ff_before = rms_norm(layer.post_attention_layernorm)
    return found


def normalise(norm: Norm, y: Vector) -> Vector:
    if norm is None:
        return y
    return of_part(norm, y, y) + norm[2]


def of_part(norm: Norm, part: Vector, whole: Vector) -> Vector:
    """A norm on one part of a vector: its own mean, the deviation of the whole, no beta."""
    if norm is None:
        return part
    kind, gain, _, eps = norm
    if kind == "layer":
        deviation = (sum((v - whole.mean()) ** 2 for v in whole) / len(whole) + eps) ** 0.5
        return (part - part.mean()) / deviation * gain
    return part / (sum(v**2 for v in whole) / len(whole) + eps) ** 0.5 * gain


@dataclass
class Pass:
    """One block run token by token, with the vector of every head, query and key."""

    block: Plain
    x: Vector
    weights: Vector  # head query key
    vectors: Vector  # head query key width: a f(x_j)
    attention: Vector
    summed: Vector
    middle: Vector
    inner: Vector
    gates: Vector | None
    raised: Vector
    total: Vector
    output: Vector


def run(block: Plain, x: Vector, weights: Vector) -> Pass:
    heads, n, _ = weights.shape
    weight, bias = block.value
    d_v = block.output[0].shape[1] // heads
    kv = len(weight) // d_v
    vectors = np.zeros((heads, n, n, x.shape[1]))
    for h in range(heads):
        group = h // (heads // kv)
        rows = slice(group * d_v, (group + 1) * d_v)
        for j in range(n):
            value = weight[rows] @ normalise(block.before, x[j]) + bias[rows]
            written = block.output[0][:, h * d_v : (h + 1) * d_v] @ value
            for i in range(n):
                vectors[h, i, j] = weights[h, i, j] * written
    attention = np.array([sum(vectors[h, i, j] for h in range(heads) for j in range(n)) for i in range(n)])
    attention = attention + block.output[1]
    summed = np.array([x[i] + normalise(block.on_output, attention[i]) for i in range(n)])
    middle = np.array([normalise(block.after, y) for y in summed])
    inner, gates, raised = [], [], []
    for i in range(n):
        read = normalise(block.ff_before, x[i] if block.parallel else middle[i])
        inner.append(block.up[0] @ read + block.up[1])
        if block.gate is not None:
            gates.append(block.act(block.gate[0] @ read + block.gate[1]))
        active = block.act(inner[-1]) if block.gate is None else gates[-1] * inner[-1]
        raised.append(block.down[0] @ active + block.down[1])
    total = np.array([middle[i] + normalise(block.ff_on_output, raised[i]) for i in range(n)])
    output = np.array([normalise(block.ff_after, y) for y in total])
    return Pass(
        block, x, weights, vectors, attention, summed, middle, np.array(inner), np.array(gates) if gates else None,
        np.array(raised), total, output,
    )  # fmt: skip


def residual_parts(ran: Pass, *, norm: bool) -> Vector:
    """F_i(x_j) [query, key, width]."""
    n = len(ran.x)
    found = np.zeros((n, n, ran.x.shape[1]))
    for i in range(n):
        for j in range(n):
            part = of_part(ran.block.on_output, ran.vectors[:, i, j].sum(0), ran.attention[i])
            if i == j:
                part = part + ran.x[i]
            found[i, j] = of_part(ran.block.after, part, ran.summed[i]) if norm else part
    return found


def share(parts: list[Vector], bias: Vector, rule: str | None) -> list[Vector]:
    """The parts of one query with a bias shared among them."""
    if rule is None:
        return parts
    size = [abs(sum(p * bias)) if rule == "absdot" else sum(p**2) ** 0.5 for p in parts]
    if sum(size) == 0:
        return parts
    return [p + s / sum(size) * bias for p, s in zip(parts, size, strict=True)]


def norm_parts(norm: Norm, parts: list[Vector], whole: Vector, rule: str | None) -> list[Vector]:
    if norm is None:
        return parts
    return share([of_part(norm, p, whole) for p in parts], norm[2], rule)


def derivative(act: Callable[[Vector], Vector], z: Vector) -> Vector:
    """By central differences of fourth order (1e-11 of functions of order 1)."""
    h = 1e-3
    return (8 * (act(z + h) - act(z - h)) - (act(z + 2 * h) - act(z - 2 * h))) / (12 * h)


def carried(
    ran: Pass, states: list[list[Vector]] | None, rule: str | None, slope: str, feed_forward: bool
) -> list[list[Vector]]:
    """DecompX: parts [query][source] after the block, from those before it (None: each token is its own)."""
    block, n, heads = ran.block, len(ran.x), len(ran.weights)
    weight, value_bias = block.value
    d_v = block.output[0].shape[1] // heads
    group = heads // (len(weight) // d_v)
    bias = block.output[1].copy()
    read: list[list[Vector]] = []
    if states is not None:
        for h in range(heads):
            rows = slice(h // group * d_v, (h // group + 1) * d_v)
            bias += block.output[0][:, h * d_v : (h + 1) * d_v] @ value_bias[rows]
        read = [norm_parts(block.before, states[j], ran.x[j], rule) for j in range(n)]
    found = []
    for i in range(n):
        own = [ran.x[i] * (k == i) for k in range(n)] if states is None else states[i]
        parts = []
        for k in range(n):
            part = np.zeros(ran.x.shape[1])
            for h in range(heads):
                if states is None:
                    part = part + ran.vectors[h, i, k]
                    continue
                rows = slice(h // group * d_v, (h // group + 1) * d_v)
                for j in range(n):
                    moved = block.output[0][:, h * d_v : (h + 1) * d_v] @ (weight[rows] @ read[j][k])
                    part = part + ran.weights[h, i, j] * moved
            parts.append(part)
        if block.on_output is None:
            parts = share([p + o for p, o in zip(parts, own, strict=True)], bias, rule)
        else:
            parts = norm_parts(block.on_output, share(parts, bias, rule), ran.attention[i], rule)
            parts = [p + o for p, o in zip(parts, own, strict=True)]
        parts = norm_parts(block.after, parts, ran.summed[i], rule)
        if feed_forward:
            source = own if block.parallel else parts
            whole = ran.x[i] if block.parallel else ran.middle[i]
            added = share(
                [block.up[0] @ p for p in norm_parts(block.ff_before, source, whole, rule)], block.up[1], rule
            )
            z = ran.inner[i]
            if ran.gates is not None:
                added = [p * ran.gates[i] for p in added]
            elif slope == "GeLU_ZO":
                added = [p * block.act(z) / z for p in added]
            else:
                tangent = derivative(block.act, z)
                added = share([p * tangent for p in added], block.act(z) - tangent * z, rule)
            added = share([block.down[0] @ p for p in added], block.down[1], rule)
            added = norm_parts(block.ff_on_output, added, ran.raised[i], rule)
            parts = [p + a for p, a in zip(parts, added, strict=True)]
        found.append(norm_parts(block.ff_after, parts, ran.total[i], rule))
    return found
