// partial[agent, g] = (sum_p w_p v_p, m, sum_p w_p) over the agent's share of every block of the worker's split.
//
// Threads: a warp takes 8 positions a step, for up to 8 query heads at once, with tensor cores. One load of the warp is 4 rows
// of 64 dims, whole 128-byte lines: lane 8 a + c reads 8 elements at dim 8 c of row a. As an operand column, lanes 4 n .. + 3
// then hold half n % 2 of row n / 2, so the two halves of a query, and of a sum, are rows r and r + 8 of the other operands.
// Queries and weights are each a bf16 and the bf16 of what that leaves (queries so made by rope_append): only the cache's own
// rounding counts. While a block is summed, the next one's loads are in flight. Reads shared q (f32), global caches (bf16 or fp8,
// private to the worker's split); writes shared partial (f32 [agents, group, head_dim + 4]).
#pragma once
#include "amk/cache.cuh"
#include "amk/cells.cuh"
#include "amk/tensor_core.cuh"

namespace amk::ops {

// 8 elements a lane of each 4 rows in each run of 64 dims; rows from `end` on and dims past the head are zero. first: this
// lane's row; inside: whether the lane's dims of the last run are the head's.
template <int kDim, int kQuads, int kRuns, class T>
__device__ __forceinline__ void load_rows(typename CacheRow<T>::Raw (&raw)[kQuads][kRuns], const T* rows, int first,
                                          int end, bool inside) {
  const T* from = rows + first * kDim;
#pragma unroll
  for (int s = 0; s < kQuads; ++s) {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      raw[s][i] = {};
      if (first + s * 4 < end && (i + 1 < kRuns || inside)) {
        raw[s][i] = CacheRow<T>::load(from + s * 4 * kDim + i * 64);
      }
    }
  }
}

template <class S, class C>
__device__ __forceinline__ void attend(C& c) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kRuns = (kDim + 63) / 64, kGroup = P::kHeads / P::kKvHeads;
  constexpr int kShare = (P::kKvBlock + S::kAgents - 1) / S::kAgents, kQuads = (kShare + 7) / 8 * 2;
  static_assert(kDim % 8 == 0, "a lane reads 8 dims");
  const int head = c.shares.attn_head, agent = c.warp - S::kFirst;
  if (head < 0) return;
  using Row = CacheRow<typename P::Cache>;
  const int row = c.lane / 4, part = c.lane % 4, chunk = c.lane % 8;
  const long long base = static_cast<long long>(S::layer(c) * P::kCaches + head) * P::kContext;
  const auto* keys = S::k_cache(c).data + base * kDim + chunk * 8;
  const auto* values = S::v_cache(c).data + base * kDim + chunk * 8;
  const bool inside = (kRuns - 1) * 64 + chunk * 8 < kDim;
  const int a0 = share_begin(P::kKvBlock, S::kAgents, agent), a1 = share_begin(P::kKvBlock, S::kAgents, agent + 1);
  const auto has = [&](int dim) { return kDim % 64 == 0 || dim + part * 8 < kDim; };

#pragma unroll 1
  for (int head0 = 0; head0 < kGroup; head0 += 8) {
    const uint4* query = reinterpret_cast<const uint4*>(S::q(c) + min(head0 + row, kGroup - 1) * kDim + part * 8);
    float out[kRuns][4][4] = {}, peak = -1e30f, total = 0.f;
    typename Row::Raw k_raw[kQuads][kRuns], v_raw[kQuads][kRuns];
    int block = c.shares.attn_split;
    const int lane_row = a0 + c.lane / 8;
    load_rows<kDim, kQuads, kRuns>(k_raw, keys, block * P::kKvBlock + lane_row, min(block * P::kKvBlock + a1, c.pos + 1), inside);
    load_rows<kDim, kQuads, kRuns>(v_raw, values, block * P::kKvBlock + lane_row, min(block * P::kKvBlock + a1, c.pos + 1), inside);
#pragma unroll 1
    while (block * P::kKvBlock <= c.pos) {
      const int first = block * P::kKvBlock + a0 + part, end = min(block * P::kKvBlock + a1, c.pos + 1);
      block += P::kKvSplits;
      const int next = block * P::kKvBlock + lane_row, next_end = min(block * P::kKvBlock + a1, c.pos + 1);
      float score[kQuads], sums[kQuads][4] = {}, top = peak;
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          uint4 low{}, high{};
          if (has(i * 64)) low = query[i * 16 + j];
          if (has(i * 64 + 32)) high = query[i * 16 + 8 + j];
#pragma unroll
          for (int s = 0; s < kQuads; ++s) {
            const uint4 k = Row::pairs(k_raw[s][i]);
            mma_16(sums[s], low.x, high.x, low.z, high.z, j == 0 ? k.x : k.z, j == 0 ? k.y : k.w);
            mma_16(sums[s], low.y, high.y, low.w, high.w, j == 0 ? k.x : k.z, j == 0 ? k.y : k.w);
          }
        }
      }
#pragma unroll
      for (int s = 0; s < kQuads; ++s) {
        score[s] = first + s * 4 < end ? sums[s][0] + sums[s][3] : -1e30f;
        top = fmaxf(top, score[s]);
      }
      load_rows<kDim, kQuads, kRuns>(k_raw, keys, next, next_end, inside);
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float fade = __expf(peak - top);
      peak = top, total *= fade;
      u32 coarse[kQuads], rest[kQuads];
#pragma unroll
      for (int s = 0; s < kQuads; ++s) {
        const float w = first + s * 4 < end ? __expf(score[s] - top) : 0.f;
        total += w;
        split_pair(w, 0.f, coarse[s], rest[s]);
      }
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float(&sum)[4] = out[i][j];
          sum[0] *= fade, sum[1] *= fade, sum[2] *= fade, sum[3] *= fade;
#pragma unroll
          for (int s = 0; s < kQuads; s += 2) {
            const auto column = [&](const typename Row::Raw& raw) {
              const uint4 v = Row::pairs(raw);
              return transpose_8x8(j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w);
            };
            const u32 v0 = column(v_raw[s][i]), v1 = column(v_raw[s + 1][i]);
            mma_16(sum, coarse[s], coarse[s] << 16, coarse[s + 1], coarse[s + 1] << 16, v0, v1);
            mma_16(sum, rest[s], rest[s] << 16, rest[s + 1], rest[s + 1] << 16, v0, v1);
          }
        }
      }
      load_rows<kDim, kQuads, kRuns>(v_raw, values, next, next_end, inside);
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (head0 + row < kGroup) {
      float* partial = S::partial(c) + (agent * kGroup + head0 + row) * (kDim + 4);
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!has(i * 64 + half * 32)) continue;
          float4* to = reinterpret_cast<float4*>(partial + i * 64 + half * 32 + part * 8);
#pragma unroll
          for (int j = 0; j < 4; j += 2) {
            to[j / 2] = make_float4(out[i][j][2 * half], out[i][j][2 * half + 1], out[i][j + 1][2 * half],
                                    out[i][j + 1][2 * half + 1]);
          }
        }
      }
      if (part == 0) *reinterpret_cast<float4*>(partial + kDim) = make_float4(peak, total, 0.f, 0.f);
    }
  }
}

}  // namespace amk::ops
