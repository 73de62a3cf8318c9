// As select, from the workers' draws.
#pragma once
#include "amk/ops/select.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void select_draw(C& c) {
  select<S>(c);
}

}  // namespace amk::ops
