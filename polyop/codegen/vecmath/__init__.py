"""Scalar functions as IR on vectors: no library is called, and every function serves scalars and vectors of any width.

f32 and f64 have their own coefficients; 16-bit floats are computed in f32 and rounded, with no more terms
than that needs unless numerics are strict: right to 2/3 of their last place, for each number. NaN, infinities, signed zeros,
denormal arguments and results and overflow are those of C99 Annex F, with or without FMA. Units: the last place of the exact
result. `measured` is the greatest error seen over 120,000 points and the special values on all three targets; tests hold
every function to `bound`.

    function          bound   measured f32, f64     how
    exp, exp2          1.5     1.17  1.24           2^n e^r, |r| <= ln 2 / 2
    expm1              2.5     1.65  2.32
    sinh, cosh         2.5     1.57  2.46           e^x/2 - 1/(4 e^x/2); a polynomial below 1
    tanh               2.5     2.50  2.48           the sum of two arguments; of f32 2.4952, over all numbers
    sigmoid, silu      2.5     2.10  2.03           2^n / (2^n + e^-r), scaled once
    log, log2          1.0     0.76  0.80           fdlibm
    log1p              1.5     0.77  0.80           fdlibm
    softplus           3.0     2.54  2.45           max(x, 0) + 2 atanh(e / (2 + e)), e = e^-|x|
    sin, cos           2.5     1.46  2.26           reduced in f64; beyond 2^20 with as many bits of 2/pi as needed
    tan                4.0     3.19  3.53
    asin, acos, atan   2.5     2.34  2.13
    atan2              3.0
    erf                2.5     2.31  1.02           an odd polynomial below 1, then 1 - 2^L(|x|)
    gelu               4.5     3.71  3.64           max(x, 0) less a tail that keeps its relative accuracy; 5.5 in f64 without FMA
    rsqrt              1.5     1.45  1.48           1 / sqrt
    pow                1.5                          f32 by f64; f64 with log x as a sum of two numbers
    sqrt, mod, nextafter       exact

Where 2^n is made of bits (`scaling.py`), sigmoid is s / (s + s e^-x) and silu max(x, 0) - |x| / (1 + e^|x|); and exp of an f32's
distance from the greatest one of a row (`rewrite/sums/capped.py`) is right to 1.5 + |x| / 20, a part of what rounding that does.
"""
