// Rows of a step that are the nodes of a tree.
#pragma once
#include "amk/cells.cuh"

namespace amk {

// The rows before `row` that it sees, as bits. Bits of others mean nothing, whatever the launch was given.
template <class S, class C>
__device__ __forceinline__ unsigned long long seen_before(const C& c, int row) {
  const uint2 words = reinterpret_cast<const uint2*>(S::tree(c).data)[row];
  return (static_cast<unsigned long long>(words.y) << 32 | words.x) & ((1ull << row) - 1);
}

}  // namespace amk
