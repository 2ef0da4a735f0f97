"""Hand-written nests of the kinds the generators make: distributed, fused rows, packed and chunked contractions, scans."""

from __future__ import annotations

import re

from .texts import nest, operator

MATMUL = operator("C[m, n] += A[m, k] * B[k, n]", inputs="A[M, K], B[K, N]", outputs="C[M, N]", ranges="m:M n:N k:K",
                  name="matmul")

MATMUL_LOOPS = nest(MATMUL, """
    for m in 0, M: parallel
        for n in 0, N:
            C_init(m, n): C[m, n] = 0.0
    for m in 0, M: parallel
        for n in 0, N:
            for k in 0, K:
                S0(m, n, k): C[m, n] += A[m, k] * B[k, n]
""")

MATMUL_PACKED_TEXT = """
    buffer acc[6, 64] reg
    buffer right[512 by 64, 512, 64] work private
    if K <= 0:
        for m in 0, M:
            for n in 0, N:
                C_init(m, n): C[m, n] = 0.0
    for m_c in 0, M, 4800: parallel
        for k_c in 0, K, 512:
            for n_c in 0, N, 512:
                for m_r in 0, min(4800, M - m_c), 6:
                    for n_r in 0, min(512, N - n_c), 64:
                        for n_v in 0, min(64, N - n_c - n_r): lanes 64
                            if k_c >= 512:
                                for m_p in 0, min(6, M - m_c - m_r): rows 6
                                    - acc[m_p, n_v] = C[m_c + m_p + m_r, n_c + n_r + n_v]
                            else:
                                for m_p in 0, min(6, M - m_c - m_r): rows 6
                                    C_init(m_c + m_r + m_p, n_c + n_r + n_v): acc[m_p, n_v] = 0.0
                            for k_p in 0, min(512, K - k_c):
                                if m_r >= 0, m_r <= 0:
                                    - right[n_r, k_p, n_v] = B[k_c + k_p, n_c + n_r + n_v]
                                for m_p in 0, min(6, M - m_c - m_r): rows 6
                                    S0(m_c + m_r + m_p, n_c + n_r + n_v, k_c + k_p): \
acc[m_p, n_v] += A[m_c + m_p + m_r, k_c + k_p] * right[n_r, k_p, n_v]
                            for m_p in 0, min(6, M - m_c - m_r): rows 6
                                - C[m_c + m_p + m_r, n_c + n_r + n_v] = acc[m_p, n_v]
"""
MATMUL_PACKED = nest(MATMUL, MATMUL_PACKED_TEXT)

MATMUL_DOTS_TEXT = """
    buffer acc[2, 2] reg
    buffer right[4 by 2, 4 by 2, 2, 2] work private
    if K <= 0:
        for m in 0, M:
            for n in 0, N:
                C_init(m, n): C[m, n] = 0.0
    for m_c in 0, M, 4: parallel
        for k_c in 0, K, 4:
            for n_c in 0, N, 4:
                for m_r in 0, min(4, M - m_c), 2:
                    for n_r in 0, min(4, N - n_c), 2:
                        for n_v in 0, min(2, N - n_c - n_r): lanes 2
                            if k_c >= 4:
                                for m_p in 0, min(2, M - m_c - m_r): rows 2
                                    - acc[m_p, n_v] = C[m_c + m_p + m_r, n_c + n_r + n_v]
                            else:
                                for m_p in 0, min(2, M - m_c - m_r): rows 2
                                    C_init(m_c + m_r + m_p, n_c + n_r + n_v): acc[m_p, n_v] = 0.0
                            for k_p in 0, min(4, K - k_c), 2:
                                if m_r >= 0, m_r <= 0:
                                    for k_f in 0, min(2, K - k_c - k_p): rows 2
                                        - right[n_r, k_p, n_v, k_f] = B[k_c + k_p + k_f, n_c + n_r + n_v]
                                for m_p in 0, min(2, M - m_c - m_r): rows 2
                                    for k_f in 0, min(2, K - k_c - k_p): rows 2
                                        S0(m_c + m_r + m_p, n_c + n_r + n_v, k_c + k_p + k_f): \
acc[m_p, n_v] += A[m_c + m_p + m_r, k_c + k_p + k_f] * right[n_r, k_p, n_v, k_f]
                            for m_p in 0, min(2, M - m_c - m_r): rows 2
                                - C[m_c + m_p + m_r, n_c + n_r + n_v] = acc[m_p, n_v]
"""

BIAS_RELU = operator("""C[m, n] += A[m, k] * B[k, n]
                        D[m, n] = relu(C[m, n] + b[n])""",
                     inputs="A[M, K], B[K, N], b[N]", outputs="D[M, N]", temps="C[M, N]", ranges="m:M n:N k:K", where="K >= 1",
                     name="bias_relu")

BIAS_RELU_PACKED_TEXT = """
    buffer acc[6, 64] reg
    buffer left[M, min(512, K)] work private
    buffer right[512 by 64, 512, 64] work private
    for m_c in 0, M, 4800: parallel
        for k_c in 0, K, 512:
            for k_x in 0, min(512, K - k_c), 16:
                for m_x in 0, min(4800, M - m_c), 16:
                    for m_s in 0, min(16, M - m_c - m_x): rows 16
                        for k_l in 0, min(16, K - k_c - k_x): lanes 16
                            - left[m_s + m_x, k_l + k_x] = A[m_c + m_s + m_x, k_c + k_l + k_x]
            for n_c in 0, N, 512:
                for n_r in 0, min(512, N - n_c), 64:
                    for k_p in 0, min(512, K - k_c):
                        for n_v in 0, min(64, N - n_c - n_r): lanes 64
                            - right[n_r, k_p, n_v] = B[k_c + k_p, n_c + n_r + n_v]
                for m_r in 0, min(4800, M - m_c), 6:
                    for n_r in 0, min(512, N - n_c), 64:
                        for n_v in 0, min(64, N - n_c - n_r): lanes 64
                            if k_c >= 512:
                                for m_p in 0, min(6, M - m_c - m_r): rows 6
                                    - acc[m_p, n_v] = D[m_c + m_p + m_r, n_c + n_r + n_v]
                            else:
                                for m_p in 0, min(6, M - m_c - m_r): rows 6
                                    C_init(m_c + m_r + m_p, n_c + n_r + n_v): acc[m_p, n_v] = 0.0
                            for k_p in 0, min(512, K - k_c):
                                for m_p in 0, min(6, M - m_c - m_r): rows 6
                                    S0(m_c + m_r + m_p, n_c + n_r + n_v, k_c + k_p): \
acc[m_p, n_v] += left[m_p + m_r, k_p] * right[n_r, k_p, n_v]
                            if K - k_c - 513 >= 0:
                                for m_p in 0, min(6, M - m_c - m_r): rows 6
                                    - D[m_c + m_p + m_r, n_c + n_r + n_v] = acc[m_p, n_v]
                            else:
                                for m_p in 0, min(6, M - m_c - m_r): rows 6
                                    S1(m_c + m_r + m_p, n_c + n_r + n_v): \
D[m_c + m_p + m_r, n_c + n_r + n_v] = relu(acc[m_p, n_v] + b[n_c + n_r + n_v])
"""
BIAS_RELU_PACKED = nest(BIAS_RELU, BIAS_RELU_PACKED_TEXT)

SOFTMAX = operator("""top[r] max= X[r, c]
                      e[r, c] = exp(X[r, c] - top[r])
                      total[r] += e[r, c]
                      Y[r, c] = e[r, c] / total[r]""",
                   inputs="X[R, C]", outputs="Y[R, C]", temps="top[R], e[R, C], total[R]", ranges="r:R c:C", name="softmax")

SOFTMAX_ROWS_TEXT = """
    buffer top[1] reg
    buffer top_lanes[64] reg
    buffer total[1] reg
    buffer total_lanes[64] reg
    for r in 0, R: parallel
        top_init(r): top[0] = -inf
        for c_v in 0, 64: lanes 64
            - top_lanes[c_v] = -inf
        for c_t in 0, C, 64:
            for c_v in 0, min(64, C - c_t): lanes 64
                S0(r, c_t + c_v): top_lanes[c_v] max= X[r, c_t + c_v]
        for c_v in 0, 64: lanes 64
            - top[0] max= top_lanes[c_v]
        total_init(r): total[0] = 0.0
        for c_v in 0, 64: lanes 64
            - total_lanes[c_v] = 0.0
        for c_t in 0, C, 64:
            for c_v in 0, min(64, C - c_t): lanes 64
                S1(r, c_t + c_v): Y[r, c_t + c_v] = exp(X[r, c_t + c_v] - top[0])
                S2(r, c_t + c_v): total_lanes[c_v] += Y[r, c_t + c_v]
        for c_v in 0, 64: lanes 64
            - total[0] += total_lanes[c_v]
        for c_t in 0, C, 64:
            for c_v in 0, min(64, C - c_t): lanes 64
                S3(r, c_t + c_v): Y[r, c_t + c_v] = Y[r, c_t + c_v] / total[0]
"""
SOFTMAX_ROWS = nest(SOFTMAX, SOFTMAX_ROWS_TEXT)

SOFTMAX_LOOPS = nest(SOFTMAX, """
    buffer top[R] work
    buffer e[R, C] work
    buffer total[R] work
    for r in 0, R: parallel
        top_init(r): top[r] = -inf
    for r in 0, R: parallel
        for c in 0, C:
            S0(r, c): top[r] max= X[r, c]
    for r in 0, R: parallel
        for c in 0, C:
            S1(r, c): e[r, c] = exp(X[r, c] - top[r])
    for r in 0, R: parallel
        total_init(r): total[r] = 0.0
    for r in 0, R: parallel
        for c in 0, C:
            S2(r, c): total[r] += e[r, c]
    for r in 0, R: parallel
        for c in 0, C:
            S3(r, c): Y[r, c] = e[r, c] / total[r]
""")

CONV = operator("Y[n, p, q, o] += guard(I[n, p + r - 1, q + s - 1, c], 0 <= p + r - 1 < H, 0 <= q + s - 1 < W) * F[r, s, c, o]",
                inputs="I[B, H, W, C], F[3, 3, C, O]", outputs="Y[B, H, W, O]", ranges="n:B p:H q:W o:O r:3 s:3 c:C",
                where="C >= 1", name="conv")

CONV_PACKED_TEXT = """
    buffer acc[6, 64] reg
    buffer right[448 by 64, 3, 3, 64, 64] work
    for q_c in 0, W, 4800:
        for c_c in 0, C, 64:
            for o_c in 0, O, 448:
                for n in 0, B:
                    for p in 0, H:
                        for q_r in 0, min(4800, W - q_c), 6:
                            for o_r in 0, min(448, O - o_c), 64:
                                for o_v in 0, min(64, O - o_c - o_r): lanes 64
                                    if c_c >= 64:
                                        for q_p in 0, min(6, W - q_c - q_r): rows 6
                                            - acc[q_p, o_v] = Y[n, p, q_c + q_p + q_r, o_c + o_r + o_v]
                                    else:
                                        for q_p in 0, min(6, W - q_c - q_r): rows 6
                                            Y_init(n, p, q_c + q_r + q_p, o_c + o_r + o_v): acc[q_p, o_v] = 0.0
                                    for r in 0, 3:
                                        for s in 0, 3:
                                            for c_p in 0, min(64, C - c_c):
                                                if n <= 0, p <= 0, q_r <= 0:
                                                    - right[o_r, r, s, c_p, o_v] = F[r, s, c_c + c_p, o_c + o_r + o_v]
                                                for q_p in 0, min(6, W - q_c - q_r): rows 6
                                                    S0(n, p, q_c + q_r + q_p, o_c + o_r + o_v, r, s, c_c + c_p): \
acc[q_p, o_v] += guard(I[n, p + r - 1, q_c + q_p + q_r + s - 1, c_c + c_p], 0 <= p + r - 1 < H, \
0 <= q_c + q_p + q_r + s - 1 < W) * right[o_r, r, s, c_p, o_v]
                                    for q_p in 0, min(6, W - q_c - q_r): rows 6
                                        - Y[n, p, q_c + q_p + q_r, o_c + o_r + o_v] = acc[q_p, o_v]
"""
CONV_PACKED = nest(CONV, CONV_PACKED_TEXT)

CONV1 = operator("Y[i] += guard(X[i + r - 1], 0 <= i + r - 1 < N) * F[r]", inputs="X[N], F[3]", outputs="Y[N]",
                 ranges="i:N r:3", name="conv1")

CONV1_PADDED_TEXT = """
    buffer P[N + 2] work
    for i in 0, N + 2:
        - P[i] = X[i - 1] if 1 <= i <= N else 0.0
    for i in 0, N: parallel
        Y_init(i): Y[i] = 0.0
        for r in 0, 3:
            S0(i, r): Y[i] += P[i + r] * F[r]
"""
CONV1_PADDED = nest(CONV1, CONV1_PADDED_TEXT)


LOWER = operator("""s[i, j] += Q[i, d] * K[j, d] | | j <= i
                    Y[i] max= s[i, j] | | j <= i""",
                 inputs="Q[S, D], K[S, D]", outputs="Y[S]", temps="s[S, S]", ranges="i:S j:S d:D")

LOWER_TRIANGLE = nest(LOWER, """
    buffer s[S, S] work
    for i in 0, S: parallel
        for j in 0, i + 1:
            s_init(i, j): s[i, j] = 0.0
            for d in 0, D:
                S0(i, j, d): s[i, j] += Q[i, d] * K[j, d]
    for i in 0, S:
        Y_init(i): Y[i] = -inf
        for j in 0, min(S, i + 1):
            S1(i, j): Y[i] max= s[i, j]""")


def small(text: str) -> str:
    """The text of a nest with tiles of a few elements, so that a few elements fill several of them."""
    tiles = {"4800": "4", "513": "5", "512": "4", "448": "4", "64": "2", "16": "2", "6": "2"}
    return re.sub(r"\b\d+\b", lambda m: tiles.get(m[0], m[0]), text)
