// How threads wait for one another where other processes may want the same cores: they spin for a moment, then sleep.
#pragma once
#include <atomic>
#include <climits>
#include <cstdint>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace nightshift {

constexpr int64_t SPIN_NS = 40'000; // about what falling asleep and being woken costs
constexpr long SLEEP_NS = 1'000'000;
constexpr int PAUSES_PER_LOOK = 16;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Spins until so many ns have passed: `while (not ready && spin.goes_on());`
class Spin {
  public:
    explicit Spin(int64_t at_most_ns = SPIN_NS) : at_most_ns_(at_most_ns) {}

    bool goes_on() {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) pause();
        const int64_t now = now_ns();
        if (!began_) began_ = now;
        return now - began_ < at_most_ns_;
    }

    void begin_again() { began_ = 0; }

  private:
    const int64_t at_most_ns_;
    int64_t began_ = 0;
};

// Counts what others wait for: `seen = event.count(); if (not ready) event.sleep(seen);`
class Event {
  public:
    uint32_t count() const { return count_.load(); }

    void happened() {
        count_.fetch_add(1);
        if (num_asleep_.load()) syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }

    // Until it happens again after `seen`, or until `at_most_ns` have passed if that is not 0.
    void sleep(uint32_t seen, long at_most_ns) {
        const timespec at_most = {0, at_most_ns};
        num_asleep_.fetch_add(1);
        syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, at_most_ns ? &at_most : nullptr, nullptr, 0);
        num_asleep_.fetch_sub(1);
    }

  private:
    std::atomic<uint32_t> count_{0};
    std::atomic<int> num_asleep_{0};
};

} // namespace nightshift
