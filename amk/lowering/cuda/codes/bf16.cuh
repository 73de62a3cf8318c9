// Weights that are bf16 numbers as they are. kGroups: row groups of a chunk.
#pragma once
#include "amk/weights.cuh"

namespace amk {

template <int kGroups = 1>
struct Bf16 {
  static constexpr bool kPlain = true;
  static constexpr int kRowGroups = kGroups;
};

}  // namespace amk
