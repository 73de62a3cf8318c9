"""The GGML block formats decoded one element at a time, as the ggml sources define them (ggml-common.h, ggml-quants.c).

Slow and literal on purpose: it judges the vectorised decoders that amk uses.
"""

import struct
from collections.abc import Callable


def half(data: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", data, at)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def q8_0(b: bytes) -> list[float]:
    return [half(b, 0) * signed(b[2 + i]) for i in range(32)]


def q4_0(b: bytes) -> list[float]:
    nibbles = [b[2 + i] & 15 for i in range(16)] + [b[2 + i] >> 4 for i in range(16)]
    return [half(b, 0) * (q - 8) for q in nibbles]


def q4_1(b: bytes) -> list[float]:
    nibbles = [b[4 + i] & 15 for i in range(16)] + [b[4 + i] >> 4 for i in range(16)]
    return [half(b, 0) * q + half(b, 2) for q in nibbles]


def q5_0(b: bytes) -> list[float]:
    high = int.from_bytes(b[2:6], "little")
    nibbles = [b[6 + i] & 15 for i in range(16)] + [b[6 + i] >> 4 for i in range(16)]
    return [half(b, 0) * ((q | (high >> i & 1) << 4) - 16) for i, q in enumerate(nibbles)]


def q5_1(b: bytes) -> list[float]:
    high = int.from_bytes(b[4:8], "little")
    nibbles = [b[8 + i] & 15 for i in range(16)] + [b[8 + i] >> 4 for i in range(16)]
    return [half(b, 0) * (q | (high >> i & 1) << 4) + half(b, 2) for i, q in enumerate(nibbles)]


def scale_and_min(scales: bytes, j: int) -> tuple[int, int]:
    """The 6-bit scale and minimum of sub-block j of 8, packed in 12 bytes."""
    if j < 4:
        return scales[j] & 63, scales[j + 4] & 63
    return scales[j + 4] & 15 | scales[j - 4] >> 6 << 4, scales[j + 4] >> 4 | scales[j] >> 6 << 4


def q4_k(b: bytes) -> list[float]:
    out = []
    for j in range(8):
        scale, low = scale_and_min(b[4:16], j)
        for i in range(32):
            byte = b[16 + 32 * (j // 2) + i]
            out.append(half(b, 0) * scale * (byte >> 4 if j % 2 else byte & 15) - half(b, 2) * low)
    return out


def q5_k(b: bytes) -> list[float]:
    out = []
    for j in range(8):
        scale, low = scale_and_min(b[4:16], j)
        for i in range(32):
            byte = b[48 + 32 * (j // 2) + i]
            q = (byte >> 4 if j % 2 else byte & 15) + 16 * (b[16 + i] >> j & 1)
            out.append(half(b, 0) * scale * q - half(b, 2) * low)
    return out


def q6_k(b: bytes) -> list[float]:
    out = []
    for i in range(256):
        part, rest = divmod(i, 128)  # two parts of 128; inside, four runs of 32
        run, k = divmod(rest, 32)
        low = b[64 * part + 32 * (run % 2) + k]
        nibble = low >> 4 if run >= 2 else low & 15
        high = b[128 + 32 * part + k] >> 2 * run & 3
        scale = signed(b[192 + 8 * part + 2 * run + k // 16])
        out.append(half(b, 208) * scale * ((nibble | high << 4) - 32))
    return out


# format -> (decoder of one block, bytes of a block, offsets of its half-precision scales)
FORMATS: dict[str, tuple[Callable[[bytes], list[float]], int, tuple[int, ...]]] = {
    "Q8_0": (q8_0, 34, (0,)),
    "Q4_0": (q4_0, 18, (0,)),
    "Q4_1": (q4_1, 20, (0, 2)),
    "Q5_0": (q5_0, 22, (0,)),
    "Q5_1": (q5_1, 24, (0, 2)),
    "Q4_K": (q4_k, 144, (0, 2)),
    "Q5_K": (q5_k, 176, (0, 2)),
    "Q6_K": (q6_k, 210, (208,)),
}
