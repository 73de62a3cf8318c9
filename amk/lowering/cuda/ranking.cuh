// The order of logits as integers, their weights and noise, sums in two words. Twin of schedule_ir/ranking.py.
#pragma once
#include "amk/context.cuh"
#include "amk/philox.cuh"

namespace amk::ranking {

// Words of the `sampling` buffer, and of an agent's place in `pick`.
constexpr int kInverse = 0, kTopK = 1, kTopP = 2, kSeedLow = 3, kSeedHigh = 4;
constexpr int kKeep = 0, kCut = 1, kGoalLow = 2, kGoalHigh = 3, kPeak = 4, kPickWords = 5;

constexpr int kRounds = 7, kTally = 64, kHalf = 30;
constexpr u64 kLowHalf = (u64{1} << kHalf) - 1;

// Distance of neighbouring keys of a round, as a power of two.
__host__ __device__ constexpr int shift(int round) { return round % kRounds < 6 ? 27 - 5 * (round % kRounds) : 0; }

// In the order of the logits; -0 counts as 0.
__device__ __forceinline__ u32 key(float logit) {
  const u32 bits = __float_as_uint(logit + 0.f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ u64 weight(float logit, float peak, float inverse) {
  return static_cast<u64>(expf(__fmul_rn(logit - peak, inverse)) * 68719476736.f);
}

// Standard Gumbel noise of one row at one position.
__device__ __forceinline__ float gumbel(int row, int pos, u32 seed_low, u32 seed_high) {
  const uint2 bits = philox(static_cast<u32>(row), static_cast<u32>(pos), seed_low, seed_high);
  const float high = __fmul_rn(__uint2float_rn(bits.x), 2.3283064365386963e-10f);
  const float low = __fmul_rn(__fadd_rn(__uint2float_rn(bits.y), 0.5f), 5.421010862427522e-20f);
  const float v = fminf(__fadd_rn(high, low), 0.99999994039535522f);
  return -logf(-log1pf(-v));
}

// The parameters of the sequence that vector s of a step is of: one for each sequence of a batch, one for all rows of a single one.
template <class S, class C>
__device__ __forceinline__ const int* parameters(C& c, int s) {
  if constexpr (C::P::kRows > 1) {
    return S::sampling(c).data;
  } else {
    return S::sampling(c).data + s * S::kSamplingRow;
  }
}

__device__ __forceinline__ void store_sum(int* words, u64 sum) {
  *reinterpret_cast<int2*>(words) = make_int2(static_cast<int>(sum & kLowHalf), static_cast<int>(sum >> kHalf));
}

__device__ __forceinline__ u64 sum_of(int2 words) {
  return static_cast<u64>(static_cast<u32>(words.x)) + (static_cast<u64>(static_cast<u32>(words.y)) << kHalf);
}

}  // namespace amk::ranking
