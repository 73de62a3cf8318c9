// In sync.cuh of this folder.
#pragma once
#include "amk/sync.cuh"
