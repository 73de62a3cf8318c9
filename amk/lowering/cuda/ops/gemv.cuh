// part[g + a, s] = W[group g, this warp's k chunks] @ x[s] for each sequence s, with tensor cores; for bf16 here, for codes in quantised_gemv and,
// for several sequences, quantised_batch.
//
// Threads: every warp drains its own share of the worker's chunks. Shared memory: reads x (bf16, in the order of x_place), the
// warp's ring; writes part (f32, 8 a sequence per slot; there or in global memory). Each chunk is [chunk_k / 32][8 rows][32 k] bf16: lane 4 r + q holds row r,
// k = 32 i + 8 q .. + 8. Its 16 bytes are an operand of mma.m16n8k16 as they are: its words 0 and 2 count as row r, 1 and 3 as
// row r + 8. The other operand has x of the former in its even columns and of the latter in its odd ones, columns 2 s and
// 2 s + 1 those of sequence s of four, so that row r of its product is the sum of (r, column 2 s) and (r + 8, column 2 s + 1),
// both in lane 4 r + s. More than four sequences take a second product with the same weights. A later part of the columns adds
// to what the warp left in part before.
//
// With more than 8 sequences x is the operand of 16 rows, a sequence each, and the weights are the other one, with 8 columns: a
// lane's 16 bytes are two of them, words 0 and 1 and words 2 and 3, and so are its 16 bytes of a sequence's x. Lane 4 r + q has
// the sums of sequences r and r + 8 for rows 2 q and 2 q + 1. A chunk may then have two row groups, one behind the other.
#pragma once
#include "amk/context.cuh"
#include "amk/quantised_batch.cuh"
#include "amk/quantised_gemv.cuh"
#include "amk/tensor_core.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void plain_gemv(C& c) {
  constexpr int kWidth = S::Matrix::kColumns, kChunks = S::Matrix::kChunks / S::kCut, kChains = 2;
  static_assert(S::Matrix::kK % (kWidth * S::kCut) == 0 && kWidth % 32 == 0, "chunks cover k exactly");
  const int agent = c.warp - S::kFirst;
  const int chunks = S::Matrix::count(c) * kChunks;
  const int lo = share_begin(chunks, S::kAgents, agent), hi = share_begin(chunks, S::kAgents, agent + 1);
  constexpr int kBatch = C::P::kBatch, kTiles = (kBatch + 3) / 4;
  u32 x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    x[t] = sync::shared_address(S::x(c)) + (c.lane % 4) * 16 + (c.lane / 4 % 2) * 8;
    if constexpr (kBatch > 1) {
      static_assert(S::kXRow % 8 == 0, "rows of whole 16 bytes");
      x[t] += min(t * 4 + c.lane / 8, kBatch - 1) * (S::kXRow * 2);
    }
    x[t] = sync::opaque(x[t]);
  }
  float* part = S::part(c) + agent * (8 * kBatch) + c.lane / 4;
  int group = lo / kChunks, column = lo % kChunks;
  float acc[kTiles][kChains][4] = {};
  const auto flush = [&] {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int sequence = t * 4 + c.lane % 4;
      float(&sums)[kChains][4] = acc[t];
      if (sequence < kBatch) {
        float total = (sums[0][0] + sums[0][3]) + (sums[1][0] + sums[1][3]);
        if (S::adds(c)) total = part[(group * kBatch + sequence) * 8] + total;
        part[(group * kBatch + sequence) * 8] = total;
      }
#pragma unroll
      for (int i = 0; i < kChains; ++i) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.f;
    }
  };
  c.ring.enter(hi - lo, c.lane);
#pragma unroll 1
  for (int chunk = lo; chunk < hi; ++chunk) {
    const u32 w = c.ring.wait(c.dog, c.warp) + c.lane * 16, at = column * (kWidth * 2);
    if constexpr (!ablation::kNoProduct) {
      uint4 weights[kWidth / 32];
      uint2 inputs[kTiles][kWidth / 32];
#pragma unroll
      for (int i = 0; i < kWidth / 32; ++i) {
        weights[i] = sync::load_shared_v4(w + i * 512);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) inputs[t][i] = sync::load_shared_v2(x[t] + at + i * 64);
      }
#pragma unroll
      for (int i = 0; i < kWidth / 32; ++i) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float(&sum)[4] = acc[t][i % kChains];
          mma_16(sum, weights[i].x, weights[i].y, weights[i].z, weights[i].w, inputs[t][i].x, inputs[t][i].y);
        }
      }
    }
    c.ring.template release<S::kDeferred>(c.lane, hi - chunk - 1);
    // One place for both ends: sums are stored where a row group ends, and where the warp's share does.
    if (++column == kChunks || chunk + 1 == hi) {
      flush();
      column = 0, ++group;
    }
  }
}

// Of more than 8 sequences. What is read of x is multiplied with every row group of a chunk. A slot is given back as soon as its
// weights are in registers, and x of kAhead tiles is loaded before it is multiplied, also that of the next chunk: no product
// waits for shared memory.
template <class S, class C>
__device__ __forceinline__ void wide_gemv(C& c) {
  constexpr int kWidth = S::Matrix::kColumns, kChunks = S::Matrix::kChunks / S::kCut, kChains = 2;
  constexpr int kEach = S::Matrix::Weights::kRowGroups, kTiles = (C::P::kBatch + 15) / 16, kBatch = C::P::kBatch;
  constexpr int kSteps = kWidth / 32, kAll = kSteps * kTiles, kAhead = kAll <= 8 ? kAll : kTiles;  // of 16 sequences, 32 columns
  static_assert(S::Matrix::kK % (kWidth * S::kCut) == 0 && kWidth % 32 == 0, "chunks cover k exactly");
  static_assert(S::kXRow % 8 == 0, "rows of whole 16 bytes");
  const int agent = c.warp - S::kFirst;
  const int chunks = S::Matrix::count(c) / kEach * kChunks;
  const int lo = share_begin(chunks, S::kAgents, agent), hi = share_begin(chunks, S::kAgents, agent + 1);
  constexpr bool kWhole = kBatch % 16 == 0;  // tiles have all their sequences: they are as far apart in every lane
  u32 x[kWhole ? 1 : 2 * kTiles];
#pragma unroll
  for (int t = 0; t < (kWhole ? 1 : 2 * kTiles); ++t) {
    const int sequence = min(t * 8 + c.lane / 4, kBatch - 1);
    x[t] = sync::opaque(sync::shared_address(S::x(c)) + c.lane % 4 * 16 + sequence * (S::kXRow * 2));
  }
  uint4 inputs[kAhead][2] = {};
  // Tile n of a chunk whose columns begin at byte `at` of x: sequences 16 t .. + 16, columns 32 i .. + 32, n = i * kTiles + t.
  const auto fetch = [&](bool live, int n, u32 at) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = n % kTiles * 2 + h;
      const u32 from = kWhole ? x[0] + t * (8 * S::kXRow * 2) : x[kWhole ? 0 : t];
      sync::load_shared_if(live, inputs[n % kAhead][h], from + at + n / kTiles * 64);
    }
  };
  float* part = S::part(c) + agent * (8 * kBatch * kEach) + c.lane / 4 * 8 + c.lane % 4 * 2;
  int row = lo / kChunks, column = lo % kChunks;  // of chunks
  float acc[kEach][kTiles][kChains][4] = {};
  const auto flush = [&] {
#pragma unroll
    for (int g = 0; g < kEach; ++g) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        float(&sums)[kChains][4] = acc[g][t];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (t * 16 + h * 8 + c.lane / 4 >= kBatch) continue;
          float2* to = reinterpret_cast<float2*>(part + ((row * kEach + g) * kBatch + t * 16 + h * 8) * 8);
          float2 total = make_float2(sums[0][2 * h] + sums[1][2 * h], sums[0][2 * h + 1] + sums[1][2 * h + 1]);
          if (S::adds(c)) {
            const float2 before = *to;
            total.x = before.x + total.x, total.y = before.y + total.y;
          }
          *to = total;
        }
#pragma unroll
        for (int i = 0; i < kChains; ++i) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.f;
      }
    }
  };
  // A choice of bytes of which only the running kernel knows that it changes nothing: of plain copies, which an operand of four
  // registers in a row needs, the compiler makes new ones for every product.
  const u32 same = 0x3210u | static_cast<u32>(c.pos) >> 31;
  const auto copy = [&](u32 word) { return __byte_perm(word, 0, same); };
  if constexpr (!ablation::kNoProduct) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) fetch(lo < hi, n, column * (kWidth * 2));
  }
  c.ring.enter(hi - lo, c.lane);
#pragma unroll 1
  for (int chunk = lo; chunk < hi; ++chunk) {
    const u32 w = c.ring.wait(c.dog, c.warp) + c.lane * 16, at = column * (kWidth * 2);
    uint4 weights[kEach][kSteps];
    if constexpr (!ablation::kNoProduct) {
#pragma unroll
      for (int g = 0; g < kEach; ++g) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) weights[g][i] = sync::load_shared_v4(w + (g * kSteps + i) * 512);
      }
    }
    c.ring.template release<S::kDeferred>(c.lane, hi - chunk - 1);
    const bool more = chunk + 1 < hi;
    if (++column == kChunks) column = 0;
    if constexpr (!ablation::kNoProduct) {
#pragma unroll
      for (int n = 0; n < kAll; ++n) {
        const int i = n / kTiles, t = n % kTiles;
        // In the order of x_place: the second pair stands third.
        const uint4 a = inputs[n % kAhead][0], b = inputs[n % kAhead][1];
        const u32 low[4] = {copy(a.x), copy(b.x), copy(a.z), copy(b.z)}, high[4] = {copy(a.y), copy(b.y), copy(a.w), copy(b.w)};
#pragma unroll
        for (int g = 0; g < kEach; ++g) {
          mma_16(acc[g][t][0], low[0], low[1], low[2], low[3], weights[g][i].x, weights[g][i].y);
          mma_16(acc[g][t][1], high[0], high[1], high[2], high[3], weights[g][i].z, weights[g][i].w);
        }
        if (n + kAhead < kAll) {
          fetch(true, n + kAhead, at);
        } else {
          fetch(more, n + kAhead - kAll, column * (kWidth * 2));
        }
      }
    }
    // One place for both ends: sums are stored where a row of chunks ends, and where the warp's share does.
    if (column == 0 || !more) {
      flush();
      ++row;
    }
  }
}

template <class S, class C>
__device__ __forceinline__ void gemv(C& c) {
  if constexpr (S::Matrix::Weights::kPlain && C::P::kBatch > 8) {
    wide_gemv<S>(c);
  } else if constexpr (S::Matrix::Weights::kPlain) {
    plain_gemv<S>(c);
  } else if constexpr (C::P::kBatch > 1) {
    quantised_batch<S>(c);
  } else {
    quantised_gemv<S>(c);
  }
}

}  // namespace amk::ops
