#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a program of this folder against another project's headers, which are not part of Lariat,
# and a build of Lariat with CUDA.
#   build.sh flashinfer BUILD DATA OUT      DATA: flashinfer/data of its wheel (include, cccl)
#   build.sh flash_attention BUILD REPO OUT REPO: a checkout of flash-attention with its cutlass
#   build.sh flash_mla BUILD REPO OUT       REPO: a checkout of FlashMLA with its cutlass
# BUILD: a build folder of Lariat (cmake -DLARIAT_CUDA=ON). ARCH: sm_90a unless set.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if (($# != 4)); then
  sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
which=$1 build=$2 theirs=$3 out=$4
sources=("$here/$which.cu")
case $which in
  flashinfer)
    flags=(-I "$theirs/cccl/libcudacxx/include" -I "$theirs/cccl/cub" -I "$theirs/cccl/thrust"
      -I "$theirs/include")
    ;;
  flash_attention)
    flags=(-I "$theirs/hopper" -I "$theirs/csrc/cutlass/include" --expt-extended-lambda
      --use_fast_math -DCUTLASS_ENABLE_GDC_FOR_SM90 -DNDEBUG)
    ;;
  flash_mla)
    flags=(-I "$theirs/csrc" -I "$theirs/csrc/sm90" -I "$theirs/csrc/kerutils/include"
      -I "$theirs/csrc/cutlass/include" -I "$theirs/csrc/cutlass/tools/util/include"
      --expt-extended-lambda --use_fast_math -DNDEBUG)
    ;;
  *)
    echo "build.sh: $which: allowed are flashinfer, flash_attention and flash_mla" >&2
    exit 2
    ;;
esac
begin=$SECONDS
"${NVCC:-nvcc}" -O2 -std=c++20 -arch="${ARCH:-sm_90a}" --expt-relaxed-constexpr -diag-suppress 177 \
  -I "$here/../../include" "${flags[@]}" "${sources[@]}" -o "$out" \
  -L "$build/src" -llariat -lcublasLt -lcublas -lopenblas -lcuda
echo "build.sh: $which in $((SECONDS - begin)) s"
