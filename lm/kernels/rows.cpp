// What the rows of a logit matrix come to, in one pass each while they are in cache. In tensor operations the
// same takes eight passes over memory. The links g are those of lm/links.py.
//
//   rows     with m = max_v z_v of a row, leaves g(z_v) / g(m) * d log g / dz at z_v in place of the logits,
//            and returns m and the total, sum_v g(z_v) / g(m)
//   totals   m and the total alone; the logits stay
//   mixed    log sum_k exp(log g(z_kv) + offset_k), the log-probability of a mixture
//   columns  the sum of all rows, each times a factor
//
// Everything inside is float32, whatever the matrix holds. A NaN among the logits reaches the results.
//
// Vectors are GCC's and Clang's, so one source serves every width of register.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int lanes = 16;
typedef float vec __attribute__((vector_size(4 * lanes)));
typedef int32_t ivec __attribute__((vector_size(4 * lanes)));
typedef uint32_t uvec __attribute__((vector_size(4 * lanes)));
typedef uint16_t hvec __attribute__((vector_size(2 * lanes)));
typedef uint16_t bfloat16;

constexpr float infinity = std::numeric_limits<float>::infinity();

inline vec splat(float x) { return x - vec{}; }

// exp(x) for x <= 0 to about one unit in the last place: x = n log 2 + r with |r| <= log(2) / 2, and the
// series of exp(r). Below -87 it stays at exp(-87), the smallest that float32 holds in full.
inline vec exponential(vec x) {
    const vec shifter = splat(0x1.8p23f);
    x = x < -87.0f ? splat(-87.0f) : x;  // a NaN stays
    vec n = (x * 0x1.715476p0f + shifter) - shifter;
    vec r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    vec p = splat(0x1.6c16c2p-10f);
    p = p * r + 0x1.111112p-7f;
    p = p * r + 0x1.555556p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

// log(x) for normal x > 0, to about two units in the last place: x = 2^n (1 + f) with 1 + f between sqrt(1/2)
// and sqrt(2), and log(1 + f) = 2 artanh(s) with s = f / (2 + f).
inline vec logarithm(vec x) {
    ivec bits = (ivec)x, n = (bits - 0x3f3504f3) >> 23;
    vec f = (vec)(bits - (n << 23)) - 1.0f, s = f / (f + 2.0f), q = s * s;
    vec p = q * 0x1.c71c72p-4f + 0x1.24924ap-3f;
    p = p * q + 0x1.99999ap-3f;
    p = p * q + 0x1.555556p-2f;
    vec exponent = __builtin_convertvector(n, vec), tail = (exponent * 0x1.7f7d1cp-20f) + 2.0f * s * q * p;
    vec result = exponent * 0x1.62e4p-1f + (2.0f * s + tail);
    return x == x ? result : x;
}

inline vec load(const float* from) {
    vec x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

inline vec load(const bfloat16* from) {
    hvec x;
    std::memcpy(&x, from, sizeof x);
    return (vec)(__builtin_convertvector(x, uvec) << 16);
}

inline void store(float* to, vec x) { std::memcpy(to, &x, sizeof x); }

inline void store(bfloat16* to, vec x) {  // to nearest, ties to even; a NaN stays one
    uvec u = (uvec)x;
    uvec rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    hvec y = __builtin_convertvector(x == x ? rounded : uvec{} + 0x7fc0, hvec);
    std::memcpy(to, &y, sizeof y);
}

// The last columns of a row, padded to a vector with logits of -infinity.
template <typename T>
vec load_tail(const T* logits, const float* bias, long left) {
    T some[lanes] = {};
    float plus[lanes];
    for (int i = 0; i < lanes; i++) plus[i] = i < left ? bias[i] : -infinity;
    std::memcpy(some, logits, left * sizeof(T));
    return load(some) + load(plus);
}

struct Shares {
    vec plain, weighted;  // g(z) / g(m); the same times the slope
};

struct Softmax {  // g(z) = exp(z)
    float peak;

    Softmax(float peak, float) : peak(peak) {}

    Shares operator()(vec z) const {
        vec e = exponential(z - peak);
        return {e, e};
    }

    static vec log(vec z, float) { return z; }
};

// g(z) = exp(z) s(z) with s(z) = 1 / (1 + exp(-z - b)) and slope 2 - s. With e = exp(z - m), s is
// e a / (e a + c), where (a, c) is (exp(m + b), 1) or (1, exp(-m - b)), whichever does not overflow.
struct Sigsoftmax {
    float peak, a = 1, c = 1;

    Sigsoftmax(float peak, float shift) : peak(peak) {
        (peak + shift < 0 ? a : c) = std::exp(-std::fabs(peak + shift));
    }

    Shares operator()(vec z) const {
        vec e = exponential(z - peak), ratio = e / (e * a + c);  // e * e would underflow
        vec share = e * ((a + c) * ratio);
        return {share, share * (2 - a * ratio)};
    }

    static vec log(vec z, float shift) {
        vec s = z + shift, e = exponential(s < 0 ? s : -s);
        return z + (s < 0 ? s : vec{}) - logarithm(1.0f + e);
    }
};

template <typename Link, bool replace, typename T>
void do_row(T* logits, const float* bias, float shift, long columns, float* peak, float* total) {
    const long left = columns % lanes, whole = columns - left;
    vec most = load_tail(logits + whole, bias + whole, left);
    const vec last = most;
    for (long v = 0; v < whole; v += lanes) {
        vec z = load(logits + v) + load(bias + v);
        most = z > most ? z : most;
    }
    *peak = -infinity;
    for (int i = 0; i < lanes; i++) *peak = std::fmax(*peak, most[i]);

    const Link link(*peak, shift);
    vec sum{};
    for (long v = 0; v < whole; v += lanes) {
        Shares shares = link(load(logits + v) + load(bias + v));
        if (replace) store(logits + v, shares.weighted);
        sum += shares.plain;
    }
    const Shares rest = link(last);
    if (replace) {
        T some[lanes];
        store(some, rest.weighted);
        std::memcpy(logits + whole, some, left * sizeof(T));
    }
    *total = 0;
    for (int i = 0; i < lanes; i++) *total += sum[i];
    for (int i = 0; i < left; i++) *total += rest.plain[i];
}

template <bool replace, typename T>
void do_rows(int sigsoftmax, T* logits, const float* bias, float shift, long rows, long columns, float* peak,
             float* total, int threads) {
    auto row = sigsoftmax ? do_row<Sigsoftmax, replace, T> : do_row<Softmax, replace, T>;
#pragma omp parallel for num_threads(threads)
    for (long r = 0; r < rows; r++)
        row(logits + r * columns, bias, shift, columns, peak + r, total + r);
}

// One token's log-probabilities from the logits of its components.
template <typename Link, typename T>
void do_mixed_row(const T* logits, const float* bias, float shift, const float* offsets, long components,
                  long columns, float* out) {
    std::vector<vec> scores(components);
    for (long v = 0; v < columns; v += lanes) {
        const long left = columns - v;
        vec most = splat(-infinity), sum{}, plain{}, result;
        for (long k = 0; k < components; k++) {
            const T* z = logits + k * columns + v;
            vec logit = left < lanes ? load_tail(z, bias + v, left) : load(z) + load(bias + v);
            scores[k] = Link::log(logit, shift) + offsets[k];
            most = scores[k] > most ? scores[k] : most;
            plain += scores[k];
        }
        for (long k = 0; k < components; k++) sum += exponential(scores[k] - most);
        // where no component has the word, all scores are -infinity, or some are NaN: the plain sum is the same
        result = most > -infinity ? most + logarithm(sum) : plain;
        if (components == 1) result = scores[0];
        if (left < lanes)
            std::memcpy(out + v, &result, left * sizeof(float));
        else
            store(out + v, result);
    }
}

template <typename T>
void do_mixed(int sigsoftmax, const T* logits, const float* bias, float shift, const float* offsets, long tokens,
              long components, long columns, float* out, int threads) {
    auto row = sigsoftmax ? do_mixed_row<Sigsoftmax, T> : do_mixed_row<Softmax, T>;
#pragma omp parallel for num_threads(threads)
    for (long n = 0; n < tokens; n++)
        row(logits + n * components * columns, bias, shift, offsets + n * components, components, columns,
            out + n * columns);
}

// sums[v] = sum_r factors[r] matrix[r, v], a block of columns at a time so that the sums stay in cache.
template <typename T>
void do_columns(const T* matrix, const float* factors, long rows, long columns, float* sums, int threads) {
    constexpr long block = 64 * lanes;
#pragma omp parallel for num_threads(threads)
    for (long start = 0; start < columns; start += block) {
        const long end = start + block < columns ? start + block : columns, whole = end - (end - start) % lanes;
        for (long v = start; v < end; v++) sums[v] = 0;
        for (long r = 0; r < rows; r++) {
            const T* row = matrix + r * columns;
            for (long v = start; v < whole; v += lanes)
                store(sums + v, load(sums + v) + factors[r] * load(row + v));
            if (whole == end) continue;
            const float none[lanes] = {};
            vec rest = load_tail(row + whole, none, end - whole);
            for (int i = 0; i < end - whole; i++) sums[whole + i] += factors[r] * rest[i];
        }
    }
}

}  // namespace

extern "C" {

// logits (rows, columns) in place; bias (columns); peak, total (rows).
void rows_float32(int sigsoftmax, float* logits, const float* bias, float shift, long rows, long columns,
                  float* peak, float* total, int threads) {
    do_rows<true>(sigsoftmax, logits, bias, shift, rows, columns, peak, total, threads);
}

void rows_bfloat16(int sigsoftmax, bfloat16* logits, const float* bias, float shift, long rows, long columns,
                   float* peak, float* total, int threads) {
    do_rows<true>(sigsoftmax, logits, bias, shift, rows, columns, peak, total, threads);
}

// logits (rows, columns); bias (columns); peak, total (rows).
void totals_float32(int sigsoftmax, float* logits, const float* bias, float shift, long rows, long columns,
                    float* peak, float* total, int threads) {
    do_rows<false>(sigsoftmax, logits, bias, shift, rows, columns, peak, total, threads);
}

void totals_bfloat16(int sigsoftmax, bfloat16* logits, const float* bias, float shift, long rows,
                     long columns, float* peak, float* total, int threads) {
    do_rows<false>(sigsoftmax, logits, bias, shift, rows, columns, peak, total, threads);
}

// logits (tokens, components, columns); bias (columns); offsets (tokens, components); out (tokens, columns).
void mixed_float32(int sigsoftmax, const float* logits, const float* bias, float shift, const float* offsets,
                   long tokens, long components, long columns, float* out, int threads) {
    do_mixed(sigsoftmax, logits, bias, shift, offsets, tokens, components, columns, out, threads);
}

void mixed_bfloat16(int sigsoftmax, const bfloat16* logits, const float* bias, float shift,
                    const float* offsets, long tokens, long components, long columns, float* out,
                    int threads) {
    do_mixed(sigsoftmax, logits, bias, shift, offsets, tokens, components, columns, out, threads);
}

// matrix (rows, columns); factors (rows); sums (columns).
void columns_float32(const float* matrix, const float* factors, long rows, long columns, float* sums,
                     int threads) {
    do_columns(matrix, factors, rows, columns, sums, threads);
}

void columns_bfloat16(const bfloat16* matrix, const float* factors, long rows, long columns, float* sums,
                      int threads) {
    do_columns(matrix, factors, rows, columns, sums, threads);
}
}
