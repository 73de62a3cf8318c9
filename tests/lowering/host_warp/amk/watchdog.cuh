// In sync.cuh of this folder.
#pragma once
#include "amk/ablation.cuh"
#include "amk/sync.cuh"
