"""Tagged words in the compiled kernel: which buffers, which tags, and that stale words are read again.

Property: a tagged store goes to a tagged buffer that its step names, with the buffer's tag in the upper half; the upper
    half of what a tagged load reads is compared with the tag of its buffer, and there is a way from the load through
    the count of failed attempts back to it, which is taken while a word is stale (`stale_words`).
"""

from __future__ import annotations

import re

from amk.lowering.abi import member
from amk.lowering.affine import Form, constant
from amk.lowering.ptx_code import Code
from amk.lowering.readback import Instruction, Kind
from amk.lowering.skeleton import ByPart, Part
from amk.lowering.stale_words import StaleWords
from amk.lowering.symbolic import Reading

_HALF = 32
_PASSED_ON = re.compile(r"(?:mov|cvt|shr|selp|and)\b")
_COMPARES = re.compile(r"(?:setp\.(?:eq|ne)|xor)\.[sub]32")


def check_tags(reading: Reading) -> None:
    """AMK609 for the first tagged word that is not as above."""
    consumers = _consumers(reading)
    loads = {reading.kernel.by_line[i.line] for _, each in reading.by_part for i in each if i.kind is Kind.TAGGED_LOAD}
    stale = StaleWords(reading, loads, consumers)
    filled = [(part, instructions) for part, instructions in reading.by_part if instructions]
    for number, (part, instructions) in enumerate(filled):
        loading = [part, *_next_that_loads(filled[number + 1 :])]
        for one in instructions:
            if one.kind is Kind.TAGGED_STORE:
                _store(reading, part, one)
            elif one.kind is Kind.TAGGED_LOAD:
                _load(reading, loading, one, consumers, stale)


def _next_that_loads(rest: ByPart) -> list[Part]:
    """The part behind, if it begins with tagged loads: the text does not tell where those of the part before end."""
    return [part for part, instructions in rest[:1] if instructions[0].kind is Kind.TAGGED_LOAD]


def _tag(reading: Reading, parts: list[Part], one: Instruction) -> Form:
    """The tag of the buffer that is accessed, which one of the parts' steps must name."""
    roots = reading.roots.of_address(reading.code(one))
    for part in parts:
        tagged = {member(name): name for name in reading.named_by(part) if reading.buffers[name].tagged}
        if roots and roots <= tagged.keys():
            tags = [reading.expected(part, reading.buffers[tagged[root]].tag or 0) for root in sorted(roots)]
            if all(tag == tags[0] for tag in tags):
                return tags[0]
    names = ", ".join(sorted(reading.buffer_names.get(root, root) for root in roots))
    words = f"accesses {names}, no tagged buffer of the step"
    raise reading.refused(parts[0].label, one, words)


def _store(reading: Reading, part: Part, one: Instruction) -> None:
    tag, code = _tag(reading, [part], one), reading.code(one)
    for word in re.findall(r"[%\w$#]+", code.operands[1]):
        if not any(reading.named(form) == tag for form in _upper_halves(reading, word)):
            raise reading.refused(part.label, one, "stores another tag than that of the buffer")


def _upper_halves(reading: Reading, word: str) -> list[Form]:
    """What may stand in the upper half of a word that was put together from two."""
    definition = reading.definition(word)
    if definition is None:
        return []
    if definition.opcode == "bfi.b64" and definition.operands[3:] == ("32", "32"):
        return [reading.values.operand(definition, 1)]
    halves = (
        [reading.values.operand(definition, n) for n in (1, 2)] if definition.opcode in ("or.b64", "add.s64") else []
    )
    return [
        {leaf: factor >> _HALF for leaf, factor in form.items()}
        for form in halves
        if form and all(factor % (1 << _HALF) == 0 for factor in form.values())
    ]


def _consumers(reading: Reading) -> dict[str, list[Code]]:
    """The instructions that read each register."""
    found: dict[str, list[Code]] = {}
    for one in reading.kernel.code:
        for source in one.sources:
            for register in re.findall(r"%[\w$#]+", source):
                found.setdefault(register, []).append(one)
    return found


def _load(
    reading: Reading, parts: list[Part], one: Instruction, consumers: dict[str, list[Code]], stale: StaleWords
) -> None:
    tag, code = _tag(reading, parts, one), reading.code(one)
    for word in code.results:
        if not any(reading.named(form) == tag for form in _compared(reading, word, consumers)):
            raise reading.refused(parts[0].label, one, "does not compare the word with the tag of its buffer")
    if not _attempted_again(reading, one):
        raise reading.refused(parts[0].label, one, "does not read a stale word again")
    for word in code.results:
        if stale.leave(code, word, lambda form: reading.named(form) == tag):
            raise reading.refused(parts[0].label, one, "goes on although a word is stale")


def _compared(reading: Reading, word: str, consumers: dict[str, list[Code]]) -> list[Form]:
    """What the upper half of a word is compared with; (register, whether it holds the upper half) is followed."""
    found: list[Form] = []
    seen, stack = {(word, False)}, [(word, False)]
    while stack:
        register, upper = stack.pop()
        for one in consumers.get(register, []):
            if upper and _COMPARES.match(one.opcode):
                found += [reading.values.of(source, one.at) for source in one.sources if source != register]
            elif _PASSED_ON.match(one.opcode) and one.results:
                shifts = one.opcode.startswith("shr") and constant(reading.values.operand(one, 2)) == _HALF
                passed = one.results[1:] if one.opcode == "mov.b64" and len(one.results) == 2 else one.results
                following = [(result, upper or shifts or passed != one.results) for result in passed]
                stack += [pair for pair in following if pair not in seen]
                seen |= set(following)
    return found


def _attempted_again(reading: Reading, one: Instruction) -> bool:
    """A way from the load to a look at the number of attempts, and from there back, past nothing that synchronises."""
    start = reading.kernel.by_line[one.line]
    loads = {reading.kernel.by_line[i.line] for _, each in reading.by_part for i in each if i.kind is Kind.TAGGED_LOAD}
    seen, stack = {(start, False)}, [(start, False)]
    while stack:
        at, looked = stack.pop()
        now = reading.kernel.code[at]
        looked = looked or (now.opcode == "and.b32" and now.operands[2] == "1023")
        for following in reading.kernel.successors(at):
            if following == start and looked:
                return True
            state = (following, looked)
            if state not in seen and (following not in reading.stops or following in loads):
                seen.add(state)
                stack.append(state)
    return False
