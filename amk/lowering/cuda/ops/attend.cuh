// partial[agent, g] = (sum_p w_p v_p, m, sum_p w_p) over the agent's share of every block of the worker's split.
//
// Threads: head_dim / 8 lanes share a cache row (8 elements each), so a warp reads 256 / head_dim rows at a time. Each such row
// group keeps its own running maximum and sums for every query head; they meet in the end. Reads shared q (f32), global caches
// (bf16, private to the worker's split); writes shared partial (f32 [agents, group, head_dim + 4]).
#pragma once
#include "amk/cache.cuh"
#include "amk/cells.cuh"

namespace amk::ops {

__device__ __forceinline__ void unpack_8(const uint4& raw, float (&out)[8]) {
  const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = __bfloat1622float2(pairs[i]);
    out[2 * i] = v.x, out[2 * i + 1] = v.y;
  }
}

template <class S, class C>
__device__ __forceinline__ void attend(C& c) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kLanes = kDim / 8, kRows = 32 / kLanes, kGroup = P::kHeads / P::kKvHeads;
  // Heads at a time: the sums of more would not fit the registers, so the rows of a larger group are read again.
  constexpr int kHeads = kGroup <= 4 ? kGroup : kGroup % 4 == 0 ? 4 : 3;
  constexpr int kShare = (P::kKvBlock + S::kAgents - 1) / S::kAgents, kSteps = (kShare + kRows - 1) / kRows;
  static_assert(kDim % 8 == 0 && 32 % kLanes == 0, "a row is read by a power of two of lanes");
  const int head = c.shares.attn_head, agent = c.warp - S::kFirst;
  if (head < 0) return;
  const int part = c.lane % kLanes, sub = c.lane / kLanes;
  const long long base = static_cast<long long>(S::layer(c) * P::kKvHeads + head) * P::kContext;
  const auto* keys = S::k_cache(c).data + base * kDim + part * 8;
  const auto* values = S::v_cache(c).data + base * kDim + part * 8;
  using Row = CacheRow<typename P::Cache>;
  const int a0 = share_begin(P::kKvBlock, S::kAgents, agent), a1 = share_begin(P::kKvBlock, S::kAgents, agent + 1);

#pragma unroll 1
  for (int head0 = 0; head0 < kGroup; head0 += kHeads) {
    float out[kHeads][8], peak[kHeads], total[kHeads];
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      peak[g] = -1e30f, total[g] = 0.f;
#pragma unroll
      for (int i = 0; i < 8; ++i) out[g][i] = 0.f;
    }
    for (int block = c.shares.attn_split; block * P::kKvBlock <= c.pos; block += P::kKvSplits) {
      typename Row::Raw k_raw[kSteps], v_raw[kSteps];
      const int first = block * P::kKvBlock + a0 + sub, end = min(block * P::kKvBlock + a1, c.pos + 1);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int p = first + s * kRows;
        if (p < end) k_raw[s] = Row::load(keys + static_cast<long long>(p) * kDim);
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int p = first + s * kRows;
        if (p < end) v_raw[s] = Row::load(values + static_cast<long long>(p) * kDim);
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const bool live = first + s * kRows < end;
        float k[8], v[8];
        unpack_8(Row::pairs(k_raw[s]), k), unpack_8(Row::pairs(v_raw[s]), v);
#pragma unroll
        for (int g = 0; g < kHeads; ++g) {
          // From shared memory each time: held in registers, the queries of a large group would spill.
          const float4* q = reinterpret_cast<const float4*>(S::q(c) + min(head0 + g, kGroup - 1) * kDim + part * 8);
          const float4 lo = q[0], hi = q[1];
          float score = lo.x * k[0] + lo.y * k[1] + lo.z * k[2] + lo.w * k[3];
          score += hi.x * k[4] + hi.y * k[5] + hi.z * k[6] + hi.w * k[7];
#pragma unroll
          for (int offset = kLanes / 2; offset > 0; offset /= 2) score += __shfl_xor_sync(0xffffffffu, score, offset);
          if (!live) continue;
          const float top = fmaxf(peak[g], score), fade = __expf(peak[g] - top), w = __expf(score - top);
          peak[g] = top;
          total[g] = total[g] * fade + w;
#pragma unroll
          for (int i = 0; i < 8; ++i) out[g][i] = out[g][i] * fade + w * v[i];
        }
      }
    }
    float* partial = S::partial(c) + agent * kGroup * (kDim + 4);
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      float top = peak[g];
#pragma unroll
      for (int offset = 16; offset >= kLanes; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
      const float fade = __expf(peak[g] - top);
      peak[g] = top;
      total[g] *= fade;
#pragma unroll
      for (int offset = 16; offset >= kLanes; offset /= 2) total[g] += __shfl_xor_sync(0xffffffffu, total[g], offset);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        out[g][i] *= fade;
#pragma unroll
        for (int offset = 16; offset >= kLanes; offset /= 2) out[g][i] += __shfl_xor_sync(0xffffffffu, out[g][i], offset);
      }
      if (sub == 0 && head0 + g < kGroup) {
        float4* row = reinterpret_cast<float4*>(partial + (head0 + g) * (kDim + 4) + part * 8);
        row[0] = make_float4(out[g][0], out[g][1], out[g][2], out[g][3]);
        row[1] = make_float4(out[g][4], out[g][5], out[g][6], out[g][7]);
        if (part == 0) {
          float4 scalars = make_float4(peak[g], total[g], 0.f, 0.f);
          *reinterpret_cast<float4*>(partial + (head0 + g) * (kDim + 4) + kDim) = scalars;
        }
      }
    }
  }
}

}  // namespace amk::ops
