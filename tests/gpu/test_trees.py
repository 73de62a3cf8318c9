"""Steps whose rows are the nodes of a tree on the GPU: each node against torch in fp64 on the way to it alone, a
chain bit for bit against a schedule that knows no trees."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.planner.formats import BF16, layered
from amk.planner.settings import FAST
from amk.planner.tuned import tuned
from amk.targets.target import Target
from tests.engine import tiny_chat
from tests.engine.guesses import check_same_answers
from tests.tiny import BIASED, NORMED, PLAIN, RAGGED

pytestmark = pytest.mark.gpu

CASES = [
    (PLAIN, 4), (PLAIN, 16), (PLAIN, 40), (RAGGED, 8), (BIASED, 8), (NORMED, 8), (load_model("llama3.2-1b"), 8),
]  # fmt: skip
CONTEXT = 2048
POSITIONS = (0, 61, 126, 2008)
"""From the first to the last; of rows in one block and across two."""


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def subjects(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[tuple[Any, Any]]:
    """Of a tree, and of rows without one; same weights, and same settings: others would add in another order."""
    from tests.gpu.subjects import loaded, planned

    model, rows = request.param
    found = tuned(replace(FAST, rows=rows, tree=True), model, gpu, layered(model, BF16), gpu.sms, CONTEXT)
    with ExitStack() as stack:
        tree, plain = (
            stack.enter_context(loaded(planned(model, gpu, CONTEXT, replace(found, plan="search", tree=tree))))
            for tree in (True, False)
        )
        yield tree, plain


def trees(rows: int) -> list[tuple[int, ...]]:
    """All behind the root, in pairs, two chains that take turns, and one that is drawn."""
    draw = random.Random(rows)
    drawn = tuple(draw.randrange(row) for row in range(1, rows))
    pairs, chains = tuple((row - 1) // 2 for row in range(1, rows)), tuple(max(row - 2, 0) for row in range(1, rows))
    return [(0,) * (rows - 1), pairs, chains, drawn]


def tokens_at(subject: Any, pos: int) -> list[int]:
    """Of the rows of a step."""
    vocab = subject.schedule.model.vocab
    return [(1000 + pos + 7 * row) % vocab for row in range(subject.schedule.rows)]


def run(subject: Any, pos: int, parents: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """One step at `pos`, scratch poisoned before: tokens [rows], logits f32 [rows, vocab]."""
    subject.load_cache()
    subject.engine.poison()
    text = [*[0] * pos, *tokens_at(subject, pos)]
    subject.engine.request(text, start=pos, prompt_length=pos + 1, parents=parents)
    return subject.engine.step(1)[0], subject.engine.logits()


def torch_nodes(subject: Any, pos: int, parents: tuple[int, ...], dtype: Any) -> Any:
    """The logits of each node by torch, which reads the tokens on the way to it and no others."""
    import torch

    from amk.bench.tools.torch_model import TorchDecoder

    tokens, ways, found = tokens_at(subject, pos), [[0]], []
    for row, parent in enumerate(parents, 1):
        ways.append([*ways[parent], row])
    caches = subject.k_cache.clone(), subject.v_cache.clone()
    decoder = TorchDecoder(subject.source(dtype), *caches, dtype, subject.schedule.kv.dtype)
    for way in ways:
        for at, row in enumerate(way, pos):
            logits = decoder.step(torch.tensor([tokens[row]], device="cuda"), at, decoder.rope(at))
        found.append(logits.double())
    return torch.stack(found)


def positions(subject: Any) -> list[int]:
    return [pos for pos in POSITIONS if pos + subject.schedule.rows <= subject.schedule.kv.context]


def test_every_node_is_as_close_to_fp64_as_torch_bf16(subjects: tuple[Any, Any]) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance

    tree, _ = subjects
    for pos, parents in zip(positions(tree), trees(tree.schedule.rows), strict=True):
        tokens, logits = run(tree, pos, parents)
        found = torch.from_numpy(logits).cuda()
        assert torch.isfinite(found).all(), f"position {pos}"
        assert tokens.tolist() == logits.argmax(-1).tolist()
        exact = torch_nodes(tree, pos, parents, torch.float64)
        error = relative_error(found, exact)
        torch_error = relative_error(torch_nodes(tree, pos, parents, torch.bfloat16), exact)
        print(f"{tree.schedule.name} position {pos}: error {error:.3e}, torch's {torch_error:.3e}")
        assert within_tolerance(error, torch_error), f"position {pos}: error {error:.3e}, torch's {torch_error:.3e}"
        if pos == 0:
            chain = torch.from_numpy(run(tree, pos)[1]).cuda()
            assert relative_error(chain, exact) > 4 * error, "a chain would not be noticed"


def test_two_runs_are_bitwise_equal(subjects: tuple[Any, Any]) -> None:
    tree, _ = subjects
    for pos, parents in zip(positions(tree), trees(tree.schedule.rows), strict=True):
        first, again = (run(tree, pos, parents)[1].view(np.uint32) for _ in range(2))
        np.testing.assert_array_equal(first, again, err_msg=f"position {pos}")


def test_a_chain_is_bitwise_what_rows_are_without_a_tree(subjects: tuple[Any, Any]) -> None:
    for pos in positions(subjects[0]):
        tree, plain = (run(subject, pos)[1].view(np.uint32) for subject in subjects)
        np.testing.assert_array_equal(tree, plain, err_msg=f"position {pos}")


def test_scores_of_candidates_are_those_of_the_cpu(torch_gpu: Device, gpu: Target, tmp_path: Path) -> None:
    """Through the Python API: candidates with common beginnings, more of them than a step has rows."""
    from amk.planner.decode import plan

    directory, draw = tiny_chat.write(tmp_path / "tiny"), random.Random(4)
    with amk.load(directory, device="cpu", max_context=64) as exact:
        prompt = [int(token) for token in exact.encode("ABABAB WAS")]
        candidates = [[draw.randrange(3, 9) for _ in range(draw.randint(1, 6))] for _ in range(40)]
        wanted = exact.score(prompt, candidates)
        schedule = plan(exact.spec, gpu, settings=replace(FAST, rows=16, tree=True), max_context=64)
        with amk.load(directory, schedule=schedule, device="cuda", prefill="kernel") as scoring:
            found = scoring.score(prompt, candidates)
    largest = max(-min(one.logprobs) for one in wanted)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other.logprobs, one.logprobs, atol=0.02 * largest)  # bf16


@pytest.mark.parametrize("branches", [2, 3])
def test_guesses_in_several_ways_change_no_answer(
    torch_gpu: Device, gpu: Target, tmp_path: Path, branches: int
) -> None:
    """The text is that of guesses in one way: a plan of one row may part from steps of several at a near tie."""
    options: dict[str, Any] = {"gpu": gpu.name, "max_context": 64, "prefill": "kernel"}
    options |= {"speculate": "lookup", "draft_tokens": 7}
    directory, prompt = tiny_chat.write(tmp_path / "tiny"), "ABABAB WAS ABABAB ABZ AB"
    with (
        amk.load(directory, **options) as single,
        amk.load(directory, **options, draft_branches=branches) as guessing,
    ):
        check_same_answers(single, guessing, prompt)
