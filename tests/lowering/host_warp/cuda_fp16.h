// Pairs of halves, rounded to the nearest even.
#pragma once
#include "warp.h"

struct __half { _Float16 value; };
struct __half2 { __half x, y; };
inline __half2 __floats2half2_rn(float x, float y) { return {{static_cast<_Float16>(x)}, {static_cast<_Float16>(y)}}; }
