// Pairs of bf16: a product and sum, and e4m3 numbers of codes and of the cache, which bf16 holds exactly.
#pragma once
#include "amk/sync.cuh"

namespace amk {

// d = a * b + c in pairs of bf16. Exact here: the results are powers of two times a.
__device__ __forceinline__ u32 fma_pair(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two e4m3 numbers, their signs and their other bits where bf16 has them: exponents are then 120 too small, which a product
// puts right, subnormals included.
__device__ __forceinline__ u32 e4m3_pair(u32 signs, u32 rest) {
  return fma_pair((signs & 0x80008000u) | (rest & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
}

}  // namespace amk
