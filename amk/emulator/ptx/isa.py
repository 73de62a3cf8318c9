"""The instructions that the emulator executes: mnemonic -> (operation, mode, operands).

An operation is a number that the interpreter's loop branches on; the mode says the rest (width, signedness, rounding,
comparison), so that one operation serves many mnemonics. What is not in the table is refused before anything runs.
Source: PTX ISA 9.0, chapter 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

# Operations of one lane: d = f(a, b, c).
(
    MOV, ADD, SUB, MUL_LO, MUL_HI, MUL_WIDE, MAD_LO, MAD_HI, MAD_WIDE, DIV, REM, MIN, MAX, ABS, NEG, AND, OR, XOR, NOT,
    SHL, SHR, SELP, BFE, BFI, POPC, CLZ, BREV, BFIND, PRMT, LOP3, SHF_L, SHF_R, SETP, CVT_II,
    DP2A, DP4A,
) = range(1, 37)  # fmt: skip
(
    FADD, FSUB, FMUL, FMA, FDIV, FMIN, FMAX, FABS, FNEG, FSETP, EX2, LG2, RSQRT, RCP, SQRT, SIN, COS, TANH, CVT_IF,
    CVT_FI, CVT_FF, CVT_H2, CVT_F8X2, CVT_X2F8, HMIN2, HMAX2, HADD2, HMUL2, HFMA2, HNEG2, HABS2, COPYSIGN, HSUB2,
) = range(40, 73)  # fmt: skip
LAST_LANE_WISE = 79
# Operations of a warp.
(
    BRA, EXIT, LD, ST, ATOM, BAR_SYNC, BAR_ARRIVE, BAR_WARP, SHFL, VOTE, MATCH, REDUX, ELECT, ACTIVEMASK, MMA,
    MOVMATRIX, FENCE, NOP, MBAR_INIT, MBAR_INVAL, MBAR_ARRIVE, MBAR_EXPECT, MBAR_TRY, BULK, CP_ASYNC, CP_COMMIT,
    CP_WAIT, CLOCK, PACK, UNPACK, TRAP, BAR_RED, NOTED,
) = range(80, 113)  # fmt: skip

SIGNED, SIGNED_BYTES, HIGH_HALF = 1 << 8, 1 << 9, 1 << 10
"""The latter two of dot products: of the bytes in b, and which two of them."""
RN, RZ, RM, RP = 0, 1, 2, 3
FTZ, SAT, RELU, NAN = 1 << 2, 1 << 3, 1 << 4, 1 << 5
ROUNDINGS = {"": RN, ".rn": RN, ".rz": RZ, ".rm": RM, ".rp": RP}
EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NANS = range(14)
COMPARISONS = {
    "eq": EQ, "ne": NE, "lt": LT, "le": LE, "gt": GT, "ge": GE, "lo": LT, "ls": LE, "hi": GT, "hs": GE, "equ": EQU,
    "neu": NEU, "ltu": LTU, "leu": LEU, "gtu": GTU, "geu": GEU, "num": NUM, "nan": NANS,
}  # fmt: skip
F16, BF16, F32, F64 = 1, 2, 3, 4
FLOATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}

# Spaces and strengths of an access (mode of LD, ST, ATOM).
GLOBAL, SHARED, CONST, PARAM, GENERIC = range(5)
WEAK, RELAXED, ACQUIRE, RELEASE, NON_COHERENT, VOLATILE, HINT = range(7)
CTA, GPU, SYS = range(3)
A_ADD, A_OR, A_AND, A_XOR, A_MIN, A_MAX, A_EXCH, A_CAS, A_INC, A_DEC, A_FADD = range(11)
SHFL_IDX, SHFL_UP, SHFL_DOWN, SHFL_BFLY = range(4)
V_ALL, V_ANY, V_UNI, V_BALLOT = range(4)
MMA_BF16, MMA_F16, MMA_S8, MMA_U8S8, MMA_S8U8, MMA_U8 = range(6)
F_CTA, F_GPU, F_INIT, F_PROXY_GLOBAL, F_PROXY_SHARED, F_PROXY_ALL = range(6)


@dataclass(frozen=True)
class Form:
    """operands: one letter each; d result, a b c sources, V a vector, M an address, L a label, P a predicate, _
    unused."""

    operation: int
    mode: int
    operands: str


def _bits(kind: str) -> int:
    return 1 if kind == "pred" else int(kind.strip("busf"))


def _width(kind: str) -> int:
    """Bits, and SIGNED for the signed types."""
    return _bits(kind) | (SIGNED if kind[0] == "s" else 0)


def _integers() -> dict[str, Form]:
    found: dict[str, Form] = {}
    for name in ("u16", "s16", "u32", "s32", "u64", "s64"):
        mode = _width(name)
        for word, operation in (("add", ADD), ("sub", SUB), ("div", DIV), ("rem", REM), ("min", MIN), ("max", MAX)):
            found[f"{word}.{name}"] = Form(operation, mode, "dab")
        found[f"mul.lo.{name}"] = Form(MUL_LO, mode, "dab")
        found[f"mul.hi.{name}"] = Form(MUL_HI, mode, "dab")
        found[f"mad.lo.{name}"] = Form(MAD_LO, mode, "dabc")
        found[f"mad.hi.{name}"] = Form(MAD_HI, mode, "dabc")
        found[f"shr.{name}"] = Form(SHR, mode, "dab")
        if _bits(name) < 64:
            found[f"mul.wide.{name}"] = Form(MUL_WIDE, mode, "dab")
            found[f"mad.wide.{name}"] = Form(MAD_WIDE, mode, "dabc")
        if name[0] == "s":
            found[f"abs.{name}"] = Form(ABS, mode, "da")
            found[f"neg.{name}"] = Form(NEG, mode, "da")
        if _bits(name) > 16:
            found[f"bfe.{name}"] = Form(BFE, mode, "dabc")
            found[f"bfind.{name}"] = Form(BFIND, mode, "da")
    return found


def _dot_products() -> dict[str, Form]:
    """d = c + the products of the parts of a, two or four, and bytes of b."""
    found: dict[str, Form] = {}
    for first, second in product(("u32", "s32"), repeat=2):
        mode = _width(first) | (SIGNED_BYTES if second == "s32" else 0)
        found[f"dp4a.{first}.{second}"] = Form(DP4A, mode, "dabc")
        found[f"dp2a.lo.{first}.{second}"] = Form(DP2A, mode, "dabc")
        found[f"dp2a.hi.{first}.{second}"] = Form(DP2A, mode | HIGH_HALF, "dabc")
    return found


def _logic() -> dict[str, Form]:
    found: dict[str, Form] = {}
    for name in ("pred", "b16", "b32", "b64"):
        mode = _bits(name)
        for word, operation in (("and", AND), ("or", OR), ("xor", XOR)):
            found[f"{word}.{name}"] = Form(operation, mode, "dab")
        found[f"not.{name}"] = Form(NOT, mode, "da")
        if name != "pred":
            found[f"shl.{name}"] = Form(SHL, mode, "dab")
            found[f"shr.{name}"] = Form(SHR, mode, "dab")
        if mode >= 32:
            found[f"popc.{name}"] = Form(POPC, mode, "da")
            found[f"clz.{name}"] = Form(CLZ, mode, "da")
            found[f"brev.{name}"] = Form(BREV, mode, "da")
            found[f"bfi.{name}"] = Form(BFI, mode, "dabce")
    found["lop3.b32"] = Form(LOP3, 32, "dabce")
    for word, wrap in product("lr", ("wrap", "clamp")):
        found[f"shf.{word}.{wrap}.b32"] = Form(SHF_L if word == "l" else SHF_R, int(wrap == "clamp"), "dabc")
    found["prmt.b32"] = Form(PRMT, 0, "dabc")
    for name in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        found[f"selp.{name}"] = Form(SELP, _bits(name), "dabP")
        found[f"mov.{name}"] = Form(MOV, _bits(name), "dx")
    found["mov.pred"] = Form(MOV, 1, "dx")
    for word, name in product(COMPARISONS, ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")):
        if COMPARISONS[word] <= GE and (name[0] != "b" or word in ("eq", "ne")):
            found[f"setp.{word}.{name}"] = Form(SETP, _width(name) | COMPARISONS[word] << 12, "sab")
    return found


def _floats() -> dict[str, Form]:
    found: dict[str, Form] = {}
    for (rounding, mode), ftz, sat in product(ROUNDINGS.items(), ("", ".ftz"), ("", ".sat")):
        full = mode | (FTZ if ftz else 0) | (SAT if sat else 0)
        for word, operation in (("add", FADD), ("sub", FSUB), ("mul", FMUL)):
            found[f"{word}{rounding}{ftz}{sat}.f32"] = Form(operation, full, "dab")
        if rounding:
            found[f"fma{rounding}{ftz}{sat}.f32"] = Form(FMA, full, "dabc")
            if not sat:
                found[f"div{rounding}{ftz}.f32"] = Form(FDIV, full, "dab")
                found[f"rcp{rounding}{ftz}.f32"] = Form(RCP, full, "da")
                found[f"sqrt{rounding}{ftz}.f32"] = Form(SQRT, full, "da")
    for ftz in ("", ".ftz"):
        mode = FTZ if ftz else 0
        for word, operation in (
            ("ex2", EX2), ("lg2", LG2), ("rsqrt", RSQRT), ("rcp", RCP), ("sqrt", SQRT), ("sin", SIN), ("cos", COS),
        ):  # fmt: skip
            found[f"{word}.approx{ftz}.f32"] = Form(operation, mode, "da")
        found[f"div.approx{ftz}.f32"] = Form(FDIV, mode, "dab")
        found[f"div.full{ftz}.f32"] = Form(FDIV, mode, "dab")
        for nan in ("", ".NaN"):
            found[f"min{ftz}{nan}.f32"] = Form(FMIN, mode | (NAN if nan else 0), "dab")
            found[f"max{ftz}{nan}.f32"] = Form(FMAX, mode | (NAN if nan else 0), "dab")
        found[f"abs{ftz}.f32"] = Form(FABS, mode, "da")
        found[f"neg{ftz}.f32"] = Form(FNEG, mode, "da")
        for word, number in COMPARISONS.items():
            if word not in ("lo", "ls", "hi", "hs"):
                found[f"setp.{word}{ftz}.f32"] = Form(FSETP, mode | number << 12, "sab")
    found["tanh.approx.f32"] = Form(TANH, 0, "da")
    found["copysign.f32"] = Form(COPYSIGN, 0, "dab")
    return found


def _halves() -> dict[str, Form]:
    """Pairs of 16-bit floats, and single ones as the low half."""
    found: dict[str, Form] = {}
    for kind, number in (("f16", F16), ("bf16", BF16)):
        for pair in ("", "x2"):
            mode = number << 8 | (1 << 16 if pair else 0)
            name = kind + pair
            for word, operation in (("min", HMIN2), ("max", HMAX2)):
                found[f"{word}.{name}"] = Form(operation, mode, "dab")
                found[f"{word}.NaN.{name}"] = Form(operation, mode | NAN, "dab")
            for rounding in ("", ".rn"):
                for word, operation in (("add", HADD2), ("sub", HSUB2), ("mul", HMUL2)):
                    found[f"{word}{rounding}.{name}"] = Form(operation, mode, "dab")
            found[f"fma.rn.{name}"] = Form(HFMA2, mode, "dabc")
            found[f"fma.rn.relu.{name}"] = Form(HFMA2, mode | RELU, "dabc")
            found[f"neg.{name}"] = Form(HNEG2, mode, "da")
            found[f"abs.{name}"] = Form(HABS2, mode, "da")
            if pair:
                for rounding, relu in product((".rn", ".rz"), ("", ".relu")):
                    full = mode | ROUNDINGS[rounding] | (RELU if relu else 0)
                    found[f"cvt{rounding}{relu}.{name}.f32"] = Form(CVT_H2, full, "dab")
    for kind, number in (("e4m3x2", 0), ("e5m2x2", 1)):
        for relu in ("", ".relu"):
            mode = number << 8 | (RELU if relu else 0)
            found[f"cvt.rn.f16x2.{kind}" if not relu else f"cvt.rn.relu.f16x2.{kind}"] = Form(CVT_F8X2, mode, "da")
            found[f"cvt.rn.satfinite{relu}.{kind}.f32"] = Form(CVT_X2F8, mode | F32 << 12, "dab")
            found[f"cvt.rn.satfinite{relu}.{kind}.f16x2"] = Form(CVT_X2F8, mode | F16 << 12, "da_")
    return found


def _conversions() -> dict[str, Form]:
    found: dict[str, Form] = {}
    whole = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    for to, of, sat in product(whole, whole, ("", ".sat")):
        mode = _width(to) | _width(of) << 10 | (1 << 20 if sat else 0)
        found[f"cvt{sat}.{to}.{of}"] = Form(CVT_II, mode, "da")
    for (rounding, mode), kind, number in product(ROUNDINGS.items(), whole, (F16, F32, F64)):
        name = {F16: "f16", F32: "f32", F64: "f64"}[number]
        if rounding:
            found[f"cvt{rounding}.{name}.{kind}"] = Form(CVT_IF, mode | number << 8 | _width(kind) << 12, "da")
            for ftz in ("", ".ftz"):
                full = mode | number << 8 | _width(kind) << 12 | (FTZ if ftz else 0)
                found[f"cvt{rounding}i{ftz}.{kind}.{name}"] = Form(CVT_FI, full, "da")
    for (to, a), (of, b), (rounding, mode) in product(FLOATS.items(), FLOATS.items(), ROUNDINGS.items()):
        for ftz, sat in product(("", ".ftz"), ("", ".sat")):
            full = mode | (FTZ if ftz else 0) | (SAT if sat else 0) | a << 8 | b << 12
            found[f"cvt{rounding}{ftz}{sat}.{to}.{of}"] = Form(CVT_FF, full, "da")
            if rounding and to == of == "f32":
                found[f"cvt{rounding}i{ftz}{sat}.{to}.{of}"] = Form(CVT_FF, full | 1 << 16, "da")
    return found


def _warp() -> dict[str, Form]:
    found: dict[str, Form] = {
        "bra": Form(BRA, 0, "L"), "bra.uni": Form(BRA, 1, "L"), "ret": Form(EXIT, 0, ""), "exit": Form(EXIT, 0, ""),
        "ret.uni": Form(EXIT, 0, ""), "trap": Form(TRAP, 0, ""), "bar.warp.sync": Form(BAR_WARP, 0, "a"),
        "activemask.b32": Form(ACTIVEMASK, 0, "d"), "elect.sync": Form(ELECT, 0, "pa"),
        "movmatrix.sync.aligned.m8n8.trans.b16": Form(MOVMATRIX, 0, "da"),
    }  # fmt: skip
    for word, mode in (("idx", SHFL_IDX), ("up", SHFL_UP), ("down", SHFL_DOWN), ("bfly", SHFL_BFLY)):
        found[f"shfl.sync.{word}.b32"] = Form(SHFL, mode, "pabce")
    for word, mode in (("all.pred", V_ALL), ("any.pred", V_ANY), ("uni.pred", V_UNI), ("ballot.b32", V_BALLOT)):
        found[f"vote.sync.{word}"] = Form(VOTE, mode, "dQa")
    for bits in (32, 64):
        found[f"match.any.sync.b{bits}"] = Form(MATCH, 0, "dab")
        found[f"match.all.sync.b{bits}"] = Form(MATCH, 1, "pab")
    for word, mode in (("add", A_ADD), ("min", A_MIN), ("max", A_MAX)):
        found[f"redux.sync.{word}.u32"] = Form(REDUX, mode, "dab")
        found[f"redux.sync.{word}.s32"] = Form(REDUX, mode | SIGNED, "dab")
    for word, mode in (("and", A_AND), ("or", A_OR), ("xor", A_XOR)):
        found[f"redux.sync.{word}.b32"] = Form(REDUX, mode, "dab")
    for prefix in ("bar", "bar.cta", "barrier", "barrier.cta"):
        for aligned in ("",) if prefix.startswith("bar.") or prefix == "bar" else ("", ".aligned"):
            found[f"{prefix}.sync{aligned}"] = Form(
                BAR_SYNC, 0 if prefix.startswith("barrier") and not aligned else 1, "Ba"
            )
            found[f"{prefix}.arrive{aligned}"] = Form(
                BAR_ARRIVE, 0 if prefix.startswith("barrier") and not aligned else 1, "Ba"
            )
    for word, mode in (
        ("f32.bf16.bf16.f32", MMA_BF16), ("f32.f16.f16.f32", MMA_F16),
    ):  # fmt: skip
        found[f"mma.sync.aligned.m16n8k16.row.col.{word}"] = Form(MMA, mode, "VVVV")
    for word, mode in (("s8.s8", MMA_S8), ("u8.s8", MMA_U8S8), ("s8.u8", MMA_S8U8), ("u8.u8", MMA_U8)):
        found[f"mma.sync.aligned.m16n8k32.row.col.s32.{word}.s32"] = Form(MMA, mode, "VVVV")
    return found


def _memory_order() -> dict[str, Form]:
    found: dict[str, Form] = {
        "fence.mbarrier_init.release.cluster": Form(FENCE, F_INIT, ""), "membar.cta": Form(FENCE, F_CTA, ""),
        "membar.gl": Form(FENCE, F_GPU, ""), "membar.sys": Form(FENCE, F_GPU, ""),
    }  # fmt: skip
    for strength, scope in product(("acq_rel", "sc"), ("cta", "cluster", "gpu", "sys")):
        found[f"fence.{strength}.{scope}"] = Form(FENCE, F_CTA if scope == "cta" else F_GPU, "")
    for what, mode in (
        ("", F_PROXY_ALL), (".global", F_PROXY_GLOBAL),
        (".shared::cta", F_PROXY_SHARED), (".shared::cluster", F_PROXY_SHARED),
    ):  # fmt: skip
        found[f"fence.proxy.async{what}"] = Form(FENCE, mode, "")
    for space in ("shared", "shared::cta"):
        found |= {
            f"mbarrier.init.{space}.b64": Form(MBAR_INIT, 0, "Ma"),
            f"mbarrier.inval.{space}.b64": Form(MBAR_INVAL, 0, "M"),
            f"mbarrier.expect_tx.relaxed.cta.{space}.b64": Form(MBAR_EXPECT, 0, "Ma"),
        }
        for order in ("", ".release.cta"):
            found[f"mbarrier.arrive{order}.{space}.b64"] = Form(MBAR_ARRIVE, 0, "_Mo")
            found[f"mbarrier.arrive.expect_tx{order}.{space}.b64"] = Form(MBAR_ARRIVE, 1, "_Ma")
        for word, order in product(("try_wait", "test_wait"), ("", ".acquire.cta")):
            found[f"mbarrier.{word}.parity{order}.{space}.b64"] = Form(MBAR_TRY, int(word == "test_wait"), "dMao")
    return found


def _asynchronous() -> dict[str, Form]:
    found: dict[str, Form] = {
        "cp.async.commit_group": Form(CP_COMMIT, 0, ""), "cp.async.wait_group": Form(CP_WAIT, 0, "a"),
        "cp.async.wait_all": Form(CP_WAIT, 1, ""),
    }  # fmt: skip
    for hint in ("", ".L2::cache_hint"):
        for space in ("shared::cta", "shared::cluster"):
            name = f"cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes{hint}"
            found[name] = Form(BULK, 0, "MMaMo")
        found[f"cp.async.bulk.prefetch.L2.global{hint}"] = Form(NOP, 0, "*")
        for kind, level in product(("ca", "cg"), ("", ".L2::64B", ".L2::128B", ".L2::256B")):
            for space in ("shared", "shared::cta"):
                found[f"cp.async.{kind}.{space}.global{level}{hint}"] = Form(CP_ASYNC, 0, "MMao")
    for name in ("discard.global.L2", "applypriority.global.L2::evict_normal"):
        found[name] = Form(NOP, 0, "*")
    for name in ("prefetch.global.L1", "prefetch.global.L2"):
        found[name] = Form(LD, GLOBAL | HINT << 4 | 1 << 12 | 1 << 16, "M")  # a byte, whose value nobody gets
    found["griddepcontrol.wait"] = found["griddepcontrol.launch_dependents"] = Form(NOP, 0, "")
    for what in ("evict_first", "evict_last", "evict_normal", "evict_unchanged"):
        found[f"createpolicy.fractional.L2::{what}.b64"] = Form(MOV, 64, "dz*")
    found["nanosleep.u32"] = Form(NOP, 1, "*")
    return found


def forms() -> dict[str, Form]:
    """Every mnemonic that is executed, except loads, stores, atomics and conversions of addresses: see `program`."""
    return (
        _integers() | _dot_products() | _logic() | _floats() | _halves() | _conversions() | _warp() | _memory_order()
        | _asynchronous()
    )  # fmt: skip
