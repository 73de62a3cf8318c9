"""Mistakes in steps whose rows are the nodes of a tree: who is told of it, what the table holds, who waits for whom."""

from __future__ import annotations

from amk.adversary.edits import Edit, after, find, named
from amk.adversary.mistakes import Mistake
from amk.adversary.recipe import Recipe, drop, op_field, put

TREES = [
    Recipe(
        "tree-of-one-row",
        Mistake.TREE_WITHOUT_ROWS,
        "fenced",
        "AMK106",
        "a step of one row has no node behind its first, and no op that is told of any",
        put(lambda _: ("tree",), True, new=True),
    ),
    Recipe(
        "tree-that-accepts",
        Mistake.TREE_WITHOUT_ROWS,
        "tree",
        "AMK106",
        "the step goes on behind the last row whose token is the next row's, as if each were behind the one before it",
        put(lambda _: ("accepts",), True, new=True),
    ),
    Recipe(
        "tree-not-told-to-attention",
        Mistake.OTHER_NODES,
        "tree",
        "AMK106",
        "attention sees all rows before a node's own, also those that are not on the way to it",
        drop(op_field("attend", "tree")),
    ),
    Recipe(
        "tree-not-told-to-rotation",
        Mistake.OTHER_NODES,
        "tree",
        "AMK106",
        "a node is rotated as at its place in the cache, which is behind its siblings",
        drop(op_field("rope_append", "tree")),
    ),
    Recipe(
        "tree-of-one-word-a-row",
        Mistake.TREE_WITHOUT_ROWS,
        "tree",
        "AMK103",
        "a row has two words of bits, and the last rows read theirs behind the buffer",
        lambda s: [Edit("replace", (*named(s, "buffers", "tree"), "shape"), [s["rows"], 1])],
    ),
    Recipe(
        "siblings-attended-early",
        Mistake.OTHER_NODES,
        "tree",
        "AMK302",
        "attention reads queries and keys of nodes that other warps still write, whatever the bits say",
        drop(lambda s: after(find(s, "rope_append"))),
    ),
]
