// token <- prompt[pos + 1] while given, else the index of the largest candidate; pos and epoch advance by one.
//
// Threads: every warp computes the same token from the same candidates. Reads global best_value (f32), best_index (i32), both
// hand-offs, request, prompt (i32); worker 0, agent 0 writes output[n] (i32).
#pragma once
#include "amk/cells.cuh"
#include "amk/ops/argmax_rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void select(C& c) {
  const int* request = S::request(c).data;
  if (c.pos + 1 < request[0]) {
    c.token = S::prompt(c).data[c.pos + 1];
  } else if (!c.done) {
    float value = -3.4e38f;
    int slot = 0x7fffffff;
    const auto best = S::best_value(c);
    constexpr int kWide = decltype(best)::kWide;
    static_assert(S::kCandidates % kWide == 0, "whole fetches");
    for_each_wide<S::kCandidates>(c, best, 0, S::kCandidates, [&](int i, int, float (&v)[kWide]) {
#pragma unroll
      for (int k = 0; k < kWide; ++k) keep_best(value, slot, v[k], i + k);
    });
    warp_best(value, slot);
    const auto index = S::best_index(c);
    typename decltype(index)::One raw;
    until_fresh(c, index.tag, [&] {
      raw = index.fetch_one(slot);
      return index.fresh_one(raw);
    });
    c.token = index.value_one(raw);
    for (int e = 1; e < 5; ++e) c.done |= c.token == request[e];
  }
  // Last: the tags of this step belong to the epoch that ends here.
  ++c.pos, ++c.epoch;
  if (c.worker == 0 && c.warp == S::kFirst && c.lane == 0) S::output(c).data[c.n] = c.token;
}

}  // namespace amk::ops
