// Rows of bf16 that every worker reads whole, a row for each sequence of a batch: 16 bytes a load, all rows' loads in flight.
//
// A warp copies its share of the columns of every row. Where a share is too narrow for 32 lanes, 16 or 8 of them take a row,
// and the others the next ones. Staged rows are in the order of x_place: a lane's 16 bytes are a run of 8 elements.
#pragma once
#include "amk/staged.cuh"

namespace amk {

constexpr int kUnit = 8;  // elements of a load

// How a warp reads kCount columns of kBatch rows. kLanes: of a row, 0 if some lane would have nothing to do. kTurns: loads of a lane
// for all rows in each piece of kLanes * kUnit columns. kIdle: where no number of lanes has equal pieces, some have nothing to do.
template <int kCount, int kBatch, bool kIdle = false>
struct RowShare {
  static __device__ constexpr int lanes() {
    for (int lanes = 32; lanes >= 8; lanes /= 2) {
      if (kCount % (lanes * kUnit) == 0 && kBatch % (32 / lanes) == 0) return lanes;
    }
    for (int lanes = 8; kIdle && kCount % kUnit == 0 && lanes <= 32; lanes *= 2) {
      if (kCount < lanes * kUnit && kBatch % (32 / lanes) == 0) return lanes;
    }
    return 0;
  }
  static constexpr int kLanes = lanes(), kRows = kLanes == 0 ? 1 : 32 / kLanes;
  static constexpr bool kSome = kLanes > 0 && kCount < kLanes * kUnit;  // of the lanes
  static constexpr int kPieces = kLanes == 0 || kSome ? 1 : kCount / (kLanes * kUnit), kTurns = kBatch / kRows;
  // Turns whose loads are in flight together.
  static __device__ constexpr int together() {
    for (int turns = kTurns; turns > 1; --turns) {
      if (kTurns % turns == 0 && turns * kPieces <= kInFlight) return turns;
    }
    return 1;
  }
  static constexpr int kTogether = together();
  using Raw = uint4[kTogether][kPieces];
  static constexpr bool kWorks = kLanes > 0 && kPieces <= kInFlight;
};

// Whether the step S reads kCount columns of each of kBatch rows in this way; kWhole: only if a warp has whole rows at a time.
template <class S, int kCount, int kBatch, bool kWhole, bool kIdle = false>
inline constexpr bool kRowsOf = kCount % S::kAgents == 0 && RowShare<kCount / S::kAgents, kBatch, kIdle>::kWorks &&
                                (!kWhole || RowShare<kCount / S::kAgents, kBatch, kIdle>::kLanes == 32);

template <class Cell>
inline constexpr bool kPlainRows = false;
template <>
inline constexpr bool kPlainRows<Plain<bf16>> = true;

// A run of 8 elements in the order of x_place.
__device__ __forceinline__ void write_run(bf16* x, const uint4& run) {
  *reinterpret_cast<uint4*>(x) = make_uint4(run.x, run.z, run.y, run.w);
}

// Calls use(turn, raw, at): raw[t][p] is this lane's run of row (turn + t) * kRows + lane / kLanes, from column
// at + p * kLanes * kUnit of the share on. from(row): where the share begins in a row. kApart: elements from a row to the next, and
// addresses of many loads are one and constant offsets; if it is 0, from(row) says where each begins.
template <class Share, int kApart, class From, class Use>
__device__ __forceinline__ void for_rows(int lane, From from, Use use) {
  constexpr int kTogether = Share::kTogether;
  const int row = lane / Share::kLanes, at = lane % Share::kLanes * kUnit;
#pragma unroll 1
  for (int turn = 0; turn < Share::kTurns; turn += kTogether) {
    typename Share::Raw raw;
    const bf16* first = kApart > 0 ? from(turn * Share::kRows + row) + at : nullptr;
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      const bf16* begin = kApart > 0 ? first + t * Share::kRows * kApart : from((turn + t) * Share::kRows + row) + at;
#pragma unroll
      for (int p = 0; p < Share::kPieces; ++p) raw[t][p] = sync::load_global_v4(begin + p * (Share::kLanes * kUnit));
    }
    use(turn, raw, at);
  }
}

// x <- the agent's share of kCount columns of every row; rows are kApart elements apart.
template <class S, int kCount, int kBatch, int kApart, class C>
__device__ __forceinline__ void copy_rows(const C& c, const bf16* rows) {
  using Share = RowShare<kCount / S::kAgents, kBatch, true>;
  const int first = share_begin(kCount, S::kAgents, c.warp - S::kFirst), row = c.lane / Share::kLanes;
  if (Share::kSome && c.lane % Share::kLanes * kUnit >= kCount / S::kAgents) return;
  for_rows<Share, kBatch <= 8 ? 0 : kApart>(
      c.lane, [&](int s) { return rows + s * kApart + first; },
      [&](int turn, const typename Share::Raw& raw, int at) {
        bf16* to = S::x(c) + (turn * Share::kRows + row) * S::kXRow + first + at;
#pragma unroll
        for (int t = 0; t < Share::kTogether; ++t) {
#pragma unroll
          for (int p = 0; p < Share::kPieces; ++p) {
            write_run(to + t * Share::kRows * S::kXRow + p * (Share::kLanes * kUnit), raw[t][p]);
          }
        }
      });
}

// x <- the agent's share of each sequence's row, whatever the rows are made of.
template <class S, int kCount, int kBatch, int kApart, class Cell, class C>
__device__ __forceinline__ void stage_batch(const C& c, const Cell& cell) {
  if constexpr (kPlainRows<Cell> && kRowsOf<S, kCount, kBatch, false, true> && kApart % kUnit == 0) {
    copy_rows<S, kCount, kBatch, kApart>(c, cell.data);
  } else {
    stage_rows<S, kCount, kBatch, kApart>(c, cell);
  }
}

// How many lanes share out n sums over all of them, by halves.
__device__ constexpr int sharers_of(int lanes, int n) {
  int sharers = 1;
  while (sharers < lanes && n % (2 * sharers) == 0) sharers *= 2;
  return sharers;
}

// The sums over the kLanes lanes of a row of the first kLeft values each, in the order of exchanges over kLanes / 2, kLanes / 4 .. 1 lanes.
// While a lane has an even number of values, it gives half of them away: the last ones, if it is in the first half of the lanes.
// Left are those from kLeft / n * (lane / (kLanes / n)) on, in v[0] and the next, if n lanes share them out.
template <int kLanes, int kLeft, int kN>
__device__ __forceinline__ void add_across(int lane, float (&v)[kN]) {
  if constexpr (kLanes > 1) {
    constexpr int kOffset = kLanes / 2;
    constexpr bool kHalves = kLeft % 2 == 0;
    constexpr int kNext = kHalves ? kLeft / 2 : kLeft;
    const bool upper = lane / kOffset % 2 != 0;
#pragma unroll
    for (int k = 0; k < kNext; ++k) {
      const float low = v[k], high = v[kHalves ? k + kNext : k];
      v[k] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, kOffset);
    }
    add_across<kOffset, kNext>(lane, v);
  }
}

// x <- row * norm for the agent's share of kCount columns of every row, ssq <- the sums of its squares. from(s): the whole row.
// adds: to the sums of other columns. kApart: as for_rows has it.
template <class S, int kCount, int kBatch, int kApart, class C, class From>
__device__ __forceinline__ void norm_rows(const C& c, From from, const float* norm, bool adds) {
  using Share = RowShare<kCount / S::kAgents, kBatch>;
  constexpr int kLanes = Share::kLanes, kStride = kLanes * kUnit;
  // Of many rows, columns come in parts, and the code is run for each: no registers are moved, for which all loads must have come.
  constexpr bool kMany = kBatch > 8;
  constexpr int kGroup = kMany ? Share::kTogether : group_of_rows(Share::kTogether, Share::kPieces);
  const int agent = c.warp - S::kFirst, first = share_begin(kCount, S::kAgents, agent);
  const int row = kLanes == 32 ? 0 : c.lane / kLanes, lane = kLanes == 32 ? c.lane : c.lane % kLanes;
  float weight[Share::kPieces][kUnit];
#pragma unroll
  for (int p = 0; p < Share::kPieces; ++p) {
#pragma unroll
    for (int k = 0; k < kUnit; k += 4) {
      const float4 four = *reinterpret_cast<const float4*>(norm + first + lane * kUnit + p * kStride + k);
      weight[p][k] = four.x, weight[p][k + 1] = four.y, weight[p][k + 2] = four.z, weight[p][k + 3] = four.w;
    }
  }
  for_rows<Share, kBatch <= 8 ? 0 : kApart>(
      c.lane, [&](int s) { return from(s) + first; },
      [&](int turn, typename Share::Raw& raw, int at) {
#pragma unroll 1
        for (int t0 = 0; t0 < Share::kTogether; t0 += kGroup) {
          const int at_row = (turn + t0) * Share::kRows + row;
          bf16* to = S::x(c) + at_row * S::kXRow + first + at;
          // Of many rows, each lane has sums of its own. What they are added to is read beside the arithmetic by the lane that writes.
          constexpr int kSharers = kMany ? sharers_of(kLanes, kGroup) : 1, kOwn = kGroup / kSharers, kSame = kLanes / kSharers;
          float* sums = S::ssq(c) + (at_row + lane / kSame * kOwn * Share::kRows) * S::kSsqRow + agent;
          float before[kOwn] = {};
          if (kMany && adds && lane % kSame == 0) {
#pragma unroll
            for (int t = 0; t < kOwn; ++t) before[t] = sums[t * Share::kRows * S::kSsqRow];
          }
          float squares[kGroup] = {};
#pragma unroll
          for (int t = 0; t < kGroup; ++t) {
#pragma unroll
            for (int p = 0; p < Share::kPieces; ++p) {
              const u32 pairs[4] = {raw[t][p].x, raw[t][p].y, raw[t][p].z, raw[t][p].w};
              u32 out[4];
#pragma unroll
              for (int k = 0; k < 4; ++k) {
                const float2 v = unpack_bf16(pairs[k]);
                squares[t] += fmaf(v.x, v.x, v.y * v.y);
                out[k] = pack_bf16(v.x * weight[p][2 * k], v.y * weight[p][2 * k + 1]);
              }
              write_run(to + t * Share::kRows * S::kXRow + p * kStride, make_uint4(out[0], out[1], out[2], out[3]));
            }
          }
          if constexpr (kMany) {
            add_across<kLanes, kGroup>(lane, squares);
#pragma unroll
            for (int t = 0; t < kOwn; ++t) {
              if (lane % kSame == 0) sums[t * Share::kRows * S::kSsqRow] = before[t] + squares[t];
            }
            return;
          }
#pragma unroll
          for (int t = 0; t < kGroup; ++t) {
#pragma unroll
            for (int offset = kLanes / 2; offset > 0; offset /= 2) {
              squares[t] += __shfl_xor_sync(0xffffffffu, squares[t], offset);
            }
            float* sum = S::ssq(c) + (at_row + t * Share::kRows) * S::kSsqRow + agent;
            if (lane == 0) *sum = adds ? *sum + squares[t] : squares[t];
          }
#pragma unroll
          for (int t = 0; t + kGroup < Share::kTogether; ++t) {
#pragma unroll
            for (int p = 0; p < Share::kPieces; ++p) raw[t][p] = raw[t + kGroup][p];  // group_of_rows
          }
        }
      });
}

}  // namespace amk
