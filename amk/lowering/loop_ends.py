"""How long loops go on that synchronise: those over layers and tokens, and those over the chunks of a product.

Property:
    layers      from behind the last synchronising instruction of the loop one branch leads back before the first one;
                it is taken in all passes but the last
    tokens      likewise, taken where the next token is one of the launch's; a launch of no tokens comes to nothing of
                a program
    chunks      a product comes to its first wait only where it has a chunk, and back to it only where one is left: of
                the chunk's number and the end of the agent's share the comparison is the same in both places, and holds
                for fewer numbers the further the loop is
Where the compiler leaves no comparison of these, nothing is refused: what it knows needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amk.lowering.affine import Form, added
from amk.lowering.conditions import Condition, compared, conditions
from amk.lowering.part_loops import passes
from amk.lowering.ptx_code import Code
from amk.lowering.readback import Instruction, Kind
from amk.lowering.symbolic import Reading

_LAUNCH = "argument tokens"
_WAITS = (Kind.MBARRIER_WAIT, Kind.COPY_WAIT)


@dataclass(frozen=True)
class _Span:
    """Places in the text: behind what synchronises before a loop, its first and last such instruction, the next."""

    before: int
    first: int
    last: int
    behind: int


def check_loop_ends(reading: Reading) -> None:
    """AMK609 for the first loop that goes on for another number of passes than the schedule's."""
    for number, var, count in sorted({loop for part, _ in reading.by_part for loop in part.loops}):
        span = _span(reading, number)
        if span is not None and not _ends(reading, span, var, count):
            first = reading.kernel.code[span.first]
            words = f"is not in a loop of {count} passes" if var == "l" else "is not in a loop over the launch's tokens"
            raise reading.refused(f"the loop over {'layers' if var == 'l' else 'tokens'}", first, words)
    _without_tokens(reading)
    for part, found in reading.by_part:
        for wait, barrier in ((one, found[n + 1 :]) for n, one in enumerate(found) if one.kind in _WAITS):
            last = next(one for one in barrier if one.kind is Kind.WARP_BARRIER)
            if not _drains(reading, wait, last):
                raise reading.refused(part.label, wait, "is executed for other chunks than the agent's share has")


def _span(reading: Reading, number: int) -> _Span | None:
    places = [
        (any(loop.number == number for loop in part.loops), reading.kernel.by_line[one.line])
        for part, found in reading.by_part
        for one in found
    ]
    inside = [at for here, at in places if here]
    if not inside:
        return None
    first, last = inside[0], inside[-1]
    before = max((at + 1 for _, at in places if at < first), default=0)
    behind = min((at for _, at in places if at > last), default=len(reading.kernel.code))
    return _Span(before, first, last, behind)


def _ends(reading: Reading, span: _Span, var: str, count: int) -> bool:
    kernel = reading.kernel
    back = [
        one for one in kernel.code[span.last + 1 : span.behind] if span.before <= _target(reading, one) <= span.first
    ]
    if var == "l":
        return count == 1 or any(passes(reading, one, count) == count or _first_of_two(reading, one) for one in back)
    further = {_LAUNCH: 1, "n": -1, "": -1}
    return any(_says(condition, further) for one in back for condition in compared_taken(reading, one))


def _first_of_two(reading: Reading, back: Code) -> bool:
    """Taken in the first pass of two: where what is 0 then and 1 behind it is 0, or what is true then and false."""
    definitions = [reading.kernel.code[place] for place in reading.kernel.definitions.get(back.guard, ())]
    if definitions and all(one.opcode == "mov.pred" for one in definitions):
        values = {one.operands[1] for place in definitions for one in _moved(reading, place)}
        return values == {"-1", "0"}
    return any(
        condition.true and condition.relation == "eq" and added(condition.left, condition.right, -1) == {"l of 2": 1}
        for condition in compared_taken(reading, back)
    )


def _moved(reading: Reading, last: Code) -> Iterator[Code]:
    """The moves of constants behind a predicate that is copied."""
    stack, seen = [last], {last.at}
    while stack:
        one = stack.pop()
        before = [reading.kernel.code[place] for place in reading.kernel.definitions.get(one.operands[1], ())]
        if not before:
            yield one
        new = [each for each in before if each.at not in seen]
        seen |= {each.at for each in new}
        stack += new


def _says(condition: Condition, positive: Form) -> bool:
    """Whether it holds just where the form, which is at least 0, is more."""
    return condition.at_least() == added(positive, {"": -1}) or condition.not_zero() in (
        positive,
        added({}, positive, -1),
    )


def _target(reading: Reading, one: Code) -> int:
    return reading.kernel.successors(one.at)[0] if one.opcode.startswith("bra") else -1


def compared_taken(reading: Reading, branch: Code) -> Iterator[Condition]:
    """The comparisons that hold where the branch is taken."""
    if branch.guard:
        yield from compared(reading, branch.guard.lstrip("!"), not branch.guard.startswith("!"))


def _without_tokens(reading: Reading) -> None:
    """AMK609 for a branch on which a launch of no tokens comes to a program. One that goes on behind its own program,
    where workers are asked for the next one, is asked for tokens there again."""
    kernel = reading.kernel
    programs = {kernel.by_line[one.line] for part, found in reading.by_part for one in found if part.loops}
    ways: dict[int, tuple[Code, int]] = {}
    for branch in kernel.code:
        for condition in compared_taken(reading, branch) if branch.opcode.startswith("bra") else ():
            if (condition.left.keys() | condition.right.keys()) != {_LAUNCH, ""}:
                continue
            none = condition.at_least() == {_LAUNCH: -1}
            if not none and condition.at_least() != {_LAUNCH: 1, "": -1}:
                raise reading.refused("the loop over tokens", branch, "asks for another number of tokens than one")
            ways[branch.at] = branch, kernel.successors(branch.at)[0 if none else 1]
    for branch, way in ways.values():
        if programs & _reached(reading, way, ways):
            raise reading.refused("the loop over tokens", branch, "comes to a program without a token")


def _reached(reading: Reading, start: int, ways: dict[int, tuple[Code, int]]) -> set[int]:
    """Without a token: of branches that ask for one the other way is not taken."""
    seen, stack = {start}, [start]
    while stack:
        at = stack.pop()
        for following in (ways[at][1],) if at in ways else reading.kernel.successors(at):
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return seen


def _drains(reading: Reading, wait: Instruction, barrier: Instruction) -> bool:
    """Of the loop over chunks around a wait, which ends behind the warp's barrier; True where there is none."""
    kernel, at = reading.kernel, reading.kernel.by_line[wait.line]
    behind = (one for one in kernel.code[kernel.by_line[barrier.line] :] if one.guard)
    back = next((one for one in behind if 0 <= _target(reading, one) <= at), None)
    if back is None:
        return True
    for condition in compared_taken(reading, back):
        further = condition.at_least()
        for leaf in condition.left.keys() | condition.right.keys():
            counted = reading.values.recurrence(leaf)
            if counted is None:
                continue
            start, step, _ = counted
            if further is None:
                return condition.not_zero() is not None
            if further.get(leaf, 0) * step >= 0:
                return False
            first = added(further, added({leaf: 1}, added(start, {"": step}, -1), -1), -further[leaf])
            if any(
                one.at_least() == _opposite(reading.named(first)) for one in _entered(reading, _target(reading, back))
            ):
                return False
    return True


def _opposite(form: Form) -> Form:
    """At least 0 just where the form is not."""
    return added({"": -1}, form, -1)


def _entered(reading: Reading, start: int) -> Iterator[Condition]:
    """What holds where a loop that starts there is entered."""
    kernel = reading.kernel
    for before in kernel.predecessors[start]:
        if before < start:
            one = kernel.code[before]
            if one.opcode.startswith("bra") and kernel.successors(before)[0] == start:
                yield from compared_taken(reading, one)
            elif one.opcode.startswith("bra") and one.guard:
                yield from compared(reading, one.guard.lstrip("!"), one.guard.startswith("!"))
            yield from conditions(reading, before)
