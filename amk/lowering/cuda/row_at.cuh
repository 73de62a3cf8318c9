// Where a row of something large begins.
#pragma once

namespace amk {

// Row `row` of kWidth elements: tables, caches and weights may have more than 2^31 of them.
template <int kWidth, class T>
__device__ __forceinline__ T* row_at(T* rows, long long row) {
  return rows + row * kWidth;
}

}  // namespace amk
