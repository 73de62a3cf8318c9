// A libcuda.so.1 without a GPU: device memory is host memory, launches are printed. It lets the real bindings marshal
// their arguments on a machine without a driver; what they passed is printed on stdout, one line a call.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef unsigned long long Address;
typedef struct { int id; char pad[4]; char value[64]; } LaunchAttribute;
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  LaunchAttribute *attributes;
  unsigned attribute_count;
} LaunchConfig;

enum { INVALID_VALUE = 1, INVALID_PTX = 218, NOT_READY = 600, NOT_FOUND = 500 };

Result cuInit(unsigned flags) { return flags; }
Result cuDriverGetVersion(int *version) { return *version = 13000, 0; }
Result cuDeviceGetCount(int *count) { return *count = 1, 0; }
Result cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
Result cuDeviceGetName(char *name, int length, int device) { return snprintf(name, length, "Fake H200"), 0; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = 150000000000ull, 0; }
Result cuDeviceGetAttribute(int *value, int key, int device) {
  *value = key == 16 ? 132 : key == 75 ? 9 : key == 76 ? 0 : key == 97 ? 232448 : key == 81 ? 233472 : key == 82 ? 65536 : key == 95;
  return 0;
}
Result cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)0x1000, 0; }
Result cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
Result cuCtxSetCurrent(void *context) { return context != (void *)0x1000; }
Result cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = 5, *total = 7, 0; }
Result cuMemAlloc_v2(Address *address, size_t bytes) { return *address = (Address)aligned_alloc(256, (bytes + 255) / 256 * 256), 0; }
Result cuMemFree_v2(Address address) { return free((void *)address), 0; }
Result cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) { return memcpy((void *)to, from, bytes), 0; }
Result cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) { return memcpy(to, (void *)from, bytes), 0; }
Result cuMemsetD8Async(Address to, unsigned char byte, size_t bytes, void *stream) { return memset((void *)to, byte, bytes), stream != (void *)0x4000; }
Result cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) { return *memory = malloc(bytes), flags != 2; }
Result cuMemHostGetDevicePointer_v2(Address *address, void *memory, unsigned flags) { return *address = (Address)memory, 0; }
Result cuMemFreeHost(void *memory) { return free(memory), 0; }
Result cuModuleLoadDataEx(void **module, const char *image, unsigned count, int *keys, void **values) {
  if (strncmp(image, "bad", 3) == 0) return strcpy(values[0], "ptxas: line 3 is bad"), INVALID_PTX;
  printf("load %.3s keys %d %d size %lu\n", image + 1, keys[0], keys[1], (unsigned long)values[1]);
  return *module = (void *)0x2000, 0;
}
Result cuModuleUnload(void *module) { return module != (void *)0x2000; }
Result cuModuleGetFunction(void **function, void *module, const char *name) { return *function = (void *)0x3000, strcmp(name, "step") ? NOT_FOUND : 0; }
Result cuFuncGetAttribute(int *value, int key, void *function) { return *value = key == 0 ? 1024 : key == 1 ? 512 : key == 4 ? 100 : 0, 0; }
Result cuFuncSetAttribute(void *function, int key, int value) { return printf("set %d to %d\n", key, value), value > 231936 ? INVALID_VALUE : 0; }
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) { return *blocks = threads > 512 ? 0 : 1, shared != 200000; }
Result cuLaunchKernelEx(LaunchConfig *c, void *function, void **arguments, void **extra) {
  printf("launch %p grid %u %u %u block %u %u %u shared %u stream %p attributes %u: %d=%d argument %llx extra %d\n", function, c->grid[0],
         c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared_bytes, c->stream, c->attribute_count,
         c->attributes[0].id, *(int *)c->attributes[0].value, *(Address *)arguments[0], extra != 0);
  return 0;
}
Result cuStreamCreate(void **stream, unsigned flags) { return *stream = (void *)0x4000, flags != 1; }
Result cuStreamDestroy_v2(void *stream) { return 0; }
Result cuStreamSynchronize(void *stream) { return stream != NULL && stream != (void *)0x4000; }
Result cuStreamQuery(void *stream) { static int asked; return asked++ ? 0 : NOT_READY; }
Result cuEventCreate(void **event, unsigned flags) { return *event = (void *)0x5000, flags; }
Result cuEventDestroy_v2(void *event) { return 0; }
Result cuEventRecord(void *event, void *stream) { return event != (void *)0x5000 || stream != (void *)0x4000; }
Result cuEventSynchronize(void *event) { return 0; }
Result cuEventElapsedTime_v2(float *milliseconds, void *start, void *end) { return *milliseconds = 2.5f, 0; }
Result cuStreamBeginCapture_v2(void *stream, int mode) { return printf("capture mode %d\n", mode), stream != (void *)0x4000; }
Result cuStreamEndCapture(void *stream, void **graph) { return *graph = (void *)0x6000, 0; }
Result cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) { return *executable = (void *)0x7000, (int)flags; }
Result cuGraphDestroy(void *graph) { return graph != (void *)0x6000; }
Result cuGraphExecDestroy(void *executable) { return executable != (void *)0x7000; }
Result cuGraphLaunch(void *executable, void *stream) { return printf("replay %p on %p\n", executable, stream), 0; }

Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  static const char *suffixes[] = {"_v3", "_v2", "", "WithFlags"};
  static void *self;
  if (!self) self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *function = strcmp(name, "cuGetProcAddress") ? NULL : (void *)cuGetProcAddress_v2;
  for (int i = 0; i < 4 && !*function; ++i) {
    char symbol[128];
    snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
    *function = dlsym(self, symbol);
  }
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : NOT_FOUND;
}
