// partial[agent, g] = (sum_p w_p v_p, m, sum_p w_p) over the agent's share of every block of the worker's split.
//
// Threads: a warp takes 8 positions a step, for up to 8 query heads at once, with tensor cores. One load of the warp is 4 rows
// of 64 dims, whole 128-byte lines: lane 8 a + c reads 8 elements at dim 8 c of row a. As an operand column, lanes 4 n .. + 3
// then hold half n % 2 of row n / 2, so the two halves of a query, and of a sum, are rows r and r + 8 of the other operands.
// Queries and weights are each a bf16 and the bf16 of what that leaves (queries so made by rope_append): only the cache's own
// rounding counts. While kBlocks blocks are summed, the loads of the next ones are in flight. Reads shared q (f32), global caches
// (bf16 or fp8, private to the worker's split); writes shared partial (f32 [agents, group, head_dim + 4]).
//
// In a step of several rows, query vectors are those of all rows. Warps share them out in kTileColumns parts, 8 at a time, and
// the kSharers warps of a part the positions; a lane counts the positions that its own query vector's row sees: of a tree, of
// the step's rows those whose bits the launch was given. Many
// positions of a block are taken in kPieces turns, so that registers hold 16 of them at most. partial may be q: a lane writes
// where it has read, and behind it.
#pragma once
#include "amk/cache.cuh"
#include "amk/cells.cuh"
#include "amk/tensor_core.cuh"
#include "amk/tree.cuh"
#include "amk/turns.cuh"

namespace amk::ops {

// Each word of v anew, where `same` is 0x3210.
__device__ __forceinline__ void copy_words(uint4& v, u32 same) {
  v.x = __byte_perm(v.x, 0, same), v.y = __byte_perm(v.y, 0, same), v.z = __byte_perm(v.z, 0, same), v.w = __byte_perm(v.w, 0, same);
}

// One warp's sums for 8 query heads. keys, values: this lane's first row of the next block; ahead: positions from the warp's
// first row there up to the last one of the step; late: rows of the step behind that of this lane's query vector. seen: of a tree, the
// rows that this one sees, as bits.
template <class S, class C>
struct Attention {
  using P = typename C::P;
  using Cache = typename P::Cache;
  using Row = CacheRow<Cache>;
  static constexpr int kDim = P::kHeadDim, kRuns = (kDim + 63) / 64, kStep = P::kKvSplits * P::kKvBlock;
  static constexpr int kShare = (P::kKvBlock + S::kSharers - 1) / S::kSharers;
  static constexpr int kPieces = P::kRows == 1 ? 1 : (kShare + 15) / 16, kPiece = kPieces == 1 ? kShare : 16;
  static constexpr int kQuads = (kPiece + 7) / 8 * 2;
  static_assert(kDim % 8 == 0, "a lane reads 8 dims");
  template <int kBlocks>
  using Rows = typename Row::Raw[kBlocks * kQuads][kRuns];

  const Cache *keys, *values;
  int lane, width, ahead, late;  // width: positions of a block that are the warp's, of the piece to come on
  unsigned long long seen;
  float out[kRuns][4][4] = {}, peak = -1e30f, total = 0.f;

  __device__ __forceinline__ static bool has(int dim) { return kDim % 64 == 0 || dim < kDim; }

  // Rows of the next blocks that are not there, and dims past the head, stay what they were: finite, and multiplied by zero.
  template <int kBlocks>
  __device__ __forceinline__ void load(Rows<kBlocks>& raw, const Cache* from, int left) const {
#pragma unroll
    for (int s = 0; s < kBlocks * kQuads; ++s) {
      const int block = s / kQuads, row = s % kQuads * 4, rows = min(width, left - block * kStep) - lane / 8;
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
        Row::load_if(row < rows && has(i * 64 + lane % 8 * 8), raw[s][i], from + (block * kStep + row) * kDim + i * 64);
      }
    }
  }

  // All blocks, kBlocks at a time; a block counts while it begins at or before the position: `start` rows before the warp's.
  template <int kBlocks>
  __device__ __forceinline__ void sum(const uint4* query, int start) {
    static_assert(kPieces == 1 || kBlocks == 1, "pieces are of one block");
    constexpr int kAll = kBlocks * kQuads, kNext = kBlocks * kStep, kBack = (kPieces - 1) * kPiece;
    const int part = lane % 4, all = width;
    // A choice of bytes of which only the running kernel knows that it changes nothing, as no address is that large: of plain
    // copies, which an operand of four registers in a row needs, the compiler makes new ones for every product.
    const u32 same = kPieces == 1 ? 0 : 0x3210u | static_cast<u32>(reinterpret_cast<unsigned long long>(keys) >> 63);
    Rows<kBlocks> k_raw = {}, v_raw = {};
    load<kBlocks>(k_raw, keys, ahead);
    load<kBlocks>(v_raw, values, ahead);
#pragma unroll 1
    for (int next = kNext; ahead + start > 0; ahead -= next) {
      const int here = width;
      if constexpr (kPieces > 1) {
        const bool last = all - width >= kBack;
        next = last ? kStep - kBack : kPiece, start += last ? -kBack : kPiece;
        width = last ? all : width - kPiece;
      }
      keys += next * kDim, values += next * kDim;
      float score[kAll], sums[kAll][4] = {}, top = peak;
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          uint4 low{}, high{};
          if (has(i * 64 + part * 8)) low = query[i * 16 + j];
          if (has(i * 64 + 32 + part * 8)) high = query[i * 16 + 8 + j];
          if constexpr (kPieces > 1) copy_words(low, same), copy_words(high, same);
#pragma unroll
          for (int s = 0; s < kAll; ++s) {
            const uint4 k = Row::pairs(k_raw[s][i]);
            mma_16(sums[s], low.x, high.x, low.z, high.z, j == 0 ? k.x : k.z, j == 0 ? k.y : k.w);
            mma_16(sums[s], low.y, high.y, low.w, high.w, j == 0 ? k.x : k.z, j == 0 ? k.y : k.w);
          }
        }
      }
      const int own = P::kRows == 1 || S::kHasTree ? ahead : ahead - late;
      const auto there = [&](int s) {
        const int left = own - s / kQuads * kStep, row = P::kRows - left + s % kQuads * 4 + part;  // of the step
        const bool near = s % kQuads * 4 < min(here, left) - part;
        if constexpr (S::kHasTree) return near && (row < 0 || (seen >> row & 1) != 0);
        return near;
      };
#pragma unroll
      for (int s = 0; s < kAll; ++s) {
        score[s] = there(s) ? sums[s][0] + sums[s][3] : -1e30f;
        top = fmaxf(top, score[s]);
      }
      load<kBlocks>(k_raw, keys, ahead - next);
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float fade = __expf(peak - top);
      peak = top;
      u32 coarse[kAll], rest[kAll];
#pragma unroll
      for (int s = 0; s < kAll; ++s) {
        const float w = there(s) ? __expf(score[s] - top) : 0.f;
        total = s == 0 ? fmaf(total, fade, w) : total + w;
        split_pair(w, 0.f, coarse[s], rest[s]);
      }
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float(&sum)[4] = out[i][j];
          sum[0] *= fade, sum[1] *= fade, sum[2] *= fade, sum[3] *= fade;
#pragma unroll
          for (int s = 0; s < kAll; s += 2) {
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
      load<kBlocks>(v_raw, values, ahead - next);
    }
  }

  // The sums of this lane's head, to partial[agent, head], if `live`. Of several rows it is not the pointer that says so: to
  // compare a shared address with null, each turn reads a special register.
  __device__ __forceinline__ void write(float* partial, bool live) {
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (P::kRows == 1 ? partial == nullptr : !live) return;
    const int part = lane % 4;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!has(i * 64 + half * 32 + part * 8)) continue;
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
};

template <class S, class C>
__device__ __forceinline__ void attend_head(C& c, const ServedHead& at) {
  using A = Attention<S, C>;
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kGroup = P::kHeads / P::kKvHeads, kQueries = P::kRows * kGroup;
  const int agent = at.agent, share = agent / S::kTileColumns;
  constexpr bool kLeftOver = S::kSharers * S::kTileColumns < of_turn<P>(S::kAgents);
  if (at.head < 0 || (kLeftOver && share >= S::kSharers)) return;
  const int a0 = share_begin(P::kKvBlock, S::kSharers, share), a1 = share_begin(P::kKvBlock, S::kSharers, share + 1);
  const int row = c.lane / 4, first = c.shares.attn_split * P::kKvBlock, ahead = c.pos + P::kRows - first - a0;
  const int layer = S::layer(c), position = first + a0 + c.lane / 8, dim = c.lane % 8 * 8;
  const auto* keys = cache_row<P>(S::k_cache(c).data, layer, at.head, position) + dim;
  const auto* values = cache_row<P>(S::v_cache(c).data, layer, at.head, position) + dim;
#pragma unroll 1
  for (int head0 = agent % S::kTileColumns * 8; head0 < kQueries; head0 += 8 * S::kTileColumns) {
    const int mine = min(head0 + row, kQueries - 1);
    // In registers: what is read from constant memory between loads waits for a scoreboard that may be theirs too.
    A a{sync::opaque(keys), sync::opaque(values), c.lane, a1 - a0, ahead, P::kRows - 1 - mine / kGroup, 0};
    if constexpr (S::kHasTree) a.seen = seen_before<S>(c, mine / kGroup) | 1ull << mine / kGroup;
    const uint4* query = reinterpret_cast<const uint4*>(S::q(c) + (at.turn * kQueries + mine) * S::kQueryWidth + c.lane % 4 * 8);
    if constexpr (ablation::kNoAttention) {
      // The sums stay zero.
    } else if (S::kTogether == 1 || ahead + a0 <= A::kStep) {
      a.template sum<1>(query, a0);
    } else {
      a.template sum<S::kTogether>(query, a0);
    }
    if constexpr (P::kRows == 1) {
      a.write(head0 + row < kQueries ? S::partial(c) + ((at.turn * S::kSharers + share) * kQueries + head0 + row) * (kDim + 4) : nullptr, true);
    } else {
      a.write(S::partial(c) + ((at.turn * S::kSharers + share) * kQueries + head0 + row) * (kDim + 4), head0 + row < kQueries);
    }
  }
}

template <class S, class C>
__device__ __forceinline__ void attend(C& c) {
  for_each_head<S>(c, [&](const ServedHead& at) { attend_head<S>(c, at); });
}

}  // namespace amk::ops
