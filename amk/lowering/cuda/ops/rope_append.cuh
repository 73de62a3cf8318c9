// q[g] = rope(norm(query head)) / sqrt(head_dim) of the worker's kv head; the owner of the position appends key and value.
//
// Threads: unit u (query heads, key, value) is done by agent u mod n; a lane takes pairs (i, i + head_dim / 2). Reads global
// qkv (f32 hand-off), rope, norms (f32); writes shared q (each pair of f32
// as a pair of bf16 and the pair of bf16 that it leaves), global caches (bf16 or
// fp8, private to the worker's split).
#pragma once
#include "amk/cache.cuh"
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void rope_append(C& c) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kHalf = kDim / 2, kPairs = (kHalf + 31) / 32, kGroup = P::kHeads / P::kKvHeads;
  const int head = c.shares.attn_head, agent = c.warp - S::kFirst;
  if (head < 0) return;
  const bool owner = c.pos / P::kKvBlock % P::kKvSplits == c.shares.attn_split;
  const auto qkv = S::qkv(c);
  const float* table = S::rope(c).data + static_cast<long long>(c.pos) * kDim;
  const long long row = (static_cast<long long>(S::layer(c) * P::kCaches + head) * P::kContext + c.pos) * kDim;
  const int units = owner ? kGroup + 2 : kGroup;
  int own_head = head, first = 0;  // within the sequence, and where its rows begin
  if constexpr (P::kBatch > 1) own_head = head % P::kKvHeads, first = head / P::kKvHeads * S::kQkvRow;
  for (int unit = agent; unit < units; unit += S::kAgents) {
    const bool query = unit < kGroup, key = unit == kGroup;
    const int source = query ? own_head * kGroup + unit : P::kHeads + (key ? 0 : P::kKvHeads) + own_head;
    float cosine[kPairs], sine[kPairs];
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int i = min(c.lane + 32 * k, kHalf - 1);
      cosine[k] = table[i], sine[k] = table[kHalf + i];
    }
    typename decltype(qkv)::One a_raw[kPairs], b_raw[kPairs];
    until_fresh(c, qkv.tag, [&] {
      bool fresh = true;
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        const int i = first + source * kDim + min(c.lane + 32 * k, kHalf - 1);
        a_raw[k] = qkv.fetch_one(i), b_raw[k] = qkv.fetch_one(i + kHalf);
      }
#pragma unroll
      for (int k = 0; k < kPairs; ++k) fresh &= qkv.fresh_one(a_raw[k]) & qkv.fresh_one(b_raw[k]);
      return fresh;
    });
    float a[kPairs], b[kPairs], squares = 0.f;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      a[k] = qkv.value_one(a_raw[k]), b[k] = qkv.value_one(b_raw[k]);
      if (c.lane + 32 * k < kHalf) squares += a[k] * a[k] + b[k] * b[k];
    }
    if constexpr (S::kHasQNorm) {
      if (query || key) {
        const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(kDim) + P::kRmsEps);
        const float* norm = (query ? S::q_norm(c).data : S::k_norm(c).data) + S::layer(c) * kDim;
#pragma unroll
        for (int k = 0; k < kPairs; ++k) {
          const int i = c.lane + 32 * k;
          if (i < kHalf) a[k] *= scale * norm[i], b[k] *= scale * norm[kHalf + i];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int i = c.lane + 32 * k;
      float lo = a[k], hi = b[k];
      if (query || key) {
        lo = a[k] * cosine[k] - b[k] * sine[k], hi = b[k] * cosine[k] + a[k] * sine[k];
      }
      if (query) {
        uint2 low, high;
        split_pair(lo * P::kQueryScale, __shfl_down_sync(0xffffffffu, lo, 1) * P::kQueryScale, low.x, low.y);
        split_pair(hi * P::kQueryScale, __shfl_down_sync(0xffffffffu, hi, 1) * P::kQueryScale, high.x, high.y);
        if (i < kHalf && i % 2 == 0) {
          float* q = S::q(c) + unit * kDim + i;
          *reinterpret_cast<uint2*>(q) = low, *reinterpret_cast<uint2*>(q + kHalf) = high;
        }
      } else if (i < kHalf) {
        auto* cache = (key ? S::k_cache(c).data : S::v_cache(c).data) + row;
        using Row = CacheRow<typename P::Cache>;
        cache[i] = Row::of(lo), cache[kHalf + i] = Row::of(hi);
      }
    }
  }
}

}  // namespace amk::ops
