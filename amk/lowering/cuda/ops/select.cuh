// token <- prompt[pos + 1] while given, else the index of the largest candidate, for each sequence; pos and epoch advance
// by one.
//
// Threads: every warp computes the same token from the same candidates. Reads global best_value (f32), best_index (i32), both
// hand-offs, request, prompt (i32); worker 0, agent 0 writes output[n] (i32).
#pragma once
#include "amk/fetches.cuh"
#include "amk/ops/argmax_rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void select(C& c) {
  constexpr int kBatch = C::P::kBatch;
  const int* request = S::request(c).data;
#pragma unroll 1
  for (int s = 0; s < kBatch; ++s) {
    const int* prompt = S::prompt(c).data;
    auto best = S::best_value(c);
    auto index = S::best_index(c);
    if constexpr (kBatch > 1) {
      prompt += s * S::kPromptRow, best = best.from(s * S::kBestValueRow), index = index.from(s * S::kBestIndexRow);
    }
    const int own = kBatch == 1 ? -1 : 1 << s;
    int token;
    if (c.pos + 1 < request[s == 0 ? 0 : 4 + s]) {
      token = prompt[c.pos + 1];
    } else if (!(c.done & own)) {
      float value = -3.4e38f;
      int slot = 0x7fffffff;
      constexpr int kWide = decltype(best)::kWide;
      static_assert(S::kCandidates % kWide == 0, "whole fetches");
      for_each_wide<S::kCandidates>(c, best, 0, S::kCandidates, [&](int i, float(&v)[kWide]) {
#pragma unroll
        for (int k = 0; k < kWide; ++k) keep_best(value, slot, v[k], i + k);
      });
      warp_best(value, slot);
      typename decltype(index)::One raw;
      until_fresh(c, index.tag, [&] {
        raw = index.fetch_one(slot);
        return index.fresh_one(raw);
      });
      token = index.value_one(raw);
      for (int e = 1; e < 5; ++e) c.done |= (token == request[e]) << s;
    } else {
      continue;
    }
    // Registers are not indexed by a variable.
#pragma unroll
    for (int k = 0; k < kBatch; ++k) c.tokens[k] = k == s ? token : c.tokens[k];
  }
  // Last: the tags of this step belong to the epoch that ends here.
  ++c.pos, ++c.epoch;
  if (c.worker == 0 && c.warp == S::kFirst && c.lane == 0) {
#pragma unroll
    for (int s = 0; s < kBatch; ++s) S::output(c).data[c.n * kBatch + s] = c.tokens[s];
  }
}

}  // namespace amk::ops
