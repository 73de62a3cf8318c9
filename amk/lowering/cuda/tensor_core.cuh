// Warp-wide products of small tiles, bf16 or f16 with f32 sums and bytes with s32 sums (PTX ISA 9.7.15): fragments stay in
// registers.
//
// Lane 4 r + q of a fragment: A holds rows r (a0, a2) and r + 8 (a1, a3), B column r, C rows r (c0, c1) and r + 8 (c2, c3).
#pragma once
#include "amk/sync.cuh"

namespace amk {

// acc += A[16 x 16] B[16 x 8]. a0, a1, b0: k = 2 q, 2 q + 1; a2, a3, b1: the same + 8. acc: columns 2 q, 2 q + 1.
__device__ __forceinline__ void mma_16(float (&acc)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same for f16.
__device__ __forceinline__ void mma_16_f16(float (&acc)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c = A[16 x 32] B[32 x 8], bytes; A signed. a0, a1, b0: k = 4 q .. 4 q + 3; a2, a3, b1: the same + 16.
__device__ __forceinline__ void mma_32_s8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

// The same, A unsigned.
__device__ __forceinline__ void mma_32_u8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

// An 8 x 8 matrix of 16-bit elements, lane 4 r + q holding row r, columns 2 q and 2 q + 1, transposed.
__device__ __forceinline__ u32 transpose_8x8(u32 rows) {
  u32 columns;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

}  // namespace amk
