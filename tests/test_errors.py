"""Wrong inputs raise before any work is done, and the message names the argument, the value and the remedy.

Each row: what a user might write, and words that the message must hold. A `TypeError` is for a thing of another kind, a
`ValueError` for sizes and numbers that do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import unified_attn.problem
from tests.cases.tools import ON_EDGES, edges
from unified_attn import (
    GAT,
    Additive,
    ALiBi,
    Backend,
    Causal,
    DenseBias,
    DenseMask,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    Mask,
    Padding,
    PairVectors,
    RoPE,
    Score,
    UnsupportedError,
    Where,
    Window,
    attention,
    attention_weights,
    attention_with_lse,
    explain,
    graph_attention,
    merge,
)

Q = torch.zeros(2, 2, 4, 8)  # B, H, N, D: no two alike but B and H
BOOLS = torch.ones(4, 4, dtype=torch.bool)
EDGES = edges((0, 1), (1, 2), (2, 3))
GRAPH = Graph(EDGES)
NAN, INF = float("nan"), float("inf")

Row = tuple[Callable[[], Any], type[Exception], str]


def zeros(*size: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.zeros(size, dtype=dtype, device=device)


def call(**options: Any) -> Callable[[], Any]:
    """The operator with good q, k and v."""
    return lambda: attention(Q, Q, Q, **options)


def on(q: Any = Q, k: Any = Q, v: Any = Q) -> Callable[[], Any]:
    """The operator with other inputs."""
    return lambda: attention(q, k, v)


INPUTS: dict[str, Row] = {
    "q None": (on(q=None), TypeError, "q is a NoneType; give a tensor [B, Hq, Nq, D]"),
    "k a list": (on(k=[1.0]), TypeError, "k is a list; give a tensor [B, Hkv, Nk, D]"),
    "v numpy": (on(v=Q.numpy()), TypeError, "v is a ndarray; give a tensor [B, Hkv, Nk, Dv]"),
    "q 3-D": (
        on(q=zeros(4, 2, 8)), ValueError,
        "q has shape [4, 2, 8]; it must be [B, Hq, Nq, D] "
        "(node-major [N, H, D]: x.transpose(0, 1)[None], or graph_attention)",
    ),
    "q 2-D": (on(q=zeros(4, 8)), ValueError, "q has shape [4, 8]; it must be [B, Hq, Nq, D]"),
    "v 5-D": (on(v=zeros(1, 2, 2, 4, 8)), ValueError, "v has shape [1, 2, 2, 4, 8]; it must be [B, Hkv, Nk, Dv]"),
    "integer q": (
        on(q=Q.long()), TypeError,
        "q is [2, 2, 4, 8] int64; attention computes with floats: convert it, e.g. q.float()",
    ),
    "bool v": (on(v=Q.bool()), TypeError, "v is [2, 2, 4, 8] bool; attention computes with floats"),
    "complex k": (on(k=Q.to(torch.complex64)), TypeError, "k is [2, 2, 4, 8] complex64"),
    "nested q": (
        on(q=torch.nested.nested_tensor([zeros(2, 4, 8), zeros(2, 3, 8)], layout=torch.jagged)),
        TypeError, "q is nested or sparse; give a dense [B, Hq, Nq, D]; ragged: pad, mask=Padding",
    ),
    "sparse k": (on(k=Q.to_sparse()), TypeError, "k is nested or sparse"),
    "dtypes": (
        on(k=Q.double()), ValueError, "q is torch.float32 but k is torch.float64; convert them to one dtype",
    ),
    "dtypes of halves": (on(v=Q.half()), ValueError, "q is torch.float32 but v is torch.float16"),
    "devices": (
        on(k=zeros(2, 2, 4, 8, device="meta")), ValueError, "q is on cpu but k is on meta; move them to one device",
    ),
    "batches": (
        on(k=Q[:1], v=Q[:1]), ValueError,
        "q has batch size 2 but k has 1; expand k to q's batch (k.expand(2, -1, -1, -1) copies nothing)",
    ),
    "heads no multiple": (
        on(q=zeros(2, 3, 4, 8)), ValueError, "q has 3 heads, which is no multiple of k's 2",
    ),
    "fewer heads than keys": (on(q=zeros(2, 1, 4, 8)), ValueError, "q has 1 heads, which is no multiple of k's 2"),
    "heads and tokens swapped": (
        on(q=zeros(2, 7, 4, 8), k=zeros(2, 5, 4, 8), v=zeros(2, 5, 4, 8)), ValueError,
        "are heads and tokens swapped? then transpose(1, 2)",
    ),
    "no key head": (on(k=Q[:, :0], v=Q[:, :0]), ValueError, "no multiple of k's 0"),
    "heads of k and v": (on(v=Q[:, :1]), ValueError, "k has 2 heads but v has 1; both must be Hkv"),
    "rows of k and v": (on(v=Q[:, :, :3]), ValueError, "k has 4 rows but v has 3; each key needs its value"),
    "head sizes": (on(k=Q[..., :6]), ValueError, "q has head size 8 but k has 6; both must be D (v may differ)"),
}  # fmt: skip

OPTIONS: dict[str, Row] = {
    "scale a tensor": (call(scale=torch.tensor(1.0)), TypeError, "scale is a Tensor; give a number, or None"),
    "scale a bool": (call(scale=True), TypeError, "scale is a bool; give a number"),
    "scale a string": (call(scale="1"), TypeError, "scale is a str; give a number"),
    "scale nan": (call(scale=NAN), ValueError, "scale is nan; it must be finite"),
    "scale inf": (call(scale=INF), ValueError, "scale is inf; it must be finite"),
    "dropout above 1": (call(dropout_p=1.5), ValueError, "dropout_p is 1.5; it is a probability in [0, 1]"),
    "dropout below 0": (call(dropout_p=-0.1), ValueError, "dropout_p is -0.1; it is a probability in [0, 1]"),
    "dropout nan": (call(dropout_p=NAN), ValueError, "dropout_p is nan"),
    "dropout None": (call(dropout_p=None), TypeError, "dropout_p is a NoneType; give a number in [0, 1]"),
    "dropout a bool": (call(dropout_p=True), TypeError, "dropout_p is a bool; give a number in [0, 1]"),
    "positions floats": (
        call(q_positions=torch.arange(4.0)), TypeError,
        "q_positions is [4] float32; give integer positions, [N] or [B, N]",
    ),
    "positions bools": (call(k_positions=BOOLS[0]), TypeError, "k_positions is [4] bool; give integer positions"),
    "positions a list": (call(q_positions=[0, 1, 2, 3]), TypeError, "q_positions is a list; give integer positions"),
    "positions too many": (
        call(k_positions=torch.arange(5)), ValueError, "k_positions has shape [5]; it must be [4] or [B, N] = [2, 4]",
    ),
    "positions 3-D": (
        call(q_positions=torch.zeros(2, 1, 4, dtype=torch.long)), ValueError, "q_positions has shape [2, 1, 4]",
    ),
    "positions of another batch": (
        call(q_positions=torch.zeros(3, 4, dtype=torch.long)), ValueError, "q_positions has shape [3, 4]",
    ),
    "positions elsewhere": (
        call(q_positions=torch.zeros(4, dtype=torch.long, device="meta")), ValueError,
        "q_positions is on meta, but q is on cpu",
    ),
    "top_left with positions": (
        call(mask=Causal(align="top_left"), q_positions=torch.arange(4)), ValueError,
        "Causal(align='top_left') counts rows, but positions were given: drop q_positions and k_positions",
    ),
    "top_left with positions, inside": (
        call(mask=~(Causal(align="top_left") & Window(1, 0)), k_positions=torch.arange(4)), ValueError,
        "Causal(align='top_left') counts rows",
    ),
    "backend unknown": (
        call(backend="flash"), ValueError,
        "backend is 'flash'; choose one of 'sdpa', 'tiled', 'csr', 'scatter', 'flex', 'reference', or None",
    ),
    "backend in capitals": (call(backend="CSR"), ValueError, "backend is 'CSR'; choose one of"),
    "backend a number": (call(backend=5), TypeError, "backend is a int; give a name or a Backend object"),
    "is_causal": (call(is_causal=True), TypeError, "is_causal"),
    "attn_mask": (call(attn_mask=BOOLS), TypeError, "attn_mask"),
}  # fmt: skip

BOTH_FORMS = (
    "which could mean two things: values to add to the logits (0 and -inf, or others): pass bias=DenseBias(mask); "
    "flags, 1 or 0: give a bool tensor, True = may attend (mask.bool())"
)

MASKS: dict[str, Row] = {
    "floats": (call(mask=BOOLS.float()), TypeError, f"mask is [4, 4] float32, {BOTH_FORMS}"),
    "integers": (call(mask=BOOLS.long()), TypeError, f"mask is [4, 4] int64, {BOTH_FORMS}"),
    "bytes": (call(mask=BOOLS.to(torch.uint8)), TypeError, f"mask is [4, 4] uint8, {BOTH_FORMS}"),
    "DenseMask of floats": (lambda: DenseMask(BOOLS.float()), TypeError, BOTH_FORMS),
    "DenseMask of a list": (lambda: DenseMask([[True]]), TypeError, "mask is list"),
    "edges as a mask": (call(mask=EDGES), TypeError, "for the edges of a graph pass Graph(edge_index)"),
    "a tuple": (
        call(mask=(Causal(), Window(1, 0))), TypeError,
        "mask is a tuple; give a Mask, or a bool tensor (True = may attend)",
    ),
    "a string": (call(mask="causal"), TypeError, "mask is a str; give a Mask"),
    "True": (call(mask=True), TypeError, "mask is a bool; give a Mask"),
    "a class": (call(mask=Causal), TypeError, "mask is the class Causal, not an object of it; give a Mask"),
    "a bias": (call(mask=ALiBi(2)), TypeError, "mask is a ALiBi; it is a bias: pass it as bias="),
    "a function": (call(mask=lambda b, h, i, j: i == j), TypeError, "mask is a function; wrap it as Where(fn)"),
    "a partial": (call(mask=partial(torch.eq)), TypeError, "mask is a partial; wrap it as Where(fn)"),
    "a mask and a tensor": (
        lambda: Causal() & BOOLS, TypeError,
        "& joins masks; the other is a tensor [4, 4] bool: wrap it as DenseMask(tensor)",
    ),
    "a mask or a tensor": (lambda: Causal() | BOOLS, TypeError, "wrap it as DenseMask(tensor)"),
    "a mask and a number": (lambda: Causal() & 1, TypeError, "unsupported operand type(s) for &: 'Causal' and 'int'"),
    "does not broadcast": (
        call(mask=torch.ones(3, 3, dtype=torch.bool)), ValueError,
        "the mask has shape [3, 3], which does not broadcast to [B, Hq, Nq, Nk] = [2, 2, 4, 4]; "
        "give each dimension its full size or 1",
    ),
    "padding as a mask": (call(mask=torch.ones(3, 4, dtype=torch.bool)), ValueError, "the mask has shape [3, 4]"),
    "5-D": (call(mask=BOOLS[None, None, None]), ValueError, "the mask has shape [1, 1, 1, 4, 4]"),
    "elsewhere": (
        call(mask=BOOLS.to("meta")), ValueError, "the mask is on meta, but q is on cpu; move it with .to('cpu')",
    ),
    "Causal unknown": (lambda: Causal("left"), ValueError, "align is 'left'; choose 'bottom_right' or 'top_left'"),
    "Window negative left": (
        lambda: Window(-3, 0), ValueError, "left is -3; give a number of keys >= 0, or None for no limit",
    ),
    "Window negative right": (lambda: Window(None, -1), ValueError, "right is -1; give a number of keys >= 0"),
    "Window of floats": (lambda: Window(1.0, 0), TypeError, "left is 1.0; give a number of keys, or None for no limit"),
    "Window of bools": (lambda: Window(0, True), TypeError, "right is True; give a number of keys"),
    "Window of strings": (lambda: Window("3", 0), TypeError, "left is '3'; give a number of keys"),
    "Window of one side": (lambda: Window(3), TypeError, "right"),
    "Window.causal(0)": (
        lambda: Window.causal(0), ValueError, "size is 0; a window counts the query's own key, so it is at least 1",
    ),
    "Window.causal(-2)": (lambda: Window.causal(-2), ValueError, "size is -2"),
    "Window.causal(2.5)": (
        lambda: Window.causal(2.5), TypeError, "size is 2.5; give the number of keys, counting the query's own",
    ),
    "Padding of ints": (
        lambda: Padding(BOOLS.long()), TypeError,
        "keep is [4, 4] int64; give a bool tensor, True = a real token (numbers: write keep != 0)",
    ),
    "Padding of a list": (lambda: Padding([[True]]), TypeError, "keep is list; give a bool tensor"),
    "Padding of int queries": (lambda: Padding(BOOLS, BOOLS.int()), TypeError, "queries is [4, 4] int32"),
    "Padding 1-D": (
        lambda: Padding(BOOLS[0]), ValueError, "keep has shape [4]; it must be [B, N] (one sequence: keep[None])",
    ),
    "Padding 4-D": (lambda: Padding(BOOLS[None, None]), ValueError, "keep has shape [1, 1, 4, 4]; it must be [B, N]"),
    "Padding of another length": (
        call(mask=Padding(BOOLS[:2, :3])), ValueError,
        "Padding's keep has shape [2, 3], but q and k ask for [B, Nk] = [2, 4]",
    ),
    "Padding of another batch": (call(mask=Padding(BOOLS[:3])), ValueError, "Padding's keep has shape [3, 4]"),
    "Padding of other queries": (
        call(mask=Padding(BOOLS[:2], BOOLS[:2, :3])), ValueError,
        "Padding's queries has shape [2, 3], but q and k ask for [B, Nq] = [2, 4]",
    ),
    "Padding elsewhere": (
        call(mask=Padding(BOOLS[:2].to("meta"))), ValueError, "Padding's keep is on meta, but q is on cpu",
    ),
    "lengths of floats": (
        lambda: Padding.from_lengths(torch.tensor([1.0])), TypeError,
        "lengths is [1] float32; give the number of real tokens of each sequence, [B] integers",
    ),
    "lengths in a list": (lambda: Padding.from_lengths([1, 2]), TypeError, "lengths is a list"),
    "lengths 2-D": (
        lambda: Padding.from_lengths(torch.tensor([[1]])), ValueError, "lengths has shape [1, 1]; it must be [B]",
    ),
    "lengths too long": (
        lambda: Padding.from_lengths(torch.tensor([1, 9]), 4), ValueError,
        "lengths run from 1 to 9; they must lie in 0..num_keys = 4",
    ),
    "lengths negative": (lambda: Padding.from_lengths(torch.tensor([-1]), 4), ValueError, "lengths run from -1 to -1"),
    "lengths of no keys": (
        lambda: Padding.from_lengths(torch.tensor([1]), 4.5), TypeError, "num_keys is 4.5; give the number of keys",
    ),
    "Where of floats": (
        call(mask=Where(lambda b, h, i, j: 1.0 * (i - j))), TypeError,
        "Where must return a bool tensor (True = may attend), not torch.float32; values to add to the logits belong in "
        "a bias (Additive)",
    ),
    "Where of ints": (call(mask=Where(lambda b, h, i, j: i - j)), TypeError, "not torch.int64"),
    "Where of a Python bool": (call(mask=Where(lambda b, h, i, j: True)), TypeError, "not bool"),
    "Where of None": (call(mask=Where(lambda b, h, i, j: None)), TypeError, "not NoneType"),
    "Where of a tensor": (
        lambda: Where(BOOLS), TypeError, "fn is a Tensor; give a function of (b, h, i, j) that returns a bool tensor",
    ),
    "Where of another shape": (
        call(mask=Where(lambda b, h, i, j: torch.ones(3, 3, dtype=torch.bool))), ValueError,
        "Where returned shape [3, 3], which does not broadcast to [B, Hq, Nq, Nk] = [2, 2, 4, 4]; compute with b, h, i "
        "and j, and look a table up as table[i, j]",
    ),
    "Where of a whole table on edges": (
        call(mask=GRAPH & Where(lambda b, h, i, j: BOOLS)), ValueError,
        "Where returned shape [4, 4], which does not broadcast to [B, Hq, pairs] = [2, 2, 3]",
    ),
    "Where elsewhere": (
        call(mask=Where(lambda b, h, i, j: BOOLS.to("meta"))), ValueError,
        "Where returned a tensor on meta, but q is on cpu",
    ),
    "Where of two arguments": (call(mask=Where(lambda i, j: i == j)), TypeError, "takes 2 positional arguments but 4"),
}  # fmt: skip

GRAPHS: dict[str, Row] = {
    "[E, 2]": (
        lambda: Graph(EDGES.t()), ValueError,
        "edge_index has shape [3, 2]; it must be [2, E], sources then targets; it looks turned round: "
        "pass edge_index.t()",
    ),
    "1-D": (lambda: Graph(EDGES[0]), ValueError, "edge_index has shape [3]; it must be [2, E], sources then targets"),
    "3-D": (lambda: Graph(EDGES[None]), ValueError, "edge_index has shape [1, 2, 3]; it must be [2, E]"),
    "an adjacency": (lambda: Graph(BOOLS.long()), ValueError, "edge_index has shape [4, 4]; it must be [2, E]"),
    "floats": (
        lambda: Graph(EDGES.float()), TypeError,
        "edge_index is [2, 3] float32; give a [2, E] tensor of integers: sources, then targets",
    ),
    "bools": (lambda: Graph(EDGES.bool()), TypeError, "edge_index is [2, 3] bool; give a [2, E] tensor of integers"),
    "a sparse adjacency": (
        lambda: Graph(BOOLS.float().to_sparse()), TypeError,
        "a sparse tensor [4, 4] float32; an adjacency whose rows are queries becomes "
        "Graph(adjacency.to_sparse_coo().coalesce().indices().flip(0)), a scipy matrix Graph.from_scipy(matrix)",
    ),
    "a list": (lambda: Graph([[0], [1]]), TypeError, "edge_index is a list; give a [2, E] tensor of integers"),
    "numpy": (lambda: Graph(EDGES.numpy()), TypeError, "edge_index is a ndarray; give a [2, E] tensor of integers"),
    "None": (lambda: Graph(None), TypeError, "edge_index is a NoneType"),
    "too large a source": (
        call(mask=Graph(edges((1, 2), (9, 0)))), ValueError,
        "edge_index row 0 (source = key) holds 9 at edge 1, but there are 4 keys: indices run from 0 to 3",
    ),
    "too large a target": (
        lambda: Graph(edges((0, 4)), num_keys=9, num_queries=4), ValueError,
        "edge_index row 1 (target = query) holds 4 at edge 0, but there are 4 queries: indices run from 0 to 3",
    ),
    "negative": (
        call(mask=Graph(edges((0, -1)))), ValueError, "edge_index row 1 (target = query) holds -1 at edge 0",
    ),
    "an edge among no nodes": (
        lambda: Graph(edges((0, 0)), num_keys=0), ValueError, "holds 0 at edge 0, but there are 0 keys",
    ),
    "other keys": (
        call(mask=Graph(EDGES, num_keys=5)), ValueError, "the graph was made with num_keys = 5, but k has 4 rows",
    ),
    "other queries": (
        call(mask=Graph(EDGES, num_keys=4, num_queries=6)), ValueError,
        "the graph was made with num_queries = 6, but q has 4 rows",
    ),
    "sizes of floats": (lambda: Graph(EDGES, num_keys=4.0), TypeError, "num_keys is 4.0; give a number of nodes"),
    "sizes of strings": (lambda: Graph(EDGES, num_keys="4"), TypeError, "num_keys is '4'; give a number of nodes"),
    "sizes negative": (lambda: Graph(EDGES, num_keys=-4), ValueError, "num_keys is -4; it must lie in 0..2147483647"),
    "queries alone": (
        lambda: Graph(EDGES, num_queries=4), ValueError,
        "num_queries = 4 is given without num_keys; give both, or num_keys alone",
    ),
    "elsewhere": (call(mask=Graph(EDGES.to("meta"))), ValueError, "the graph is on meta, but q is on cpu"),
    "ends in lists": (
        lambda: Graph.from_edges(src=[0], dst=[1]), TypeError, "src is a list; give a vector of node numbers",
    ),
    "ends of floats": (
        lambda: Graph.from_edges(src=EDGES[0], dst=EDGES[1].float()), TypeError, "dst is [3] float32",
    ),
    "ends of two lengths": (
        lambda: Graph.from_edges(src=EDGES[0], dst=EDGES[1, :2]), ValueError,
        "src is [3] int64 and dst is [2] int64; give two vectors of equal length",
    ),
    "offsets that fall": (
        lambda: Graph.from_csr(torch.tensor([0, 2, 1]), torch.tensor([0])), ValueError,
        "indptr must rise from 0 to E = 1 without falling; got [0, 2, 1]",
    ),
    "offsets that end early": (
        lambda: Graph.from_csr(torch.tensor([0, 1]), torch.tensor([0, 0])), ValueError,
        "indptr must rise from 0 to E = 2",
    ),
    "offsets of floats": (
        lambda: Graph.from_csr(torch.tensor([0.0, 1.0]), torch.tensor([0])), TypeError, "indptr is [2] float32",
    ),
    "kept edges as floats": (
        lambda: GRAPH.keep(torch.ones(3)), TypeError,
        "edge_mask is [3] float32; give a bool tensor, True = the edge stays",
    ),
    "kept edges of another graph": (
        lambda: GRAPH.keep(BOOLS[0]), ValueError,
        "edge_mask has shape [4], but the graph has 3 edges; give one bool an edge, [3] or [3, Hq]",
    ),
    "kept edges of other heads": (
        call(mask=GRAPH.keep(torch.ones(3, 3, dtype=torch.bool))), ValueError, "edge_mask has shape [3, 3]",
    ),
    "kept edges turned round": (
        lambda: GRAPH.keep(torch.ones(2, 3, dtype=torch.bool)), ValueError, "edge_mask has shape [2, 3]",
    ),
    "kept edges 3-D": (
        lambda: GRAPH.keep(BOOLS[:, :, None]), ValueError, "edge_mask has shape [4, 4, 1]; it must be [E] or [E, Hq]",
    ),
    "kept edges beside a set of pairs": (
        call(mask=GRAPH.keep(torch.ones(3, dtype=torch.bool)) | Causal()), ValueError,
        "edge_mask is tied to the edges of one graph, but the mask around it is a set of pairs",
    ),
    "duplicates": (
        lambda: Graph(edges((0, 1), (2, 2), (0, 1))).check_unique(), ValueError,
        "edge 0 -> 1 is there more than once: as edges 0 and 2",
    ),
}  # fmt: skip

ONES = torch.ones(3)
NO_GRAPH = (
    "tied to the edges of one Graph, but the mask is a set of pairs: put a single Graph into the mask (with & alone), "
    "or give edges by edge_index"
)

BIASES: dict[str, Row] = {
    "a tensor": (
        call(bias=zeros(4, 4)), TypeError,
        "bias is a tensor [4, 4]; say what it is: DenseBias(t), or EdgeBias(t) on a graph",
    ),
    "a list": (call(bias=[ALiBi(2)]), TypeError, "bias is a list; give a Bias"),
    "a string": (call(bias="alibi"), TypeError, "bias is a str; give a Bias"),
    "a class": (call(bias=ALiBi), TypeError, "bias is the class ALiBi, not an object of it; give a Bias"),
    "a mask": (call(bias=Causal()), TypeError, "bias is a Causal; it is a mask: pass it as mask="),
    "a function": (call(bias=lambda b, h, i, j: -(i - j).abs()), TypeError, "bias is a function; wrap it as Additive"),
    "a bias and a tensor": (
        lambda: ALiBi(2) + zeros(4, 4), TypeError,
        "+ joins biases; the other is a tensor [4, 4] float32: wrap it as DenseBias(tensor)",
    ),
    "a bias and a number": (
        lambda: ALiBi(2) + 1.0, TypeError, "unsupported operand type(s) for +: 'ALiBi' and 'float'",
    ),
    "a bias and a mask": (
        lambda: ALiBi(2) + Causal(), TypeError, "unsupported operand type(s) for +: 'ALiBi' and 'Causal'",
    ),
    "EdgeBias without a graph": (call(bias=EdgeBias(ONES)), ValueError, f"EdgeBias's values are {NO_GRAPH}"),
    "EdgeBias beside a union": (call(mask=GRAPH | Causal(), bias=EdgeBias(ONES)), ValueError, NO_GRAPH),
    "EdgeBias beside a complement": (call(mask=~GRAPH, bias=EdgeBias(ONES)), ValueError, NO_GRAPH),
    "EdgeBias beside two graphs": (call(mask=GRAPH & Graph(EDGES), bias=EdgeBias(ONES)), ValueError, NO_GRAPH),
    "EdgeBias of other edges": (
        call(mask=GRAPH, bias=EdgeBias(torch.ones(4))), ValueError,
        "EdgeBias's values hold 4 edges, but the mask's graph has 3: one value an edge",
    ),
    "EdgeBias of other heads": (
        call(mask=GRAPH, bias=EdgeBias(torch.ones(3, 5))), ValueError,
        "EdgeBias's values are [E, H] = [3, 5], but q has 2 heads",
    ),
    "EdgeBias turned round": (call(mask=GRAPH, bias=EdgeBias(torch.ones(2, 3))), ValueError, "[E, H] = [2, 3]"),
    "EdgeBias of ints": (
        lambda: EdgeBias(EDGES[0]), TypeError,
        "values is [3] int64; give floats, one an edge (edges to hide: graph.keep(bool_tensor))",
    ),
    "EdgeBias of bools": (lambda: EdgeBias(BOOLS[0]), TypeError, "edges to hide: graph.keep(bool_tensor)"),
    "EdgeBias of None": (lambda: EdgeBias(None), TypeError, "values is NoneType; give floats, one an edge"),
    "EdgeBias 3-D": (
        lambda: EdgeBias(zeros(3, 2, 1)), ValueError, "values has shape [3, 2, 1]; it must be [E] or [E, Hq]",
    ),
    "EdgeBias edges of floats": (
        lambda: EdgeBias(ONES, EDGES.float()), TypeError,
        "edge_index is [2, 3] float32; give a [2, E] tensor of integers",
    ),
    "EdgeBias edges turned round": (
        lambda: EdgeBias(ONES, EDGES.t()), ValueError,
        "edge_index has shape [3, 2], but values holds 3 edges: it must be [2, 3], sources then targets",
    ),
    "EdgeBias edges too many": (
        lambda: EdgeBias(ONES[:2], EDGES), ValueError, "edge_index has shape [2, 3], but values holds 2 edges",
    ),
    "EdgeBias edges out of range": (
        call(bias=EdgeBias(ONES, EDGES + 2)), ValueError,
        "edge_index row 0 (source = key) holds 4 at edge 2, but there are 4 keys",
    ),
    "EdgeBias default without edges": (
        lambda: EdgeBias(ONES, default=1.0), ValueError,
        "default = 1.0 is for pairs that edge_index does not name; without edge_index there are none",
    ),
    "EdgeBias default of no number": (
        lambda: EdgeBias(ONES, EDGES, default="0"), TypeError, "default is '0'; give a number",
    ),
    "EdgeBias elsewhere": (
        call(mask=GRAPH, bias=EdgeBias(ONES.to("meta"))), ValueError, "EdgeBias's values is on meta, but q is on cpu",
    ),
    "PairVectors of nothing": (lambda: PairVectors(), ValueError, "PairVectors needs key, value or both"),
    "PairVectors of ints": (
        lambda: PairVectors(torch.ones(3, 2, 8).long()), TypeError, "key is [3, 2, 8] int64; give floats, [E, Hkv, D]",
    ),
    "PairVectors 2-D": (
        lambda: PairVectors(value=torch.ones(3, 8)), ValueError, "value has shape [3, 8]; it must be [E, Hkv, D]",
    ),
    "PairVectors without a graph": (
        call(bias=PairVectors(torch.ones(3, 2, 8))), ValueError, f"PairVectors's key vectors are {NO_GRAPH}",
    ),
    "PairVectors of other edges": (
        call(mask=GRAPH, bias=PairVectors(value=torch.ones(4, 2, 8))), ValueError,
        "PairVectors's value vectors hold 4 edges, but the mask's graph has 3",
    ),
    "PairVectors of other sizes": (
        call(mask=GRAPH, bias=PairVectors(torch.ones(3, 2, 5))), ValueError,
        "PairVectors's key has shape [3, 2, 5], but k and v ask for [E, Hkv, D] = [3, 2, 8]",
    ),
    "PairVectors of other heads": (
        call(mask=GRAPH, bias=PairVectors(value=torch.ones(3, 1, 8))), ValueError,
        "PairVectors's value has shape [3, 1, 8], but k and v ask for [E, Hkv, Dv] = [3, 2, 8]",
    ),
    "DenseBias of bools": (
        lambda: DenseBias(BOOLS), TypeError,
        "the bias is [4, 4] bool; give floats to add to the logits (True = may attend: pass it as mask=)",
    ),
    "DenseBias of ints": (lambda: DenseBias(BOOLS.long()), TypeError, "the bias is [4, 4] int64; give floats"),
    "DenseBias of a number": (lambda: DenseBias(1.0), TypeError, "the bias is float; give floats to add to the logits"),
    "DenseBias does not broadcast": (
        call(bias=DenseBias(zeros(3, 4))), ValueError,
        "DenseBias's table has shape [3, 4], which does not broadcast to [B, Hq, Nq, Nk] = [2, 2, 4, 4]",
    ),
    "DenseBias 5-D": (call(bias=DenseBias(zeros(1, 1, 1, 4, 4))), ValueError, "which does not broadcast to"),
    "DenseBias an edge value": (call(mask=GRAPH, bias=DenseBias(ONES)), ValueError, "has shape [3], which does not"),
    "DenseBias elsewhere": (
        call(bias=DenseBias(zeros(4, 4, device="meta"))), ValueError, "DenseBias's table is on meta, but q is on cpu",
    ),
    "ALiBi of other heads": (
        call(bias=ALiBi(8)), ValueError, "ALiBi was made for num_heads = 8, but q has 2 heads",
    ),
    "ALiBi of no heads": (lambda: ALiBi(0), ValueError, "num_heads is 0; it must be at least 1"),
    "ALiBi of floats": (lambda: ALiBi(8.0), TypeError, "num_heads is 8.0; give a number of heads"),
    "ALiBi of strings": (lambda: ALiBi("8"), TypeError, "num_heads is '8'; give a number of heads"),
    "RoPE odd": (
        lambda: RoPE(7), ValueError,
        "head_dim is 7; coordinates are turned in pairs, so it must be even and at least 2",
    ),
    "RoPE of 0": (lambda: RoPE(0), ValueError, "head_dim is 0; coordinates are turned in pairs"),
    "RoPE of a float": (lambda: RoPE(8.0), TypeError, "head_dim is 8.0; give an integer"),
    "RoPE odd part": (lambda: RoPE(8, rotary_dim=3), ValueError, "rotary_dim is 3; coordinates are turned in pairs"),
    "RoPE large part": (lambda: RoPE(8, rotary_dim=10), ValueError, "rotary_dim is 10, more than head_dim = 8"),
    "RoPE other D": (
        call(bias=RoPE(16)), ValueError, "RoPE was made for head_dim = 16, but q and k have D = 8",
    ),
    "RoPE layout": (
        lambda: RoPE(8, layout="neox"), ValueError,
        "layout is 'neox'; choose 'half' or 'interleaved', as the weights were trained",
    ),
    "RoPE base": (lambda: RoPE(8, base=0.0), ValueError, "base is 0.0; it must be positive"),
    "RoPE base of a string": (lambda: RoPE(8, base="1e4"), TypeError, "base is '1e4'; give a positive number"),
    "RoPE start": (lambda: RoPE(8, start=0.5), TypeError, "start is 0.5; give an integer"),
    "two turns": (
        lambda: RoPE(8) + ALiBi(2) + RoPE(8, layout="interleaved"), ValueError,
        "RoPE(8, layout='half') and RoPE(8, layout='interleaved') both turn q and k; keep one of them",
    ),
    "Additive of bools": (
        call(bias=Additive(lambda b, h, i, j: i == j)), TypeError,
        "Additive must return a float tensor to add to the logits, not torch.bool; bool rules belong in a mask (Where)",
    ),
    "Additive of ints": (call(bias=Additive(lambda b, h, i, j: i - j)), TypeError, "not torch.int64"),
    "Additive of a number": (call(bias=Additive(lambda b, h, i, j: 1.0)), TypeError, "not float"),
    "Additive of None": (call(bias=Additive(lambda b, h, i, j: None)), TypeError, "its function must return floats"),
    "Additive of a tensor": (lambda: Additive(zeros(4)), TypeError, "fn is a Tensor; give a function of (b, h, i, j)"),
    "Additive of another shape": (
        call(bias=Additive(lambda b, h, i, j: zeros(3, 4))), ValueError,
        "Additive returned shape [3, 4], which does not broadcast to [B, Hq, Nq, Nk] = [2, 2, 4, 4]",
    ),
    "Additive of a whole table on edges": (
        call(mask=GRAPH, bias=Additive(lambda b, h, i, j: zeros(4, 4))), ValueError,
        "Additive returned shape [4, 4], which does not broadcast to [B, Hq, pairs] = [2, 2, 3]",
    ),
}  # fmt: skip

ATT = torch.ones(2, 8)

SCORES: dict[str, Row] = {
    "a function": (call(score=lambda q, k: q), TypeError, "score is a function; give a Score"),
    "a class": (call(score=Dot), TypeError, "score is the class Dot, not an object of it; give a Score"),
    "a string": (call(score="dot"), TypeError, "score is a str; give a Score"),
    "cap of 0": (
        lambda: Dot(softcap=0), ValueError, "softcap is 0; it must be positive and finite, or None for no cap",
    ),
    "cap negative": (lambda: Dot(softcap=-1.0), ValueError, "softcap is -1.0; it must be positive"),
    "cap infinite": (lambda: Dot(softcap=INF), ValueError, "softcap is inf; it must be positive and finite"),
    "cap nan": (lambda: Dot(softcap=NAN), ValueError, "softcap is nan; it must be positive"),
    "cap a string": (
        lambda: Dot(softcap="50"), TypeError, "softcap is '50'; give a positive number, or None for no cap",
    ),
    "cap a tensor": (
        lambda: Dot(softcap=torch.tensor(5.0)), TypeError, "softcap is [] float32; give a positive number",
    ),
    "sink a number": (
        lambda: Dot(sink=0.0), ValueError, "sink is 0.0; give a float tensor [Hq], one logit a query head",
    ),
    "sink of ints": (
        lambda: Dot(sink=torch.zeros(2).long()), ValueError, "sink is [2] int64; give a float tensor [Hq]",
    ),
    "sink 2-D": (lambda: Dot(sink=zeros(2, 1)), ValueError, "sink is [2, 1] float32; give a float tensor [Hq]"),
    "sink of other heads": (call(score=Dot(sink=zeros(3))), ValueError, "sink has 3 entries, but q has 2 heads"),
    "sink elsewhere": (
        call(score=Dot(sink=zeros(2, device="meta"))), ValueError, "sink is on meta, but q is on cpu",
    ),
    "GAT of None": (lambda: GAT(ATT, None), TypeError, "att_dst is NoneType; give floats, [Hq, D]"),
    "GAT of ints": (lambda: GAT(ATT.long(), ATT), TypeError, "att_src is [2, 8] int64; give floats, [Hq, D]"),
    "GAT 1-D": (lambda: GAT(ATT[0], ATT[0]), ValueError, "att_src has shape [8] and att_dst [8]; both must be [Hq, D]"),
    "GAT as in torch-geometric": (
        lambda: GAT(ATT[None], ATT[None]), ValueError, "att_src has shape [1, 2, 8] and att_dst [1, 2, 8]",
    ),
    "GAT of two shapes": (lambda: GAT(ATT, ATT[:, :4]), ValueError, "att_src has shape [2, 8] and att_dst [2, 4]"),
    "GAT of other heads": (
        call(score=GAT(torch.ones(3, 8), torch.ones(3, 8))), ValueError,
        "GAT's att_src has shape [3, 8], but q asks for [Hq, D] = [2, 8]",
    ),
    "GAT edge 1-D": (lambda: GAT(ATT, ATT, edge=ONES), ValueError, "edge has shape [3]; it must be [E, Hq] = [E, 2]"),
    "GAT edge of other heads": (lambda: GAT(ATT, ATT, edge=zeros(3, 5)), ValueError, "edge has shape [3, 5]"),
    "GAT edge of ints": (
        lambda: GAT(ATT, ATT, edge=EDGES.t()), TypeError, "edge is [3, 2] int64; give floats, [E, Hq]",
    ),
    "GAT edge without a graph": (
        call(score=GAT(ATT, ATT, edge=zeros(3, 2))), ValueError,
        "GAT's edge holds 3 edges, but the mask holds no single Graph",
    ),
    "GAT edge of other edges": (
        call(mask=GRAPH, score=GAT(ATT, ATT, edge=zeros(4, 2))), ValueError,
        "GAT's edge holds 4 edges, but the mask holds a graph of 3 edges",
    ),
    "GAT slope a string": (lambda: GAT(ATT, ATT, "0.2"), TypeError, "negative_slope is '0.2'; give a number"),
    "GATv2 of None": (lambda: GATv2(None), TypeError, "att is NoneType; give floats, [Hq, D]"),
    "GATv2 of ints": (lambda: GATv2(ATT.long()), TypeError, "att is [2, 8] int64; give floats, [Hq, D]"),
    "GATv2 1-D": (lambda: GATv2(ATT[0]), ValueError, "att has shape [8]; it must be [Hq, D]"),
    "GATv2 as in torch-geometric": (
        lambda: GATv2(ATT[None]), ValueError, "att has shape [1, 2, 8]; it must be [Hq, D]",
    ),
    "GATv2 of another D": (
        call(score=GATv2(ATT[:, :4])), ValueError, "GATv2's att has shape [2, 4], but q asks for [Hq, D] = [2, 8]",
    ),
    "GATv2 slope a tensor": (
        lambda: GATv2(ATT, torch.tensor(0.2)), TypeError, "negative_slope is [] float32; give a number",
    ),
    "GATv2 elsewhere": (call(score=GATv2(ATT.to("meta"))), ValueError, "GATv2's att is on meta, but q is on cpu"),
}  # fmt: skip

X = Q[0]  # node-major: 2 nodes, 4 heads
OUT, LSE = torch.zeros(2, 2, 4, 8), torch.zeros(2, 2, 4)

OTHERS: dict[str, Row] = {
    "graph_attention of 4-D": (
        lambda: graph_attention(Q, Q, Q, GRAPH), ValueError,
        "q has shape [2, 2, 4, 8]; graph_attention takes node-major [N, H, D] ([B, H, N, D] inputs go to attention)",
    ),
    "graph_attention of 2-D": (
        lambda: graph_attention(X, X[0], X, GRAPH), ValueError, "k has shape [4, 8]; graph_attention takes node-major",
    ),
    "graph_attention of None": (
        lambda: graph_attention(X, X, None, GRAPH), TypeError, "v is a NoneType; give a tensor [N, H, D]",
    ),
    "graph_attention of edges": (
        lambda: graph_attention(X, X, X, EDGES), TypeError, "for the edges of a graph pass Graph(edge_index)",
    ),
    "graph_attention of a list": (
        lambda: graph_attention(X, X, X, [[0], [1]]), TypeError, "mask is a list; give a Mask",
    ),
    "weights of None": (lambda: attention_weights(Q, None), TypeError, "k is a NoneType; give a tensor"),
    "weights of a float mask": (lambda: attention_weights(Q, Q, mask=BOOLS.float()), TypeError, BOTH_FORMS),
    "lse of a float mask": (lambda: attention_with_lse(Q, Q, Q, mask=BOOLS.float()), TypeError, BOTH_FORMS),
    "explain of a float mask": (lambda: explain(Q, Q, Q, mask=BOOLS.float()), TypeError, BOTH_FORMS),
    "explain of an unknown back end": (lambda: explain(Q, Q, Q, backend="flash"), ValueError, "backend is 'flash'"),
    "merge nothing": (
        lambda: merge([], []), ValueError, "got 0 outs and 0 lses; give as many of one as of the other, at least one",
    ),
    "merge of two numbers": (lambda: merge([OUT, OUT], [LSE]), ValueError, "got 2 outs and 1 lses"),
    "merge of other shapes": (
        lambda: merge([OUT, OUT[:, :, :3]], [LSE, LSE[:, :, :3]]), ValueError,
        "part 1 has out [2, 2, 3, 8] and lse [2, 2, 3]; all parts must be [2, 2, 4, 8] and [2, 2, 4]",
    ),
    "merge with lse as out": (lambda: merge([OUT, LSE], [OUT, LSE]), ValueError, "part 0 has out [2, 2, 4, 8] and lse"),
    "merge of None": (
        lambda: merge([OUT, None], [LSE, LSE]), TypeError, "part 1 is a NoneType and a Tensor; give tensors",
    ),
}  # fmt: skip

EVERY = {
    f"{group}: {name}": row
    for group, rows in {
        "inputs": INPUTS, "options": OPTIONS, "masks": MASKS, "graphs": GRAPHS, "biases": BIASES, "scores": SCORES,
        "others": OTHERS,
    }.items()
    for name, row in rows.items()
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "text"), EVERY.values(), ids=EVERY)
def test_a_wrong_input_raises_and_says_what_to_do(
    make: Callable[[], Any], error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No back end runs before the error; what a user's function returns is checked when it is asked.
    for backend in unified_attn.backends.BACKENDS.values():
        monkeypatch.setattr(
            type(backend), "run", lambda self, problem: [problem.listed() if problem.has_edges else problem.dense()]
        )
    with pytest.raises(error, match=re.escape(text)) as caught:
        make()
    assert type(caught.value) is error


# --- a named back end that cannot run raises and never falls back

CANNOT: dict[str, tuple[str, dict[str, Any], str]] = {
    "csr, no list": (
        "csr", {"mask": Causal()},
        "the mask Causal() names no list of pairs (a graph, a window with two sides, documents do)",
    ),
    "scatter, no mask": ("scatter", {}, "the mask Full() names no list of pairs"),
    "csr, half a window": (
        "csr", {"mask": Window(3, None)}, "the mask Window(left=3, right=None) names no list of pairs",
    ),
    "scatter, positions": (
        "scatter", {"mask": Window(1, 0), "q_positions": torch.arange(4)},
        "the mask Window(left=1, right=0) names no list of pairs",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "options", "reason"), CANNOT.values(), ids=CANNOT)
def test_a_named_back_end_that_cannot_run_raises(name: str, options: dict[str, Any], reason: str) -> None:
    for function in (attention, attention_with_lse):
        with pytest.raises(UnsupportedError, match=re.escape(reason)) as caught:
            function(Q, Q, Q, backend=name, **options)
        error = caught.value
        assert isinstance(error, NotImplementedError)
        assert error.backend == name
        assert len(error.reasons) == 1
        assert reason in error.reasons[0]
        assert str(error) == f"back end {name!r} cannot run this: {error.reasons[0]}"
    told = explain(Q, Q, Q, backend=name, **options)
    assert told.backend is None
    assert told.reasons[name] == error.reasons


def test_every_reason_is_given() -> None:
    class L1(Score):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            return -(q - k).abs().sum(-1)

    with pytest.raises(UnsupportedError) as caught:
        attention(Q, Q, Q, mask=Causal(), score=L1(), backend="csr")
    assert len(caught.value.reasons) == 2
    assert "names no list of pairs" in caught.value.reasons[0]
    assert "has no fused form" in caught.value.reasons[1]


def test_the_error_survives_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(UnsupportedError("csr", ["one", "two"])))
    assert (error.backend, error.reasons) == ("csr", ("one", "two"))


@pytest.mark.parametrize("backend", ON_EDGES)
def test_an_edge_out_of_range_raises_on_every_back_end_and_leaves_the_process_sound(backend: str) -> None:
    with pytest.raises(ValueError, match="holds 9 at edge 0"):
        attention(Q, Q, Q, mask=Graph(edges((9, 0))), backend=backend)
    assert attention(Q, Q, Q, mask=GRAPH, backend=backend).shape == Q.shape


def test_abstract_classes_cannot_be_made() -> None:
    for kind in (Mask, Score, Backend):
        with pytest.raises(TypeError, match=f"abstract class {kind.__name__}"):
            kind()


def test_what_is_said_of_a_sparse_adjacency_is_right() -> None:
    adjacency = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])  # rows are queries
    drawn = Graph(adjacency.to_sparse().to_sparse_coo().coalesce().indices().flip(0)).draw(3, 3)
    assert drawn == DenseMask(adjacency.bool()).draw(3, 3)
