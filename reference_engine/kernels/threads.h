// Division of work among threads.

#pragma once

#include <omp.h>

#include <cstdint>

namespace {

// This thread's share of consecutive parts.
struct Share {
    int64_t first, stop;
    explicit Share(int64_t parts) {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        first = parts * thread / threads;
        stop = parts * (thread + 1) / threads;
    }
};

}  // namespace
