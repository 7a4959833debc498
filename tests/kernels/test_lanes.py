"""Exponential, logarithm and inverse of the kernels against numpy, in units in the last place."""

import numpy as np
import pytest
from numba import njit

from unified_attn.kernels import lanes as of


def pointwise(operation, dtype):
    bits, kind = 8 * np.dtype(dtype).itemsize, of.MANY  # constants of the function: lanes asks for that

    @njit
    def run(source, target, size):
        like = of.lanes(bits, 8, kind)
        for n in range(0, size, 8):
            at = n * of.float_size(like)
            of.store(target + at, operation(of.load(like, source + at, 8)), 8)

    def call(values):
        source = np.ascontiguousarray(values, dtype=dtype)
        target = np.empty_like(source)
        run(source.ctypes.data, target.ctypes.data, source.size)
        return target

    return call


def units(found, exact):
    """Greatest distance in units in the last place of what is exact."""
    return float(np.max(np.abs(found.astype(exact.dtype) - exact) / np.spacing(np.abs(exact).astype(found.dtype))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log(dtype):
    log = pointwise(of.log, dtype)
    random = np.random.default_rng(0)
    smallest, largest = np.finfo(dtype).tiny, np.finfo(dtype).max
    values = [1 + random.uniform(-0.3, 0.5, 4000), random.uniform(1, 500, 4000)]
    values = np.concatenate(
        [*values, np.exp(random.uniform(-80, 80, 4000)), [smallest, largest, 0.5, 2, 3, 7, 10, 1.5]]
    )
    values = values.astype(dtype)[values.astype(dtype) != 1]
    values = values[: values.size // 8 * 8]
    assert units(log(values), np.log(values.astype(np.longdouble))) <= 3
    special = log(np.array([1, 0, np.inf, np.nan, 1, 0, 1, 1]))
    np.testing.assert_array_equal(special, [0, -np.inf, np.inf, np.nan, 0, -np.inf, 0, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp(dtype):
    exp = pointwise(of.exp, dtype)
    random = np.random.default_rng(0)
    values = np.concatenate([-random.uniform(0, 1, 4000), -random.uniform(0, 86, 4000)]).astype(dtype)
    assert units(exp(values), np.exp(values.astype(np.longdouble))) <= 2
    special = exp(np.array([0, -np.inf, np.nan, -1e9, 0, -0.0, 0, 0]))
    np.testing.assert_array_equal(special, [1, 0, np.nan, 0, 1, 1, 1, 1])


def test_inverse_and_finite():
    values = np.array([0, 1, -2, np.inf, np.nan, 4, -0.0, 0.5])
    np.testing.assert_array_equal(pointwise(of.inverse, np.float64)(values), [1, 1, -0.5, 0, np.nan, 0.25, 1, 2])
    values[2] = -np.inf
    np.testing.assert_array_equal(pointwise(of.finite, np.float64)(values), [0, 1, 0, np.inf, np.nan, 4, 0, 0.5])
