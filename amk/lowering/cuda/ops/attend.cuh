// partial[agent, g] = (sum_p w_p v_p, m, sum_p w_p) over the agent's share of every block of the worker's split.
//
// Threads: a warp takes 8 positions a step, for up to 8 query heads at once, with tensor cores. Lane 4 r + q reads 16 bytes
// of position r's key and value in each run of 32 dims, and holds query head r. Queries and weights are split into a bf16 and
// the bf16 of what that leaves, rows r and r + 8 of one operand, so only the cache's own rounding counts. While a block is
// summed, the next one's loads are in flight. Reads shared q (f32), global caches (bf16, private to the worker's split);
// writes shared partial (f32 [agents, group, head_dim + 4]).
#pragma once
#include "amk/cells.cuh"
#include "amk/tensor_core.cuh"

namespace amk::ops {

// A pair of floats as two bf16 pairs that add up to it: 16 bits of mantissa.
__device__ __forceinline__ void split_pair(float lo, float hi, u32& coarse, u32& rest) {
  coarse = pack_bf16(lo, hi);
  const float2 back = unpack_bf16(coarse);
  rest = pack_bf16(lo - back.x, hi - back.y);
}

// 16 bytes a lane of 8 cache rows in each run of 32 dims; rows from `end` on and dims past the head are zero.
template <int kDim, int kSteps, int kRuns>
__device__ __forceinline__ void load_rows(uint4 (&raw)[kSteps][kRuns], const bf16* rows, int first, int end, int part) {
  const bf16* from = rows + first * kDim;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      raw[s][i] = uint4{};
      if (first + s * 8 < end && (kDim % 32 == 0 || i * 32 + part * 8 < kDim)) {
        raw[s][i] = sync::load_global_v4(from + s * 8 * kDim + i * 32);
      }
    }
  }
}

template <class S, class C>
__device__ __forceinline__ void attend(C& c) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kRuns = (kDim + 31) / 32, kGroup = P::kHeads / P::kKvHeads;
  constexpr int kShare = (P::kKvBlock + S::kAgents - 1) / S::kAgents, kSteps = (kShare + 7) / 8;
  static_assert(kDim % 8 == 0 && kSteps <= 2, "a lane reads 8 dims; a warp holds at most 16 positions");
  const int head = c.shares.attn_head, agent = c.warp - S::kFirst;
  if (head < 0) return;
  const int row = c.lane / 4, part = c.lane % 4;
  const long long base = static_cast<long long>(S::layer(c) * P::kKvHeads + head) * P::kContext;
  const bf16* keys = S::k_cache(c).data + base * kDim + part * 8;
  const bf16* values = S::v_cache(c).data + base * kDim + part * 8;
  const int a0 = share_begin(P::kKvBlock, S::kAgents, agent), a1 = share_begin(P::kKvBlock, S::kAgents, agent + 1);

#pragma unroll 1
  for (int head0 = 0; head0 < kGroup; head0 += 8) {
    u32 coarse[kRuns][4], rest[kRuns][4];
    const float* query = S::q(c) + min(head0 + row, kGroup - 1) * kDim + part * 8;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      float4 q[2] = {};
      if (kDim % 32 == 0 || i * 32 + part * 8 < kDim) {
        q[0] = *reinterpret_cast<const float4*>(query + i * 32), q[1] = *reinterpret_cast<const float4*>(query + i * 32 + 4);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        split_pair(q[j].x, q[j].y, coarse[i][2 * j], rest[i][2 * j]);
        split_pair(q[j].z, q[j].w, coarse[i][2 * j + 1], rest[i][2 * j + 1]);
      }
    }
    float out[kRuns][4][4] = {}, peak = -1e30f, total = 0.f;
    uint4 k_raw[kSteps][kRuns], v_raw[kSteps][kRuns];
    int block = c.shares.attn_split;
    load_rows<kDim>(k_raw, keys, block * P::kKvBlock + a0 + row, min(block * P::kKvBlock + a1, c.pos + 1), part);
    load_rows<kDim>(v_raw, values, block * P::kKvBlock + a0 + row, min(block * P::kKvBlock + a1, c.pos + 1), part);
#pragma unroll 1
    while (block * P::kKvBlock <= c.pos) {
      const int first = block * P::kKvBlock + a0, end = min(block * P::kKvBlock + a1, c.pos + 1);
      block += P::kKvSplits;
      const int next = block * P::kKvBlock + a0, next_end = min(block * P::kKvBlock + a1, c.pos + 1);
      float score[kSteps][2], top = peak;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        float even[4] = {}, odd[4] = {};
#pragma unroll
        for (int i = 0; i < kRuns; ++i) {
          const uint4& k = k_raw[s][i];
          mma_16(even, coarse[i][0], rest[i][0], coarse[i][1], rest[i][1], k.x, k.y);
          mma_16(odd, coarse[i][2], rest[i][2], coarse[i][3], rest[i][3], k.z, k.w);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool live = first + s * 8 + part * 2 + e < end;
          score[s][e] = live ? (even[e] + odd[e]) + (even[e + 2] + odd[e + 2]) : -1e30f;
          top = fmaxf(top, score[s][e]);
        }
      }
      load_rows<kDim>(k_raw, keys, next + row, next_end, part);
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float fade = __expf(peak - top);
      peak = top, total *= fade;
      u32 weight[kSteps], remainder[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        float w[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) w[e] = first + s * 8 + part * 2 + e < end ? __expf(score[s][e] - top) : 0.f;
        total += w[0] + w[1];
        split_pair(w[0], w[1], weight[s], remainder[s]);
      }
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float(&sum)[4] = out[i][j];
          sum[0] *= fade, sum[1] *= fade, sum[2] *= fade, sum[3] *= fade;
          const auto column = [&](int s) {
            const uint4& v = v_raw[s][i];
            return transpose_8x8(j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w);
          };
          if constexpr (kSteps == 2) {
            mma_16(sum, weight[0], remainder[0], weight[1], remainder[1], column(0), column(1));
          } else {
            mma_8(sum, weight[0], remainder[0], column(0));
          }
        }
      }
      load_rows<kDim>(v_raw, values, next + row, next_end, part);
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (head0 + row < kGroup) {
      float* partial = S::partial(c) + (agent * kGroup + head0 + row) * (kDim + 4);
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
        if (kDim % 32 != 0 && i * 32 + part * 8 >= kDim) continue;
        float4* to = reinterpret_cast<float4*>(partial + i * 32 + part * 8);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          const auto& a = out[i][j];
          const auto& b = out[i][j + 1];
          to[j / 2] = make_float4(a[0] + a[2], a[1] + a[3], b[0] + b[2], b[1] + b[3]);
        }
      }
      if (part == 0) *reinterpret_cast<float4*>(partial + kDim) = make_float4(peak, total, 0.f, 0.f);
    }
  }
}

}  // namespace amk::ops
