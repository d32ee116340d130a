# SPDX-License-Identifier: Apache-2.0
"""The C API of Lariat by ctypes: what the examples beside it need, as a start for more.

Every struct of lariat/lariat.h begins with struct_size; struct() sets it, and all that is not named
is 0, which stands for the default. Loads the library that LARIAT_C names, else liblariat_c.so.
"""
import ctypes
import os
from ctypes import (POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64,
                    c_void_p)

BF16, FP16, FP32 = 0, 1, 2
BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA, BACKEND_NULL = 0, 1, 2, 3
K, V = 0, 1
ABI_VERSION = 1


class Layer(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32)] + [(name, c_int32) for name in (
        "kind", "kv_heads", "k_dim", "v_dim", "rope", "window")]


class Rope(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("type", c_int32), ("style", c_int32),
                ("rotary_dim", c_int32), ("theta", c_double), ("factor", c_double),
                ("original_max_position_embeddings", c_int64)] + [
                    (name, c_double) for name in (
                        "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
                        "attention_factor", "mscale", "mscale_all_dim")] + [
                    ("short_factor", POINTER(c_double)), ("long_factor", POINTER(c_double)),
                    ("num_factors", c_int32), ("no_truncate", c_int32), ("turned_dim", c_int32),
                    ("mrope_layout", c_int32), ("num_mrope_sections", c_int32),
                    ("mrope_sections", c_int32 * 4), ("reserved", c_int32)]


class CacheConfig(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("layers", POINTER(Layer)),
                ("ropes", POINTER(Rope))] + [(name, kind) for kind, names in (
                    (c_int32, "num_layers num_ropes shard_rank shard_size backend device_ordinal"),
                    (c_int64, "num_blocks bytes"),
                    (c_int32, "unlimited block_size layout order reuse eviction"),
                    (c_int64, "max_pinned_blocks"),
                    (c_int32, "max_steps_in_flight max_sequences"),
                    (c_int64, "max_tokens_per_sequence max_tokens_per_step"),
                    (c_int64, "host_num_blocks host_bytes"),
                    (c_int32, "host_write host_write_after_hits"),
                    (c_int64, "host_clean_blocks"),
                    (c_int32, "reader_arrays cpu_threads"),
                    (c_void_p, "caller_memory"),
                    (c_int64, "caller_bytes max_events")) for name in names.split()]


class StepItem(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("num_positions", c_int32), ("sequence", c_uint64),
                ("num_tokens", c_int64), ("num_drafts", c_int64), ("positions", POINTER(c_int32))]


class Rows(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_int32), ("sequence", c_uint64),
                ("first_row", c_int64), ("start", c_int64), ("count", c_int64), ("hit", c_int64)]


class Commit(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("num_tokens", c_int32), ("sequence", c_uint64),
                ("kept", c_int64), ("tokens", POINTER(c_int32))]


class AppendInputs(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("k", c_void_p), ("v", c_void_p),
                ("q", c_void_p), ("q_heads", c_int32), ("dependent_launch", c_int32)] + [
                    (name, c_int64) for name in (
                        "k_token_stride", "k_head_stride", "v_token_stride", "v_head_stride",
                        "q_token_stride", "q_head_stride")]


def struct(kind, **fields):
    return kind(struct_size=ctypes.sizeof(kind), **fields)


class Error(Exception):
    """A call that failed; .code is a lariat_code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def _load():
    library = ctypes.CDLL(os.environ.get("LARIAT_C", "liblariat_c.so"))
    library.lariat_last_error.restype = c_char_p
    library.lariat_last_error.argtypes = [c_void_p]
    if library.lariat_abi_version() != ABI_VERSION:
        raise ImportError("liblariat_c.so has another version of the ABI")
    for name, *arguments in (
            ("cache_create", POINTER(CacheConfig), POINTER(c_void_p)),
            ("cache_layer_tensor", c_void_p, c_int32, c_int32, POINTER(c_void_p)),
            ("sequence_open", c_void_p, POINTER(c_int32), c_int64, c_void_p, POINTER(c_uint64)),
            ("sequence_close", c_void_p, c_uint64),
            ("sequence_block_table", c_void_p, c_uint64, c_int32, POINTER(POINTER(c_int32)),
             POINTER(c_int64)),
            ("step_plan", c_void_p, POINTER(StepItem), c_int32, c_void_p, c_void_p,
             POINTER(c_uint64)),
            ("step_get_rows", c_void_p, c_uint64, c_int32, POINTER(Rows)),
            ("step_prepare", c_void_p, c_uint64, c_void_p),
            ("step_append", c_void_p, c_uint64, c_int32, POINTER(AppendInputs), c_void_p),
            ("step_commit", c_void_p, c_uint64, POINTER(Commit), c_int32, c_void_p)):
        getattr(library, "lariat_" + name).argtypes = arguments
    library.lariat_cache_destroy.argtypes = [c_void_p]
    library.lariat_cache_destroy.restype = None
    return library


_lib = _load()


def _check(cache, code):
    if code != 0:
        raise Error(code, _lib.lariat_last_error(cache).decode())


class Cache:
    """One cache. Use it as a context, or call close()."""

    def __init__(self, layers, ropes=(), **fields):
        config = struct(CacheConfig, layers=(Layer * len(layers))(*layers), num_layers=len(layers),
                        ropes=(Rope * len(ropes))(*ropes), num_ropes=len(ropes), **fields)
        self._cache = c_void_p()
        _check(None, _lib.lariat_cache_create(byref(config), byref(self._cache)))

    def close(self):
        _lib.lariat_cache_destroy(self._cache)
        self._cache = c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def open(self, prompt):
        sequence = c_uint64()
        _check(self._cache, _lib.lariat_sequence_open(
            self._cache, (c_int32 * len(prompt))(*prompt), len(prompt), None, byref(sequence)))
        return sequence.value

    def close_sequence(self, sequence):
        _check(self._cache, _lib.lariat_sequence_close(self._cache, sequence))

    def block_table(self, sequence):
        blocks, count = POINTER(c_int32)(), c_int64()
        _check(self._cache, _lib.lariat_sequence_block_table(
            self._cache, sequence, 0, byref(blocks), byref(count)))
        return blocks[:count.value]

    def plan(self, *items):
        """A step of (sequence, number of rows) each; its number, and the rows of each item."""
        array = (StepItem * len(items))(*[
            struct(StepItem, sequence=sequence, num_tokens=tokens) for sequence, tokens in items])
        step = c_uint64()
        _check(self._cache, _lib.lariat_step_plan(self._cache, array, len(items), None, None,
                                                  byref(step)))
        rows = [struct(Rows) for _ in items]
        for i, one in enumerate(rows):
            _check(self._cache, _lib.lariat_step_get_rows(self._cache, step, i, byref(one)))
        return step.value, rows

    def prepare(self, step, stream=None):
        _check(self._cache, _lib.lariat_step_prepare(self._cache, step, stream))

    def append(self, step, layer, stream=None, **inputs):
        _check(self._cache, _lib.lariat_step_append(
            self._cache, step, layer, byref(struct(AppendInputs, **inputs)), stream))

    def commit(self, step, stream=None):
        _check(self._cache, _lib.lariat_step_commit(self._cache, step, None, 0, stream))

    def tensor(self, layer, which):
        """A layer's K or V for from_dlpack of numpy, torch, CuPy or JAX."""
        pointer = c_void_p()
        _check(self._cache, _lib.lariat_cache_layer_tensor(self._cache, layer, which,
                                                           byref(pointer)))
        return Tensor(pointer.value)


# --- DLPack ---------------------------------------------------------------------------------------


class DLManagedTensor(ctypes.Structure):
    """The fields up to the device, and the deleter behind the rest."""
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("rest", ctypes.c_byte * (64 - 16 - 8)),
                ("deleter", ctypes.CFUNCTYPE(None, c_void_p))]


_python = ctypes.pythonapi
_Destructor = ctypes.CFUNCTYPE(None, c_void_p)
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [c_void_p, c_char_p, _Destructor]
_python.PyCapsule_IsValid.argtypes = [c_void_p, c_char_p]
_python.PyCapsule_GetPointer.restype = c_void_p
_python.PyCapsule_GetPointer.argtypes = [c_void_p, c_char_p]


def _delete(pointer):
    DLManagedTensor.from_address(pointer).deleter(pointer)


@_Destructor
def _destroy(capsule):
    """A capsule that nobody took over still owns its tensor. (Its name tells.)"""
    if _python.PyCapsule_IsValid(capsule, b"dltensor"):
        _delete(_python.PyCapsule_GetPointer(capsule, b"dltensor"))


class Tensor:
    """Speaks Python's array-exchange protocol once. Who takes it over keeps the pool's memory, also
    beyond Cache.close(); one that nobody takes is given back here."""

    def __init__(self, pointer):
        self._pointer = pointer

    def __dlpack_device__(self):
        managed = DLManagedTensor.from_address(self._pointer)
        return managed.device_type, managed.device_id

    def __dlpack__(self, *, stream=None, **_):
        # Nothing to wait for: whoever reads orders its work behind the appends, by their stream.
        if self._pointer is None:
            raise RuntimeError("a Tensor can be taken once")
        pointer, self._pointer = self._pointer, None
        return _python.PyCapsule_New(pointer, b"dltensor", _destroy)

    def __del__(self):
        if getattr(self, "_pointer", None) is not None:
            _delete(self._pointer)
