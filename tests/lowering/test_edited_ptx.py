"""Edits of the compiled text itself, by rule and at every place, that the read-back refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from amk.lowering.emit import KERNEL
from amk.lowering.kernel import read_back
from amk.lowering.readback import Instruction, Kind, read_ptx
from amk.lowering.skeleton import ByPart, check_synchronisation
from amk.report.diagnostic import AmkError
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Step, Wait
from tests.cases import cases
from tests.lowering.edits.judge import original, subject

NAMES = ("fenced", "tagged", "copies")
OTHERWISE = "is executed by other threads, or in another order, than the schedule's"


@cache
def lines(name: str) -> list[str]:
    return (original(name) or "").splitlines()


@cache
def synchronising(name: str) -> list[Instruction]:
    return [one for one in read_ptx(original(name) or "")[KERNEL] if one.kind is not Kind.LOAD_CONSTANT]


def refusal_of(name: str, text: str) -> str:
    """Code and message of what refuses a text of a subject's kernel; "" if nothing does."""
    try:
        read_back(subject(name), text)
    except AmkError as error:
        return f"{error.diagnostics[0].code} {error.diagnostics[0].message}"
    return ""


def refusal(name: str, at: int, *new: str, instead_of: int = 1) -> str:
    """The same of the text with other lines from index `at` on."""
    text = lines(name)
    edited = [*text[:at], *new, *text[at + instead_of :]]
    assert edited != text, "the edit changed nothing"
    return refusal_of(name, "\n".join(edited) + "\n")


def sample(name: str, each: int) -> Iterator[Instruction]:
    """Synchronising instructions of every kind, at most so many of one."""
    for kind in Kind:
        yield from [one for one in synchronising(name) if one.kind is kind][: cases(each, 10_000)]


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_synchronises_under_a_predicate(name: str) -> None:
    for one in sample(name, 2):
        at = one.line - 1
        found = refusal(name, at, f"@%p1 {lines(name)[at].strip()}")
        assert found == "AMK607 the PTX synchronises under a predicate", (one, found)


ADDRESS = re.compile(r"\[(%rd\d+)")
OUTSIDE = (
    "st.weak.global.u32 [A], 7;", "st.weak.u32 [A], 7;", "st.local.u32 [A], 7;", "discard.global.L2 [A], 128;",
    "call (%r1), helper, (%r2);", "brx.idx %r1, table;", "setmaxnreg.dec.sync.aligned.u32 24;", "exit;", "trap;",
    "sust.b.1d.b32.trap [s, {%r1}], {%r2};", "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r1};",
)  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize("instruction", OUTSIDE)
def test_an_instruction_that_no_rule_covers_is_refused(instruction: str) -> None:
    """Each would leave the text, or write what the list of synchronising instructions does not show."""
    signal = next(one for one in synchronising("fenced") if one.kind is Kind.SIGNAL_RELEASE)
    place = ADDRESS.search(lines("fenced")[signal.line - 1])
    assert place is not None
    text = instruction.replace("A", place[1])
    assert refusal("fenced", signal.line - 1, text, instead_of=0).startswith("AMK607")


def test_the_watchdog_adds_to_no_counter() -> None:
    signal = next(one for one in synchronising("fenced") if one.kind is Kind.SIGNAL_RELEASE)
    place = ADDRESS.search(lines("fenced")[signal.line - 1])
    assert place is not None
    added = f"atom.relaxed.gpu.global.add.u32 %r1, [{place[1]}], 1;"
    assert "not the watchdog's" in refusal("fenced", signal.line - 1, added, instead_of=0)
    flag = next(one for one in synchronising("fenced") if one.opcode.startswith("atom.relaxed.cta"))
    moved = re.sub(r"\[%r\d+\]", "[%r1]", lines("fenced")[flag.line - 1])
    assert "not the watchdog's" in refusal("fenced", flag.line - 1, moved)


def test_two_instructions_in_a_line_are_refused() -> None:
    """One could be taken for the other."""
    signal = next(one for one in synchronising("fenced") if one.kind is Kind.SIGNAL_RELEASE)
    line = lines("fenced")[signal.line - 1]
    assert refusal("fenced", signal.line - 1, f"{line} mov.u32 %r1, %r1;").startswith("AMK607")


@pytest.mark.turns(4)
@pytest.mark.parametrize(("name", "kind"), [("fenced", Kind.POLL_ACQUIRE), ("fenced", Kind.MBARRIER_WAIT),
                                            ("tagged", Kind.POLL_RELAXED), ("copies", Kind.POLL_ACQUIRE)])  # fmt: skip
def test_what_was_polled_before_does_not_end_a_wait(name: str, kind: Kind) -> None:
    """The first instruction that reads the polled value, put before the poll, reads that of the pass before."""
    for one in [one for one in synchronising(name) if one.kind is kind][: cases(2, 10_000)]:
        at = one.line - 1
        result = lines(name)[at].replace(",", " ").split()[1]
        behind = next(n for n in range(at + 1, at + 10) if re.search(rf"{re.escape(result)}\b", lines(name)[n]))
        text = lines(name)
        found = refusal(name, at, text[behind], *text[at:behind], instead_of=behind - at + 1)
        assert "goes on although" in found, (one, found)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_poll_in_front_of_its_loop_is_refused(name: str) -> None:
    """The loop looks at one value for ever, if it was not there at once."""
    text, polls = (
        lines(name),
        [one for one in synchronising(name) if one.kind in (Kind.POLL_ACQUIRE, Kind.POLL_RELAXED)],
    )
    for one in polls[: cases(3, 10_000)]:
        at = one.line - 1
        label = next(n for n in range(at, 0, -1) if re.match(r"\$L\S+:", text[n]))
        found = refusal(name, label, text[at], *text[label:at], instead_of=at - label + 1)
        assert "goes on although" in found, (one, found)


@pytest.mark.parametrize("table", ["t_hiddenZdcount", "t_attnZdgate", "stream_base"])
def test_numbers_of_tables_are_those_of_the_schedule(table: str) -> None:
    at = next(n for n, line in enumerate(lines("fenced")) if line.startswith(".const") and f"{table}E[" in line)
    before, content = lines("fenced")[at].rsplit("{", 1)
    numbers = content.rstrip("};").split(", ")
    numbers[4] = str(int(numbers[4]) + 1)
    assert "constant memory" in refusal("fenced", at, f"{before}{{{', '.join(numbers)}}};")
    assert "constant memory" in refusal("fenced", at, f"{before.rstrip(' =')};")
    assert "constant memory" in refusal("fenced", at, ".const .align 4 .b8 unknown[4];", instead_of=0)


NARROWER: dict[str, Callable[[str], str]] = {
    "upper half": lambda line: re.sub(r"mul\.wide\.([su])32(\s+%rd)", r"mul.hi.\g<1>64\2", line),
    "half the bits": lambda line: line.replace("shl.b32", "shl.b16"),
    "a byte": lambda line: line.replace("cvt.u64.u32", "cvt.u64.u8").replace("cvt.s64.s32", "cvt.s64.s8"),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("change", NARROWER)
def test_narrow_arithmetic_is_no_sum(change: str) -> None:
    text = [NARROWER[change](line) for line in lines("fenced")]
    assert refusal("fenced", 0, *text, instead_of=len(text)).startswith("AMK609")


@pytest.mark.turns(12)
def test_every_group_of_copies_is_committed_on_every_path() -> None:
    """Without one, a wait for all but the youngest groups lets a chunk be read that is on its way."""
    commits = [one for one in synchronising("copies") if one.kind is Kind.COPY_COMMIT]
    for one in commits:
        found = refusal("copies", one.line - 1)
        assert "group is open" in found or "fewer groups" in found, (one, found)


@pytest.mark.turns(4)
def test_slots_are_read_when_all_lanes_have_waited_for_their_copies() -> None:
    """A lane waits for its own copies; those of others it sees behind the barrier."""
    text, found = lines("copies"), synchronising("copies")
    waits = [n for n, one in enumerate(found) if one.kind is Kind.COPY_WAIT]
    for n in waits[:: cases(3, 1)]:
        at = found[n + 1].line - 1
        assert found[n + 1].kind is Kind.WARP_BARRIER
        behind = next(line for line in range(at, at + 40) if "ld.shared.v4" in text[line])
        reason = refusal("copies", at, *text[at + 1 : behind + 1], text[at], instead_of=behind - at + 1)
        assert "before all lanes have waited" in reason, (found[n], reason)


def test_a_copy_is_of_sixteen_bytes() -> None:
    one = next(one for one in synchronising("copies") if one.kind is Kind.COPY)
    for new in ("8,", "16, 8,"):
        edited = lines("copies")[one.line - 1].replace("16,", new)
        assert "16 a lane" in refusal("copies", one.line - 1, edited)


@cache
def parts(name: str) -> ByPart:
    return check_synchronisation(subject(name), tuple(read_ptx(original(name) or "")[KERNEL]))


def stepped_over(name: str, one: Instruction) -> str:
    """What refuses the text with a branch over that instruction."""
    at = one.line - 1
    return refusal(name, at, f"@{early(name)} bra $over;", lines(name)[at], "$over:")


@cache
def early(name: str) -> str:
    """A predicate that is set in the first block, so that every instruction behind it may read it."""
    return next(found[1] for line in lines(name) if (found := re.match(r"\s*setp\.\S+\s+(%p\d+),", line)))


def barriers(name: str) -> Iterator[Instruction]:
    """The barriers and fences that no branch may step over."""
    for part, instructions in parts(name):
        gemv = isinstance(part.item, Step) and isinstance(part.item.op, GemvOp) and not part.signals
        for one in instructions:
            if one.kind in (Kind.CTA_BARRIER, Kind.PROXY_FENCE_SHARED):
                yield one
            if one.kind is Kind.WARP_BARRIER and (gemv or part.signals or isinstance(part.item, Wait)):
                yield one


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", NAMES)
def test_no_branch_steps_over_a_barrier(name: str) -> None:
    """The text has it in its place, and nothing is wrong with it but that some warps pass by."""
    found = list(barriers(name))
    assert len(found) >= 30 and len({one.kind for one in found}) >= (2 if name == "copies" else 3)
    for one in found[:: max(1, len(found) // cases(10, 10_000))]:
        assert OTHERWISE in (reason := stepped_over(name, one)), (one, reason)


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["fenced", "tagged"])
def test_copies_are_made_by_one_elected_lane_together_with_what_they_expect(name: str) -> None:
    text = lines(name)
    expects = [one for one in synchronising(name) if one.kind is Kind.MBARRIER_EXPECT]
    for one in expects[:: max(1, len(expects) // cases(4, 10_000))]:
        at = one.line - 1
        branch = next(n for n in range(at, 0, -1) if re.match(r"\s*@%p\d+ bra", text[n]))
        assert "elect.sync" in "".join(text[branch - 8 : branch])
        turned = text[branch].replace("@%p", "@!%p")
        for new in ((), (turned,)):
            assert OTHERWISE in refusal(name, branch, *new), one
        copy = next(n for n in range(at, at + 20) if "cp.async.bulk" in text[n])
        for each in (at, copy):
            over = f"@{early(name)} bra $over;", text[each], "$over:"
            assert OTHERWISE in refusal(name, each, *over), one


@pytest.mark.parametrize("name", ["fenced", "tagged"])
def test_mbarriers_are_initialised_by_one_lane(name: str) -> None:
    text, one = lines(name), next(one for one in synchronising(name) if one.kind is Kind.MBARRIER_INIT)
    branch = next(n for n in range(one.line - 1, 0, -1) if re.match(r"\s*@%p\d+ bra", text[n]))
    for new in ((), (text[branch].replace("@%p", "@!%p"),)):
        assert OTHERWISE in refusal(name, branch, *new)


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_is_not_read_before(name: str) -> None:
    """A poll or a tagged load that stands behind what reads its result, or nowhere, as an address that is computed
    behind what uses it."""
    loads = (Kind.POLL_ACQUIRE, Kind.POLL_RELAXED, Kind.TAGGED_LOAD)
    for one in [
        one for kind in loads for one in [x for x in synchronising(name) if x.kind is kind][: cases(2, 10_000)]
    ]:
        at, text = one.line - 1, lines(name)
        result = re.findall(r"%r?d?\d+", one.operands[0])[0]
        behind = next(n for n in range(at + 1, at + 20) if re.search(rf"{re.escape(result)}\b", text[n]))
        found = refusal(name, at, *text[at + 1 : behind + 1], text[at], instead_of=behind - at + 1)
        said = "reads {} before it is written" if one.kind is Kind.TAGGED_LOAD else "goes on although"
        assert said.format(result) in found, (one, found)
        branch = next(n for n in range(at, at + 60) if re.match(r"\s*@!?%p\d+ bra", text[n]))
        found = refusal(name, at, *text[at + 1 : branch + 1], text[at], instead_of=branch - at + 1)
        assert found.startswith("AMK60"), one
    for one in [one for one in synchronising(name) if one.kind is Kind.SIGNAL_RELEASE][: cases(2, 10_000)]:
        at, text = one.line - 1, lines(name)
        address = ADDRESS.search(text[at])
        assert address is not None
        definition = next(n for n in range(at, 0, -1) if re.match(rf"\s*add\.s64\s+{re.escape(address[1])},", text[n]))
        found = refusal(
            name, definition, *text[definition + 1 : at + 1], text[definition], instead_of=at - definition + 1
        )
        assert f"reads {address[1]} before it is written" in found, (one, found)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["fenced", "tagged", "copies"])
def test_a_wait_is_not_stepped_over(name: str) -> None:
    """By a branch from before the poll of a counter, or of a slot, to the barrier behind it."""
    polls = [Kind.POLL_ACQUIRE, Kind.POLL_RELAXED, Kind.MBARRIER_WAIT, Kind.COPY_WAIT]
    for one in [
        one for kind in polls for one in [x for x in synchronising(name) if x.kind is kind][: cases(2, 10_000)]
    ]:
        text = lines(name)
        barrier = next(i for i in synchronising(name) if i.line > one.line and i.kind is Kind.WARP_BARRIER).line - 1
        edited = [*text[: one.line - 1], f"@{early(name)} bra $over;", *text[one.line - 1 : barrier], "$over:"]
        reason = refusal(name, 0, *edited, instead_of=barrier)
        assert OTHERWISE in reason or "goes on although" in reason, (one, reason)


@pytest.mark.turns(4)
def test_words_of_tagged_buffers_are_accessed_as_such_alone() -> None:
    """A weak load or store of one is no instruction of the skeleton, and says nothing to whoever polls."""
    text = lines("tagged")
    words = [one for one in synchronising("tagged") if one.kind in (Kind.TAGGED_LOAD, Kind.TAGGED_STORE)]
    several = 0
    for one in words[:: cases(6, 1)]:
        weak = text[one.line - 1].replace(".relaxed.gpu", "")
        found = refusal("tagged", one.line - 1, weak)
        assert found, one
        several += "which no step at its place names" in found
        assert "which no step at its place names" in refusal("tagged", one.line - 1, text[one.line - 1], weak), one
    assert several > 0


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", NAMES)
def test_signals_and_polls_are_of_the_warps_of_their_role(name: str) -> None:
    """A branch by which other warps pass by is turned, left out, or made to depend on something else."""
    text, found = lines(name), 0
    for n, line in enumerate(text):
        branch = re.match(r"\s*@(%p\d+) bra", line)
        test = branch and next((t for t in text if re.match(rf"\s*setp\.ne\.s32\s+{branch[1]},", t)), None)
        behind = [one.kind for one in synchronising(name) if one.line > n + 1][:2]
        signals = (
            behind[:1] == [Kind.WARP_BARRIER]
            and len(behind) > 1
            and behind[1] in (Kind.SIGNAL_RELEASE, Kind.SIGNAL_RELAXED)
        )
        if test is None or not (signals or (behind[:1] and behind[0] in (Kind.POLL_ACQUIRE, Kind.POLL_RELAXED))):
            continue
        warp = re.search(r"(%r\d+), 0;", test)
        if warp is None or not any(re.match(rf"\s*shr\.u32\s+{warp[1]}, %r\d+, 5;", t) for t in text):
            continue
        found += 1
        for new in ((), (line.replace("@%p", "@!%p"),)):
            assert refusal(name, n, *new).startswith("AMK60"), (n, new)
    assert found > 0


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ["fenced", "tagged"])
def test_an_argument_may_be_loaded_again(name: str) -> None:
    """NVRTC does not make the same text of a source every time: some have an argument's register loaded twice."""
    text = lines(name)
    decided = re.compile(r"setp\S*\s+(%p\d+)")
    loads = [at for at, line in enumerate(text) if line.strip().startswith("ld.param.u32")]
    assert loads, "no argument of 32 bits, such as the number of tokens"
    refused = set()
    for at in loads:
        predicate = decided.findall("\n".join(text[:at]))[-1]
        again = f"@{predicate} {text[at].strip()}"
        other = re.sub(r"\+(\d+)\]", lambda offset: f"+{int(offset[1]) + 4}]", again)
        assert not refusal(name, at + 1, again, instead_of=0)
        refused.add(refusal(name, at + 1, other, instead_of=0))
    assert any("the loop over tokens" in one for one in refused), refused


HALF = re.compile(r"\tshr\.u64 \t(%rd\d+), (%rd\d+), 32;\n\tcvt\.u32\.u64 \t(%r\d+), \1;")


@cache
def spelled(name: str) -> str:
    """As NVRTC 13.5 spells it for sm_100a: comparisons of bits, and a mov that leaves out a half of a word."""
    text = re.sub(r"\bsetp\.(eq|ne)\.s(32|64)", r"setp.\1.b\2", original(name) or "")
    return HALF.sub(r"\tmov.b64 \t{_, \3}, \2;", text)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NAMES)
def test_other_spellings_say_the_same(name: str) -> None:
    assert "setp.ne.b32" in spelled(name)
    assert ("{_, %r" in spelled(name)) == (name == "tagged")
    assert refusal_of(name, spelled(name)) == ""


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ["fenced", "tagged"])
def test_in_other_spellings_a_wait_for_a_copy_goes_on_when_it_has_landed(name: str) -> None:
    text = spelled(name)
    waits = list(re.finditer(r"mbarrier\.try_wait[^@]*?setp\.ne(?=\.b32)", text))
    assert waits, "no comparison behind a wait"
    for wait in waits[: cases(2, 10_000)]:
        found = refusal_of(name, f"{text[: wait.end() - 2]}eq{text[wait.end() :]}")
        assert "goes on although the copy has not landed" in found, (wait[0], found)


@pytest.mark.turns(3)
def test_in_other_spellings_the_upper_half_has_the_tag() -> None:
    text = spelled("tagged")
    halves = list(re.finditer(r"\{_, (%r\d+)\}", text))
    for half in halves[: cases(3, 10_000)]:
        found = refusal_of("tagged", f"{text[: half.start()]}{{{half[1]}, _}}{text[half.end() :]}")
        assert "does not compare the word with the tag" in found, (half[0], found)


@pytest.mark.parametrize("release", ["13.0", "13.5"])
def test_a_refusal_names_a_compiler_that_was_not_tried(release: str) -> None:
    text = re.sub(r"release \d+\.\d+", f"release {release}", "\n".join(lines("fenced")))
    assert f"release {release}" in text
    with pytest.raises(AmkError) as error:
        read_back(subject("fenced"), text.replace("bar.sync", "bar.arrive", 1) + "\n")
    facts = [fact.text for fact in error.value.diagnostics[0].facts]
    assert any(text.startswith("NVRTC 13.5 made this PTX") for text in facts) == (release == "13.5")
