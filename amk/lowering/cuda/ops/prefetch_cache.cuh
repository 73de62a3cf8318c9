// The cache rows of the worker's first block, up to the position, are asked for in L2; nothing is read.
//
// Threads: a 128-byte line a lane, keys and values in turn.
#pragma once
#include "amk/cache.cuh"
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void prefetch_cache(C& c) {
  if constexpr (ablation::kNoAttention) return;
  using P = typename C::P;
  constexpr int kRowBytes = P::kHeadDim * static_cast<int>(sizeof(typename P::Cache)), kLine = 128;
  const int head = c.shares.attn_head, agent = c.warp - S::kFirst;
  const int first = c.shares.attn_split * P::kKvBlock, rows = min(P::kKvBlock, c.pos - first);
  if (head < 0 || rows <= 0) return;
  const char* keys = reinterpret_cast<const char*>(cache_row<P>(S::k_cache(c).data, S::layer(c), head, first));
  const char* values = reinterpret_cast<const char*>(cache_row<P>(S::v_cache(c).data, S::layer(c), head, first));
  for (int at = (agent * 32 + c.lane) * kLine; at < rows * kRowBytes; at += S::kAgents * 32 * kLine) {
    sync::prefetch_l2(keys + at);
    sync::prefetch_l2(values + at);
  }
}

}  // namespace amk::ops
