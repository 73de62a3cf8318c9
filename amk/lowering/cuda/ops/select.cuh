// token <- prompt[pos + 1] while given, else the index of the largest candidate, for each sequence; pos and epoch advance
// by one. In a step of several rows, output has the same behind each row, and pos advances by as many; if the step accepts
// guesses, up to the first row whose token is not the next row's, and -1 behind the others.
//
// Threads: every warp computes the same tokens from the same candidates; in a batch with all lanes for two sequences at a time,
// and lane s decides what becomes of the largest of sequence s. Reads global best_value (f32), best_index (i32), both hand-offs,
// request, prompt (i32); worker 0, agent 0 writes output[n] (i32).
#pragma once
#include "amk/fetches.cuh"
#include "amk/ops/argmax_rows.cuh"
#include "amk/ops/begin.cuh"

namespace amk::ops {

// In lane s the slot of the largest candidate of sequence s of kBatch, at most 32. kRow: elements between the candidates of two sequences. What is
// beyond the last candidate, or the last sequence, is that one again: all of a turn is in flight, and nothing is a condition.
template <int kBatch, int kCandidates, int kRow, class C, class Cell>
__device__ __forceinline__ int best_slot(const C& c, const Cell& best) {
  constexpr int kWide = Cell::kWide, kStride = 32 * kWide, kAll = (kCandidates + kStride - 1) / kStride, kMost = 12;
  constexpr int kTurns = (kAll + kMost - 1) / kMost, kPieces = (kAll + kTurns - 1) / kTurns;
  constexpr int kRows = kPieces <= 10 ? 2 : 1;
  static_assert(kCandidates % kWide == 0, "whole fetches");
  int slot = 0;
#pragma unroll 1
  for (int first = 0; first < kBatch; first += kRows) {
    float value[kRows];
    int at[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) value[r] = -3.4e38f, at[r] = 0x7fffffff;
#pragma unroll 1
    for (int from = c.lane * kWide; from - c.lane * kWide < kCandidates; from += kPieces * kStride) {
      const auto place = [&](int k) {
        const bool sure = kTurns == 1 && (k + 1) * kStride <= kCandidates;
        return sure ? from + k * kStride : min(from + k * kStride, kCandidates - kWide);
      };
      typename Cell::Raw raw[kRows][kPieces];
      until_fresh(c, best.tag, [&] {
        u32 stale = 0;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const Cell mine = best.from(min(first + r, kBatch - 1) * kRow + from);
#pragma unroll
          for (int k = 0; k < kPieces; ++k) raw[r][k] = mine.fetch_near(place(k) - from);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int k = 0; k < kPieces; ++k) stale |= best.stale(raw[r][k]);
        }
        return stale == 0;
      });
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k) {
          float v[kWide];
          best.values(raw[r][k], v);
#pragma unroll
          for (int j = 0; j < kWide; ++j) keep_best(value[r], at[r], v[j], place(k) + j);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      warp_best(value[r], at[r]);
      slot = c.lane == first + r ? at[r] : slot;
    }
  }
  return slot;
}

// The token as it is; of what an ablated kernel made up, one that the embedding has.
template <class P>
__device__ __forceinline__ int known_token(int token) {
  if constexpr (ablation::kAny) return min(max(token, 0), P::LmHead::kRows - 1);
  return token;
}

// The next token of a single sequence.
template <class S, class C>
__device__ __forceinline__ void select_one(C& c) {
  const int* request = S::request(c).data;
  if (c.pos + 1 < request[0]) {
    c.tokens[0] = S::prompt(c).data[c.pos + 1];
    return;
  }
  if (ablation::kNoArgmax || c.done) return;
  const auto best = S::best_value(c);
  const auto index = S::best_index(c);
  float value = -3.4e38f;
  int slot = 0x7fffffff;
  constexpr int kWide = decltype(S::best_value(c))::kWide;
  if constexpr (S::kCandidates % kWide == 0) {
    for_each_wide<S::kCandidates>(c, best, 0, S::kCandidates, [&](int i, float(&v)[kWide]) {
#pragma unroll
      for (int k = 0; k < kWide; ++k) keep_best(value, slot, v[k], i + k);
    });
  } else {
    for_each_one<S::kCandidates>(c, best, [&](int i, float v) { keep_best(value, slot, v, i); });
  }
  warp_best(value, slot);
  if constexpr (ablation::kAny) slot = min(slot, S::kCandidates - 1);
  typename decltype(S::best_index(c))::One raw;
  until_fresh(c, index.tag, [&] {
    raw = index.fetch_one(slot);
    return index.fresh_one(raw);
  });
  const int token = known_token<typename C::P>(index.value_one(raw));
  for (int e = 1; e < 5; ++e) c.done |= token == request[e];
  c.tokens[0] = token;
}

// The next tokens of a batch, of up to 32 sequences from kFrom on. done: which of them have ended.
template <class S, int kFrom, class C>
__device__ __forceinline__ void select_batch(C& c, int& done) {
  constexpr int kBatch = C::P::kBatch - kFrom < 32 ? C::P::kBatch - kFrom : 32;
  static_assert(S::kBestIndexRow == S::kBestValueRow, "one candidate, one place");
  constexpr u32 kAll = 0xffffffffu, kSequences = kAll >> (32 - kBatch);
  const int* request = S::request(c).data;
  // Lanes beyond the last sequence do as its lane does.
  const int s = min(c.lane, kBatch - 1);
  const int next = (C::P::kLive ? c.place : c.pos) + 1;
  const bool given = next < request[kFrom + s == 0 ? 0 : 4 + kFrom + s];
  const u32 chosen = __ballot_sync(kAll, !given) & kSequences & ~static_cast<u32>(done);
  int token = c.tokens[kFrom / 32];
  if constexpr (!C::kTokenALane) {
#pragma unroll
    for (int k = 1; k < kBatch; ++k) {
      // Read whichever it is: registers are not indexed by a variable.
      const int had = sync::opaque(c.tokens[k]);
      token = k == s ? had : token;
    }
  }
  if (given) token = S::prompt(c).data[(kFrom + s) * S::kPromptRow + next];
  if (!ablation::kNoArgmax && chosen != 0) {
    auto best = S::best_value(c);
    if constexpr (kFrom > 0) best = best.from(kFrom * S::kBestValueRow);
    const int slot = best_slot<kBatch, S::kCandidates, S::kBestValueRow>(c, best);
    const auto index = S::best_index(c);
    const bool own = c.lane < kBatch && (chosen >> s & 1) != 0;
    typename decltype(S::best_index(c))::One raw = {};
    until_fresh(c, index.tag, [&] {
      if (own) raw = index.fetch_one((kFrom + s) * S::kBestIndexRow + min(slot, S::kCandidates - 1));
      return !own || index.fresh_one(raw);
    });
    if (own) token = known_token<typename C::P>(index.value_one(raw));
    bool ends = false;
#pragma unroll
    for (int e = 1; e < 5; ++e) ends |= token == request[e];
    done |= __ballot_sync(kAll, own && ends);
  }
  if constexpr (C::kTokenALane) {
    c.tokens[kFrom / 32] = __shfl_sync(kAll, token, s);
  } else {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) c.tokens[k] = __shfl_sync(kAll, token, k);
  }
}

// The tokens behind kRows rows of one sequence from kFirst on, row kFirst + r in lane r; the last row of all tells whether the
// text has ended.
template <class S, int kFirst, int kRows, class C>
__device__ __forceinline__ int select_rows(C& c) {
  static_assert(S::kBestIndexRow == S::kBestValueRow, "one candidate, one place");
  constexpr bool kAccepts = C::P::kAccepts, kEnds = !kAccepts && kFirst + kRows == C::P::kRows;
  constexpr u32 kAll = 0xffffffffu, kLast = 1u << (kRows - 1);
  const int* request = S::request(c).data;
  // Lanes beyond the last row do as its lane does.
  const int r = min(c.lane, kRows - 1);
  const bool given = c.pos + kFirst + r + 1 < request[0];
  const u32 ended = c.done ? (kAccepts ? kAll : kEnds ? kLast : 0u) : 0u;
  const u32 chosen = __ballot_sync(kAll, !given) & (2 * kLast - 1) & ~ended;
  // Behind a text that has ended: the token that the step began with.
  int token = c.tokens[0];
  if constexpr (C::kTokenALane) token = __shfl_sync(kAll, token, 0);
  if (given) token = S::prompt(c).data[c.pos + kFirst + r + 1];
  if (!ablation::kNoArgmax && chosen != 0) {
    const auto best = S::best_value(c).from(kFirst * S::kBestValueRow);
    const int slot = best_slot<kRows, S::kCandidates, S::kBestValueRow>(c, best);
    const auto index = S::best_index(c);
    const bool own = c.lane < kRows && (chosen >> r & 1) != 0;
    typename decltype(S::best_index(c))::One raw = {};
    until_fresh(c, index.tag, [&] {
      if (own) raw = index.fetch_one((kFirst + r) * S::kBestIndexRow + min(slot, S::kCandidates - 1));
      return !own || index.fresh_one(raw);
    });
    if (own) token = known_token<typename C::P>(index.value_one(raw));
    bool ends = false;
#pragma unroll
    for (int e = 1; e < 5; ++e) ends |= token == request[e];
    if constexpr (kEnds) c.done |= (__ballot_sync(kAll, own && ends) & kLast) != 0;
  }
  return token;
}

// Rows up to the one that ends a step which accepts guesses; found: as below. That row's token is the next step's first.
template <class S, class C, int kTokens>
__device__ __forceinline__ int accepted_rows(C& c, const int (&found)[kTokens]) {
  constexpr u32 kAll = 0xffffffffu;
  const int* request = S::request(c).data;
  const int* prompt = S::prompt(c).data;
  int last = C::P::kRows - 1;
#pragma unroll
  for (int k = kTokens - 1; k >= 0; --k) {
    const int r = k * 32 + c.lane, next = c.pos + r + 1;
    bool ends = c.done != 0;
#pragma unroll
    for (int e = 1; e < 5; ++e) ends |= found[k] == request[e];
    const bool stops = r >= C::P::kRows - 1 || found[k] != prompt[next] || (ends && next >= request[0]);
    const u32 where = __ballot_sync(kAll, stops);
    if (where != 0) last = k * 32 + __popc(~where & (where - 1));
  }
  int token = found[0];
#pragma unroll
  for (int k = 1; k < kTokens; ++k) {
    const int there = sync::opaque(found[k]);  // read whichever it is: registers are not indexed by a variable
    token = last / 32 == k ? there : token;
  }
  token = __shfl_sync(kAll, token, last % 32);
  bool ends = false;
#pragma unroll
  for (int e = 1; e < 5; ++e) ends |= token == request[e];
  c.done |= ends && c.pos + last + 1 >= request[0];
  c.tokens[0] = token;
  return last + 1;
}

// Of all rows, row 32 * k + r in lane r's found[k]; the last one and given ones are the next step's.
template <class S, int kFrom, class C, int kTokens>
__device__ __forceinline__ void select_all_rows(C& c, int (&found)[kTokens]) {
  constexpr int kRows = C::P::kRows - kFrom < 32 ? C::P::kRows - kFrom : 32;
  found[kFrom / 32] = select_rows<S, kFrom, kRows>(c);
  if constexpr (kFrom + kRows < C::P::kRows) {
    select_all_rows<S, kFrom + kRows>(c, found);
  } else if constexpr (!C::P::kAccepts) {
    c.tokens[0] = __shfl_sync(0xffffffffu, found[kFrom / 32], kRows - 1);
  }
}

template <class S, class C>
__device__ __forceinline__ void select(C& c) {
  constexpr int kBatch = C::P::kBatch, kRows = C::P::kRows;
  constexpr int kTokens = (kRows + 31) / 32;
  int tokens[kTokens], moved = kRows;
  if constexpr (kRows > 1) {
    select_all_rows<S, 0>(c, tokens);
    if constexpr (C::P::kAccepts) moved = accepted_rows<S>(c, tokens);
  } else if constexpr (kBatch == 1) {
    select_one<S>(c);
  } else {
    select_batch<S, 0>(c, c.done);
    if constexpr (kBatch > 32) select_batch<S, 32>(c, c.later);
  }
  // Last: the tags of this step belong to the epoch that ends here.
  c.pos += moved, ++c.epoch;
  if constexpr (C::P::kLive) ++c.place;
  if constexpr (kRows > 1) {
    if (c.worker == 0 && c.warp == S::kFirst) {
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        const int r = k * 32 + c.lane;
        if (r < kRows) S::output(c).data[c.n * kRows + r] = r < moved ? tokens[k] : -1;
      }
    }
    given_rows<S>(c);
  } else if constexpr (C::kTokenALane) {
    if (c.worker == 0 && c.warp == S::kFirst && c.lane < kBatch) S::output(c).data[c.n * kBatch + c.lane] = c.tokens[0];
    if constexpr (kBatch > 32) {
      const int s = 32 + c.lane;
      if (c.worker == 0 && c.warp == S::kFirst && s < kBatch) S::output(c).data[c.n * kBatch + s] = c.tokens[1];
    }
  } else if (c.worker == 0 && c.warp == S::kFirst && c.lane == 0) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) S::output(c).data[c.n * kBatch + k] = c.tokens[k];
  }
}

}  // namespace amk::ops
