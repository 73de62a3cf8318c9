// Philox4x32-10 (Salmon et al., SC 2011): random words as a function of key and counter. Twin of schedule_ir/philox.py.
#pragma once
#include "amk/context.cuh"

namespace amk {

// The first two of the four words for counter (a, b, 0, 0).
__device__ __forceinline__ uint2 philox(u32 a, u32 b, u32 key_low, u32 key_high) {
  u32 c = 0, d = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u32 left_high = __umulhi(a, 0xD2511F53u), left_low = a * 0xD2511F53u;
    const u32 right_high = __umulhi(c, 0xCD9E8D57u), right_low = c * 0xCD9E8D57u;
    a = right_high ^ b ^ key_low, b = right_low;
    c = left_high ^ d ^ key_high, d = left_low;
    key_low += 0x9E3779B9u, key_high += 0xBB67AE85u;
  }
  return make_uint2(a, b);
}

}  // namespace amk
