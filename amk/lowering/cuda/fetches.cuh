// What a warp reads of a hand-off buffer: a lane's batches of 16-byte fetches, many of them in flight.
//
// A fetch is Cell::kWide neighbouring elements; so are lanes' fetches, and those of one lane are 32 * kWide elements apart.
// A batch is used once all of it is fresh. What always holds, by the lengths of the agents' shares, is no condition.
#pragma once
#include "amk/cells.cuh"

namespace amk {

constexpr int kInFlight = 16;  // fetches of a lane

// Fetches that a lane needs for kMost elements, as many as are in flight at once.
template <int kMost, class Cell>
__device__ constexpr int pieces_of() {
  constexpr int kAll = (kMost + 32 * Cell::kWide - 1) / (32 * Cell::kWide);
  return kAll < kInFlight ? kAll : kInFlight;
}

// Rows of a batch whose fetches, for kMost elements each, are in flight together.
template <int kMost, int kBatch, class Cell>
__device__ constexpr int rows_together() {
  constexpr int kFit = kInFlight / pieces_of<kMost, Cell>();
  return kFit < 1 ? 1 : kFit < kBatch ? kFit : kBatch;
}

// Rows that have code of their own, of so many in registers with so many fetches each: a divisor, about four fetches. Then the
// next ones move to where these were, in a loop: a layer of a step of several rows has more code than the cache for
// instructions holds.
__device__ constexpr int group_of_rows(int rows, int pieces) {
  int group = rows;
  while (group > 1 && (rows % group != 0 || group * pieces > 4)) --group;
  return group;
}

// A lane's fetches of one batch: raw[row][piece] are elements base + piece * kStride and the next ones of the row where
// live(row, piece), zero elsewhere. Shares have kLeast to kMost elements; kAllRows: as many rows as there is room for.
template <int kMost, int kLeast, int kRows, bool kAllRows, class Cell>
struct Fetched {
  static constexpr int kMaxRows = kRows, kPieces = pieces_of<kMost, Cell>();
  static constexpr int kStride = 32 * Cell::kWide, kAll = kPieces * kStride;
  static constexpr bool kOnce = kMost <= kAll;
  // Elements that every batch has: of several, the last one of a share that may be shorter has none for sure.
  static constexpr int kSure = kOnce ? kLeast : kLeast == kMost && kMost % kAll == 0 ? kAll : 0;
  typename Cell::Raw raw[kRows][kPieces];
  int base, hi, rows;

  __device__ __forceinline__ bool live(int row, int piece) const {
    return ((piece + 1) * kStride <= kSure || base + piece * kStride < hi) && (kAllRows || row == 0 || row < rows);
  }

  // The loads of one piece; mine: where the lane's part of row 0 begins, apart: elements from there to the row's.
  __device__ __forceinline__ void ask(const Cell& mine, int row, int piece, int apart) {
    if (ablation::kNoWords && piece % 2 != 0) {
      raw[row][piece] = raw[row][piece - 1];
    } else if (live(row, piece)) {
      raw[row][piece] = mine.fetch(apart + piece * kStride);
    }
  }
};

// use(batch) for the lane's part of elements [lo, hi) of `rows` rows that are kApart elements of `cell` apart, once all of the
// batch is fresh. lo and hi are multiples of Cell::kWide; all lanes call.
template <class Batch, int kApart, class Cell, class C, class Use>
__device__ __forceinline__ void for_each_batch(const C& c, const Cell& cell, int rows, int lo, int hi, Use use) {
  constexpr int kPieces = Batch::kPieces, kStride = Batch::kStride;
#pragma unroll 1
  for (int from = lo; (Batch::kOnce && Batch::kSure > 0) || from < hi; from += Batch::kAll) {
    Batch batch;
    batch.base = from + c.lane * Cell::kWide, batch.hi = hi, batch.rows = rows;
    const Cell mine = cell.from(batch.base);
    until_fresh(c, cell.tag, [&] {
      u32 stale = 0;
#pragma unroll
      for (int r = 0; r < Batch::kMaxRows; ++r) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k) {
          // Defined on both paths: otherwise the registers of every step's batch stay allocated through all loops around it.
          batch.raw[r][k] = {};
          batch.ask(mine, r, k, r * kApart);
        }
      }
#pragma unroll
      for (int r = 0; r < Batch::kMaxRows; ++r) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k) stale |= batch.live(r, k) ? cell.stale(batch.raw[r][k]) : 0;
      }
      return stale == 0;
    });
    use(batch);
    if constexpr (Batch::kOnce) break;
  }
}

// A number that is known where code is made.
template <int kValue>
struct Known {};

// use(Known<first fetch>, batch) for each group from fetch kFirst on whose bit is set.
template <int kGroup, int kFirst = 0, class Batch, class Use>
__device__ __forceinline__ void use_ready(u32 ready, const Batch& batch, Use use) {
  if ((ready & 1) != 0) use(Known<kFirst>{}, batch);
  if constexpr (kFirst + kGroup < Batch::kPieces) use_ready<kGroup, kFirst + kGroup>(ready >> 1, batch, use);
}

// As for_each_batch for one row that is one batch, but in groups of kGroup fetches, of which the last may be smaller:
// use(Known<first fetch>, batch) once all lanes have the group fresh, while the others are being read again. All lanes call, and
// use() may make them meet.
template <class Batch, int kGroup, class Cell, class C, class Use>
__device__ __forceinline__ void for_each_group(const C& c, const Cell& cell, int lo, int hi, Use use) {
  constexpr int kPieces = Batch::kPieces, kGroups = (kPieces + kGroup - 1) / kGroup;
  static_assert(Batch::kOnce && Batch::kMaxRows == 1 && kGroups <= 31, "one batch, a bit for each group");
  Batch batch;
  batch.base = lo + c.lane * Cell::kWide, batch.hi = hi, batch.rows = 1;
  const Cell mine = cell.from(batch.base);
#pragma unroll
  for (int k = 0; k < kPieces; ++k) batch.raw[0][k] = {};
  sync::Stall<sync::Blocked::tagged_word> stall;
  u32 missing = (1u << kGroups) - 1, ready = 0;
#pragma unroll 1
  while (true) {
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      if ((missing >> k / kGroup & 1) != 0) batch.ask(mine, 0, k, 0);
    }
    use_ready<kGroup>(ready, batch, use);
    if (missing == 0) return;
    u32 fresh = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      u32 stale = 0;
#pragma unroll
      for (int k = group * kGroup; k < kPieces && k < (group + 1) * kGroup; ++k) {
        stale |= batch.live(0, k) ? cell.stale(batch.raw[0][k]) : 0;
      }
      if (__any_sync(0xffffffffu, stale != 0) == 0) fresh |= 1u << group;
    }
    ready = fresh & missing;
    if (ready == 0 && __any_sync(0xffffffffu, stall.gives_up(c.dog, c.warp, 0, cell.tag, 0)) != 0) ready = missing;
    missing &= ~ready;
  }
}

// use(i, values) for this lane's part of elements [lo, hi) of `cell`, at most kMost.
template <int kMost, class Cell, class C, class Use>
__device__ __forceinline__ void for_each_wide(const C& c, const Cell& cell, int lo, int hi, Use use) {
  using Batch = Fetched<kMost, 0, 1, true, Cell>;
  for_each_batch<Batch, 0>(c, cell, 1, lo, hi, [&](const Batch& batch) {
#pragma unroll
    for (int k = 0; k < Batch::kPieces; ++k) {
      if (!batch.live(0, k)) continue;
      float v[Cell::kWide];
      cell.values(batch.raw[0][k], v);
      use(batch.base + k * Batch::kStride, v);
    }
  });
}

// use(i, value) for this lane's part of elements [0, kCount) of `cell`, one at a time.
template <int kCount, class Cell, class C, class Use>
__device__ __forceinline__ void for_each_one(const C& c, const Cell& cell, Use use) {
#pragma unroll 1
  for (int from = 0; from < kCount; from += 32) {
    const int i = min(from + c.lane, kCount - 1);
    typename Cell::One raw;
    until_fresh(c, cell.tag, [&] {
      raw = cell.fetch_one(i);
      return cell.fresh_one(raw);
    });
    if (from + c.lane < kCount) use(i, cell.value_one(raw));
  }
}

}  // namespace amk
