"""Are the steps those of the model: every op of every layer once, whatever their order.

Property: in every program, one token runs exactly the ops that the model's graph makes (models/graph.py), each for
its layer, and the optional parts (biases, norms of heads) are there iff the graph has them. Which bytes connect them is
decided by reads-from.

A schedule that draws its tokens has `peak`, rounds of counting, `draw` and `select_draw` in place of `select`; the
rounds are those of one mode of `schedule_ir/sampling.py`, the same in all programs. A product may be done in
parts of its columns: every part is then staged and multiplied once. Where the first norm is staged like all others,
`embed_rows` hands over the embedding, in place of `embed`, which stages it.

A slice of layers has `take_hidden` in place of what reads the embedding, and `give_hidden` in place of the output head
and what chooses a token. With the output head it has `give_logits` in place of what chooses a token. A schedule that
only reads prompts (`headless`) has `advance` in place of output head and choice.

A program none of whose workers owns rows of a matrix, or serves attention, may leave the ops of that part out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from amk.models.graph import Graph, Product
from amk.models.matrices import ADDED, K_SPLIT, MatrixName, share_table
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.expr import Env, Expr, coefficient
from amk.schedule_ir.ops import OPS, AnyOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.base import multiplied
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.sampling import SEARCHES, Mode
from amk.schedule_ir.schedule import Program, Schedule, mode_of
from amk.validator.program.trace import Site, all_sites, require_length, sites

Key = tuple[str, int]
"""(op, or op and matrix; layer, norm index or round, -1 if the op has none)."""

ATTENTION = ("rope_append", "attend", "merge", "combine")
ROUND_OPS = ("census", "report", "gather", "narrow")
TOKEN_OPS = ("argmax_rows",)
REDUCED = ("reduce_splits", "stage_attention")
"""What may stand for `combine`: each worker of a kv head reduces a slice, then everybody stages the whole."""
FREE_OPS = frozenset({"wait", "signal", "barrier", "prefetch_cache", "refill"})
"""Ops that touch no memory: as many as the plan likes."""


def ops_of(node: Product) -> tuple[str, ...]:
    """The ops of a layer's product: what stages its vector, unless that is a norm, and what is done with its rows."""
    staged = ("stage",) if node.reads == "act" else ()
    taken = f"{node.taken_by} {node.matrix}" if "matrix" in OPS[node.taken_by].model_fields else node.taken_by
    return (*staged, f"gemv {node.matrix}", *(() if node.then == "logits" else (taken,)))


def shares(graph: Graph) -> dict[str, str]:
    """The share of the matrix without whose rows a worker may leave an op out."""
    found = {op: share_table(name) for name, node in graph.products.items() for op in ops_of(node)}
    attended = next(name for name, node in graph.products.items() if node.reads == "attn")
    found |= {f"layer_norm {name}": share_table(name) for name in graph.products}
    return found | dict.fromkeys(("combine", "stage_attention"), share_table(attended))


def expected(model: ModelSpec, mode: Mode, headless: bool = False) -> Counter[Key]:
    """The ops of one launch of one token."""
    return Counter(_expected(model.graph, model.layers, mode, model.slice is not None, model.has_head, headless))


def _expected(graph: Graph, layers: int, mode: Mode, sliced: bool, head: bool, headless: bool) -> Counter[Key]:
    keys: list[Key] = [("begin", -1), ("finish", -1)]
    ops = [op for node in graph.nodes for op in (ops_of(node) if isinstance(node, Product) else ATTENTION)]
    keys += [(op, layer) for layer in range(layers) for op in ops]
    keys += _normalised(graph, layers, sliced, headless)
    if not head:
        return Counter([*keys, ("give_hidden", -1)])
    if sliced:
        return Counter([*keys, ("gemv lm_head", 0), ("give_logits", -1)])
    if headless:
        return Counter([*keys, ("advance", -1)])
    keys += [("gemv lm_head", 0), *((op, -1) for op in TOKEN_OPS)]
    if mode == "greedy":
        return Counter([*keys, ("select", -1)])
    rounds = SEARCHES[mode]
    keys += [("peak", rounds.start), ("draw", rounds.stop), ("select_draw", -1)]
    keys += [(op, number) for number in rounds for op in ROUND_OPS]
    return Counter(keys)


def _normalised(graph: Graph, layers: int, sliced: bool, headless: bool) -> Iterator[Key]:
    """What stages norms: an RMSNorm with its hidden state, LayerNorms of a state that is staged once. The hidden state
    before the first layer is that of a token, or what a slice of layers is given."""
    norms = len(graph.norms) * layers
    if graph.norm == "rms":
        yield from (
            ("take_hidden" if sliced else "embed", -1),
            *(("stage_norm", index) for index in range(1, norms + 1)),
        )
        return
    yield from (("embed_hidden", -1), *(() if headless else (("layer_norm lm_head", 0),)))
    normed = [f"layer_norm {graph.reader(norm)}" for norm in graph.norms]
    staged = [f"stage_hidden {name}" for name, read in zip(graph.additions, graph.published, strict=True) if read]
    yield from ((op, layer) for layer in range(layers) for op in (*normed, *staged))


def check_model_graph(schedule: Schedule) -> list[Diagnostic]:
    """AMK106 for missing, additional and misconfigured ops."""
    found = [d for number, program in enumerate(schedule.programs) for d in _program(schedule, program, number)]
    return [*found, *_options(schedule)]


def _program(schedule: Schedule, program: Program, number: int) -> Iterator[Diagnostic]:
    require_length(program, 1)
    steps = sites(program, number)
    present: Counter[Key] = Counter(key for site in steps for key in _keys(site))
    wanted = expected(schedule.model, mode_of(schedule), schedule.headless)
    if any(name in REDUCED for name, _ in present):
        layers = range(schedule.model.layers)
        wanted -= Counter(("combine", layer) for layer in layers)
        wanted += Counter((name, layer) for layer in layers for name in REDUCED)
    if ("embed_rows", -1) in present:
        wanted -= Counter([("embed", -1)])
        wanted += Counter([("embed_rows", -1), ("stage_norm", 0)])
        if schedule.headless:  # a loop over layers that stages what comes next stages the final norm, too
            wanted -= Counter([("stage_norm", len(schedule.model.graph.norms) * schedule.model.layers)])
    split: list[MatrixName] = [name for name in ADDED if (f"add_sums {name}", 0) in present]
    for name in split:
        layers = range(schedule.model.layers)
        wanted -= Counter((f"add_residual {name}", layer) for layer in layers)
        wanted += Counter((f"{op} {name}", layer) for layer in layers for op in ("store_sums", "add_sums"))
    wanted += Counter(_earlier_parts(schedule.model, [site.step.op for site in steps if _runs(site)]))
    parts = ("qkv", "hidden", "gate_up", "lm_head", *((K_SPLIT,) if split else ()))
    idle = {part for part in parts if not _owns(schedule, program, part)}
    if dict(present) == dict(wanted):
        return
    where = {key: site.path for site in steps for key in _keys(site)}
    for key in sorted(present - wanted)[:4]:
        message = f"program '{program.name}' runs {_named(key)} {_times(present[key])}, the model {_times(wanted[key])}"
        yield finding("AMK106", message, where[key])
    missing = [k for k in sorted(wanted - present) if not _may_miss(schedule, program, k, idle, split)]
    for key in missing[:4]:
        message = f"program '{program.name}' never runs {_named(key)}"
        yield finding("AMK106", message, ("programs", number), f"{len(missing)} ops of the model are missing")


def _earlier_parts(model: ModelSpec, ops: list[AnyOp]) -> Iterator[Key]:
    """Of products that are done in parts, the steps but for those of the last part, which `expected` has."""
    graph = model.graph
    for name in graph.products:
        parts = max((op.k_parts for op in ops if isinstance(op, GemvOp) and op.matrix == name), default=1)
        for layer in range(1 if name == "lm_head" else model.layers):
            norm, reads = graph.norm_of(name, layer, model.layers), graph.products[name].reads
            staged = "stage_norm" if norm is not None else "stage" if reads == "act" else "stage_attention"
            for part in range(parts - 1):
                yield f"gemv {name} part {part}", layer
                yield f"{staged} part {part}", layer if norm is None else norm


def _runs(site: Site) -> int:
    """How often the step runs in one token."""
    return prod(1 if loop.count is None else loop.count for loop in site.around)


def _keys(site: Site) -> list[Key]:
    """What the step does, as often as it runs in one token: loops are the token's and one over layers at most."""
    name, expr = _name(site.step.op)
    if not name:
        return []
    if expr is None:
        return [(name, -1)] * _runs(site)
    first, slope = Env(loops={"t": 0, "n": 0, "l": 0}, worker=0).eval_int(expr), coefficient(expr, "l")
    return [(name, first + slope * layer) for layer in range(_runs(site))]


def _name(op: AnyOp) -> tuple[str, Expr | None]:
    """As `expected` calls it ("" if it is free to occur), and what numbers it."""
    if op.op in FREE_OPS:
        return "", None
    fields = vars(op)
    name = f"{op.op} {fields['matrix']}" if "matrix" in fields else op.op
    if "k_part" in fields and fields["k_part"] < fields["k_parts"] - 1:
        name += f" part {fields['k_part']}"
    return name, next((fields[field] for field in ("layer", "index", "round") if field in fields), None)


def _named(key: Key) -> str:
    """`gemv qkv of layer 1`."""
    name, number = key
    counted = "norm" if name.startswith("stage_norm") else "round" if name in ("peak", "draw", *ROUND_OPS) else "layer"
    return name if number < 0 else f"{name} of {counted} {number}"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _owns(schedule: Schedule, program: Program, part: str) -> bool:
    column = schedule.tables[f"{part}.count"]
    return any(column[program.first : program.first + program.count])


def _may_miss(schedule: Schedule, program: Program, key: Key, idle: set[str], split: list[MatrixName]) -> bool:
    """split: products whose columns are divided among workers."""
    served = schedule.tables["attn.head"][program.first : program.first + program.count]
    if key[0] in ("rope_append", "attend", "merge", "reduce_splits"):
        return set(served) == {-1}
    if key[0] == "finish":
        return program.first > 0
    name = key[0].partition(" part ")[0]
    everything = {"qkv", "hidden", "gate_up", "lm_head"}
    embeds = {"embed": {"qkv", "hidden"}, "embed_rows": {"hidden"}, "embed_hidden": everything}
    needed_for = (embeds | {"take_hidden": embeds["embed"]}).get(key[0])
    if name == "stage_norm":
        needed_for = _readers(schedule, key[1])
    elif name.startswith("stage_hidden "):
        needed_for = everything
    return needed_for <= idle if needed_for is not None else _share(schedule.model.graph, name, split) in idle


def _share(graph: Graph, op: str, split: list[MatrixName]) -> str | None:
    """The tables of the rows without which a worker may leave the op out."""
    for name in split:
        staged = "stage" if graph.products[name].reads == "act" else "stage_attention"
        if op in (staged, f"gemv {name}", f"store_sums {name}"):
            return K_SPLIT
        if op == f"add_sums {name}":
            return share_table(name)
    return shares(graph).get(op)


def _readers(schedule: Schedule, norm: int) -> set[str]:
    """Shares of the matrix that multiplies the vector of norm number `norm`."""
    graph = schedule.model.graph
    layer, at = divmod(norm, len(graph.norms))
    return {share_table(graph.reader(graph.norms[at]) if layer < schedule.model.layers else "lm_head")}


def _options(schedule: Schedule) -> Iterator[Diagnostic]:
    model, graph = schedule.model, schedule.model.graph
    for site in all_sites(schedule):
        op = site.step.op
        wanted: dict[str, bool] = {}
        yield from _settings(graph, site)
        if "bias" in type(op).model_fields and (name := multiplied(op)) is not None:
            wanted = {"bias": bool(graph.products[name].biases)}
        elif isinstance(op, RopeAppendOp | AttendOp):
            norms = ("q_norm", "k_norm") if isinstance(op, RopeAppendOp) else ()
            wanted = dict.fromkeys(norms, graph.attention.q_norm is not None) | {"tree": schedule.tree}
        for field, needed in wanted.items():
            if (getattr(op, field) is not None) != needed:
                here, there = ("lacks", "has") if needed else ("has", "lacks")
                whose = "the schedule" if field == "tree" else f"model {model.name}"
                message = f"{op.op} {here} {field}, {whose} {there} it"
                yield finding("AMK106", message, (*site.path, "op"))


def _settings(graph: Graph, site: Site) -> Iterator[Diagnostic]:
    """The fields that the graph gives the op that takes a product's rows."""
    op = site.step.op
    name = multiplied(op)
    if name is None or graph.products[name].taken_by != op.op:
        return
    for field, value in graph.products[name].settings:
        if getattr(op, field) != value:
            message = f"{op.op} has {field} {getattr(op, field)}, the model {value}"
            yield finding("AMK106", message, (*site.path, "op", field))
