// x = h * norm[index], ssq[a] = sum of squares of h over the warp's share, for each sequence; of a part of the columns, added to
// the sums of those before. The consumer of x divides by rms.
//
// Threads: each warp its contiguous share, 16 bytes of h a lane. Reads global h (hand-off), norm (f32);
// writes shared x, also, scales, sums as vector_layouts.cuh has it, ssq (f32).
#pragma once
#include "amk/rows.cuh"

namespace amk::ops {

template <int kWide>
__device__ __forceinline__ void add_squares(const float (&v)[kWide], float& sum) {
#pragma unroll
  for (int k = 0; k < kWide; k += 2) sum += fmaf(v[k], v[k], v[k + 1] * v[k + 1]);
}

// kWide floats of a launch constant, which begin at a multiple of kWide.
template <int kWide>
__device__ __forceinline__ void load_floats(const float* from, float (&out)[kWide]) {
  if constexpr (kWide == 4) {
    const float4 four = sync::load_constant(reinterpret_cast<const float4*>(from));
    out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
  } else {
    static_assert(kWide == 2, "pairs or quadruples");
    const float2 two = sync::load_constant(reinterpret_cast<const float2*>(from));
    out[0] = two.x, out[1] = two.y;
  }
}

template <class S, class C>
__device__ __forceinline__ void stage_norm_cells(C& c) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst;
  constexpr int kCount = P::kHidden / S::kKParts;
  const int from = kCount * S::k_part(c);
  const auto h = S::h(c).from(from);
  using Cell = decltype(S::h(c));
  constexpr int kWide = Cell::kWide;
  constexpr bool kBlocks = S::kHasScales;
  constexpr int kMost = kStagedMost<kCount, kBlocks, S::kAgents>;
  static_assert(kCount % kWide == 0 && (kBlocks || kCount % (kWide * S::kAgents) == 0), "shares are whole fetches");
  const int lo = staged_begin<kCount, kBlocks>(S::kAgents, agent);
  const int hi = staged_begin<kCount, kBlocks>(S::kAgents, agent + 1);
  constexpr int kLeast = staged_least<kCount, kBlocks, S::kAgents>();
  constexpr int kStride = 32 * kWide, kPieces = pieces_of<kMost, Cell>();
  static_assert(kMost <= kPieces * kStride && kPieces <= 8, "one batch");
  // The norm's loads go out with those of h, or before them while the words are not fresh yet.
  float weight[kPieces][kWide] = {};
  const int first = lo + c.lane * kWide;
  const float* norm = S::norm(c).data + static_cast<u32>(S::index(c) * P::kHidden + from + first);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    if ((piece + 1) * kStride <= kLeast || first + piece * kStride < hi) load_floats(norm + piece * kStride, weight[piece]);
  }
  if constexpr (P::kBatch == 1) {
    float squares = 0.f;
    using Batch = Fetched<kMost, kLeast, 1, true, Cell>;
    for_each_batch<Batch, 0>(c, h, 1, lo, hi, [&](const Batch& batch) {
      float v[kPieces][kWide];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        h.values(batch.raw[0][piece], v[piece]);
        add_squares(v[piece], squares);
#pragma unroll
        for (int k = 0; k < kWide; ++k) v[piece][k] *= weight[piece][k];
      }
      // The warp's sum of squares takes five exchanges in a row, beside which the share is written.
      const auto meanwhile = [&] { squares = warp_sum(squares); };
      put_share<S, kWide, kPieces, kLeast, S::kScaleBlocks>(c, batch.base - c.lane * kWide, hi, v, meanwhile);
    });
    if (c.lane == 0) S::ssq(c)[agent] = S::adds(c) ? S::ssq(c)[agent] + squares : squares;
  } else {
    static_assert(!kBlocks && !S::kHasAlso, "a batch is staged in bf16");
    constexpr int kTogether = rows_together<kMost, P::kBatch, Cell>();
#pragma unroll 1
    for (int s = 0; s < P::kBatch; s += kTogether) {
      bf16* x = S::x(c) + s * S::kXRow;
      using Batch = Fetched<kMost, kMost, kTogether, P::kBatch % kTogether == 0, Cell>;
      for_each_batch<Batch, S::kHRow>(c, h.from(s * S::kHRow), P::kBatch - s, lo, hi, [&](Batch& batch) {
        constexpr int kGroup = group_of_rows(kTogether, kPieces);
#pragma unroll 1
        for (int first_row = 0; first_row < kTogether; first_row += kGroup) {
          float squares[kGroup] = {};
#pragma unroll
          for (int row = 0; row < kGroup; ++row) {
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
              if (!batch.live(first_row + row, piece)) continue;
              float v[kWide];
              h.values(batch.raw[row][piece], v);
              add_squares(v, squares[row]);
#pragma unroll
              for (int k = 0; k < kWide; ++k) v[k] *= weight[piece][k];
              write_block(x + (first_row + row) * S::kXRow + piece * kStride, batch.base, v, 1.f);
            }
          }
#pragma unroll
          for (int row = 0; row < kGroup; ++row) {
            squares[row] = warp_sum(squares[row]);
            float* sum = S::ssq(c) + (s + first_row + row) * S::kSsqRow + agent;
            if (c.lane == 0 && s + first_row + row < P::kBatch) *sum = S::adds(c) ? *sum + squares[row] : squares[row];
          }
#pragma unroll
          for (int row = 0; row + kGroup < kTogether; ++row) {
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) batch.raw[row][piece] = batch.raw[row + kGroup][piece];
          }
        }
      });
    }
  }
}

template <class S, class C>
__device__ __forceinline__ void stage_norm(C& c) {
  if constexpr (ablation::kNoStaging) return;
  using P = typename C::P;
  if constexpr (P::kBatch > 1) {
    constexpr int kCount = P::kHidden / S::kKParts;
    constexpr bool kRows = kRowsOf<S, kCount, P::kBatch, S::kKParts == 1>;
    if constexpr (kPlainRows<decltype(S::h(c))> && kRows && S::kHRow % kUnit == 0) {
      const int from = kCount * S::k_part(c);
      const bf16* rows = S::h(c).data + from;
      const float* norm = S::norm(c).data + S::index(c) * P::kHidden + from;
      norm_rows<S, kCount, P::kBatch, S::kHRow>(c, [&](int s) { return rows + s * S::kHRow; }, norm, S::adds(c));
      return;
    }
  }
  stage_norm_cells<S>(c);
}

}  // namespace amk::ops
