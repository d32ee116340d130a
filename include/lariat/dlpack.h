/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LARIAT_DLPACK_H_
#define LARIAT_DLPACK_H_

/* The part of DLPack that lariat.h hands out: names, values and layout are those of DLPack 0.8 and
 * of the unversioned tensors of 1.x. Nothing is defined where DLPack's own header came first; who
 * uses both includes that one first. C11 and C++. */

#ifndef DLPACK_DLPACK_H_
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a device_type may be here. */
enum { kDLCPU = 1, kDLCUDA = 2 };

/* What a type code may be here. */
enum { kDLFloat = 2, kDLBfloat = 4 };

typedef struct DLDevice {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* elements */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self); /* called once, by whoever took the tensor over */
} DLManagedTensor;

#ifdef __cplusplus
}
#endif
#endif /* DLPACK_DLPACK_H_ */

#endif /* LARIAT_DLPACK_H_ */
