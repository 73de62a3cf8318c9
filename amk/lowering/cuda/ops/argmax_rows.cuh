// logits[row] = sum of partials (/ rms); best_value, best_index[worker, a] = the agent's largest logit, lowest row first;
// for each sequence.
//
// Threads: each agent a contiguous share of the worker's row groups, a row a lane. Reads part (f32, shared or the worker's
// slice of a global buffer), shared ssq (f32); writes global logits (f32), best_value (f32 hand-off), best_index (i32 hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

// The larger value, the lower index among equals.
__device__ __forceinline__ void keep_best(float& value, int& index, float other, int at) {
  if (other > value || (other == value && at < index)) value = other, index = at;
}

__device__ __forceinline__ void warp_best(float& value, int& index) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, offset);
    const int at = __shfl_xor_sync(0xffffffffu, index, offset);
    keep_best(value, index, other, at);
  }
}

// Of a single sequence.
template <class S, class C>
__device__ __forceinline__ void argmax_one(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  constexpr int kChunks = M::kChunks / S::kKParts;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = M::end_row(c) - first;
  const int begin = share_begin(count, S::kAgents, agent) * 8, end = share_begin(count, S::kAgents, agent + 1) * 8;
  float* logits = S::logits(c).data;
  const int slot = c.worker * S::kAgents + agent;
  float scale = 1.f;
  if constexpr (S::kHasSsq) {
    // Without rows the sums of squares are not the warp's to read: others may write them now.
    if (begin < end) scale = inverse_rms<P, S::kSsqAgents>(S::ssq(c));
  }
  float value = -3.0e38f;
  int index = 0x7fffffff;
  for (int r = begin + c.lane; !ablation::kNoArgmax && r < end && r < rows; r += 32) {
    const float y = sum_partials<kChunks, P::kStreamAgents, 1, M::Weights::kRowGroups>(S::part(c), r, count * kChunks) * scale;
    logits[first + r] = y;
    keep_best(value, index, y, first + r);
  }
  warp_best(value, index);
  S::best_value(c).store(c, slot, value, c.lane == 0);
  S::best_index(c).store(c, slot, index == 0x7fffffff ? 0 : index, c.lane == 0);
}

// Of kCount sequences of a batch from `from` on: a row's partials of all of them are in flight together.
template <class S, int kCount, class C>
__device__ __forceinline__ void argmax_batch(C& c, int from) {
  using P = typename C::P;
  using M = typename S::Matrix;
  constexpr int kBatch = P::kBatch, kChunks = M::kChunks / S::kKParts;
  static_assert(S::kBestIndexRow == S::kBestValueRow, "one candidate, one place");
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = M::end_row(c) - first;
  const int begin = share_begin(count, S::kAgents, agent) * 8, end = share_begin(count, S::kAgents, agent + 1) * 8;
  float* logits = S::logits(c).data + from * S::kLogitsRow;
  const int slot = c.worker * S::kAgents + agent;
  float scale[kCount], value[kCount];
  int index[kCount];
#pragma unroll
  for (int s = 0; s < kCount; ++s) scale[s] = 1.f, value[s] = -3.0e38f, index[s] = 0x7fffffff;
  if constexpr (S::kHasSsq) {
    if (begin < end) {
#pragma unroll
      for (int s = 0; s < kCount; ++s) scale[s] = inverse_rms<P, S::kSsqAgents>(S::ssq(c) + (from + s) * S::kSsqRow);
    }
  }
#pragma unroll 1
  for (int r = begin + c.lane; !ablation::kNoArgmax && r < end && r < rows; r += 32) {
    const Partials<kChunks, P::kStreamAgents, kBatch, M::Weights::kRowGroups> partials(r / 8, count * kChunks);
    float y[kCount];
    partials.template sums<8>(S::part(c), (r / 8 * kBatch + from) * 8 + r % 8, y);
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      y[s] *= scale[s];
      logits[s * S::kLogitsRow + first + r] = y[s];
      keep_best(value[s], index[s], y[s], first + r);
    }
  }
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    warp_best(value[s], index[s]);
    S::best_value(c).store(c, (from + s) * S::kBestValueRow + slot, value[s], c.lane == 0);
    S::best_index(c).store(c, (from + s) * S::kBestIndexRow + slot, index[s] == 0x7fffffff ? 0 : index[s], c.lane == 0);
  }
}

template <class S, class C>
__device__ __forceinline__ void argmax_rows(C& c) {
  if constexpr (C::P::kBatch == 1) {
    argmax_one<S>(c);
  } else if constexpr (C::P::kBatch <= 8) {
    argmax_batch<S, C::P::kBatch>(c, 0);
  } else {
    constexpr int kWhole = C::P::kBatch / 8 * 8, kLeft = C::P::kBatch - kWhole;
#pragma unroll 1
    for (int from = 0; from < kWhole; from += 8) argmax_batch<S, 8>(c, from);
    if constexpr (kLeft > 0) argmax_batch<S, kLeft>(c, kWhole);
  }
}

}  // namespace amk::ops
