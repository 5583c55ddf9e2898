// Products of a few rows with one matrix, again and again, as a loop over time needs them. A general product
// rearranges the matrix in every call, which costs more than the arithmetic when the rows are few; here it is
// packed once, in panels of columns that a product reads from one end to the other.
//
// Every number of the result is one sum over k in order, so it depends neither on the other rows nor on the
// number of threads.

#include <cstring>

namespace {

constexpr int lanes = 16, vectors = 2, width = lanes * vectors;
typedef float vec __attribute__((vector_size(4 * lanes)));

#ifdef __AVX512F__
constexpr int tall = 12;  // rows whose sums the registers hold
#else
constexpr int tall = 3;
#endif

inline vec load(const float* from) {
    vec x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <int R>
void tile(const float* x, long step, const float* panel, long inner, float* y, long y_step, long columns, bool add) {
    vec sums[R][vectors] = {};
    for (long k = 0; k < inner; k++) {
        vec w[vectors];
        for (int j = 0; j < vectors; j++) w[j] = load(panel + k * width + j * lanes);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < vectors; j++) sums[r][j] += x[r * step + k] * w[j];
    }
    for (int r = 0; r < R; r++) {
        float found[width];
        std::memcpy(found, sums[r], sizeof found);
        float* to = y + r * y_step;
        for (long c = 0; c < columns; c++) to[c] = add ? to[c] + found[c] : found[c];
    }
}

long panels_of(long columns) { return (columns + width - 1) / width; }

}  // namespace

// matrix (inner, columns) with any strides -> packed (panels, inner, width), padded with zeros.
extern "C" void pack_panels(const float* matrix, long inner, long columns, long inner_step, long column_step,
                            float* packed, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long p = 0; p < panels_of(columns); p++)
        for (long k = 0; k < inner; k++)
            for (long c = 0, n = p * width; c < width; c++, n++)
                packed[(p * inner + k) * width + c] = n < columns ? matrix[k * inner_step + n * column_step] : 0;
}

// y (rows, columns) = x (rows, inner) times the matrix, or what was in y plus that.
extern "C" void product(const float* x, long x_step, const float* packed, long rows, long inner, long columns,
                        float* y, long y_step, int add, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * inner * columns > 1000000)
    for (long p = 0; p < panels_of(columns); p++) {
        const float* panel = packed + p * inner * width;
        long left = columns - p * width < width ? columns - p * width : width, r = 0;
        auto from = [&] { return x + r * x_step; };
        auto to = [&] { return y + r * y_step + p * width; };
        for (; r + tall <= rows; r += tall) tile<tall>(from(), x_step, panel, inner, to(), y_step, left, add);
        for (; r + tall / 3 <= rows; r += tall / 3)
            tile<tall / 3>(from(), x_step, panel, inner, to(), y_step, left, add);
        for (; r < rows; r++) tile<1>(from(), x_step, panel, inner, to(), y_step, left, add);
    }
}
