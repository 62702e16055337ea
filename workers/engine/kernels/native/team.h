// How threads share the work of one call, also where other processes want the same cores.
//
// One thread leads: it makes the calls in their order. Each is cut into chunks, of which every thread has a range; it
// takes from the range's front and, once that is empty, from the back of another's. Which thread computes a chunk
// changes none of its bits. A thread that waits spins for a moment and then sleeps: a thread that goes on spinning
// keeps the core from the one it waits for.
//
// A thread may lose its core in the middle of a chunk, for milliseconds. Where a chunk consists of parts that are
// computed in registers and written at the end, the leader takes such a chunk over: it computes what is left of it
// again, and the other drops what it has. Whichever of them is first claims the writing, so nothing is written twice.
#pragma once
#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <vector>

#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr int64_t SPIN_NS = 40'000; // about what falling asleep and being woken costs
constexpr long SLEEP_NS = 1'000'000; // at most, so that nothing depends on being woken
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

// Returns once `word` is no longer `value`, was woken, or at the latest after SLEEP_NS.
inline void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    const timespec at_most = {0, SLEEP_NS};
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &at_most, nullptr, 0);
}

inline void wake_all(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

// Spins until SPIN_NS have passed: `while (not ready && spin.goes_on());`
class Spin {
  public:
    bool goes_on() {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) pause();
        const int64_t now = now_ns();
        if (!began_) began_ = now;
        return now - began_ < SPIN_NS;
    }

  private:
    int64_t began_ = 0;
};

// What a thread holds, in one word: the call, the chunk, the part it computes, and whether it may still be taken over.
struct Held {
    enum State : uint64_t { NOTHING = 0, COMPUTING = 1, WRITING = 2, TAKEN = 3 };
    static constexpr int STATE_BITS = 2, PART_BITS = 18, CHUNK_BITS = 20;

    static uint64_t word(uint64_t call, uint64_t chunk, uint64_t part, State state) {
        return ((call << CHUNK_BITS | chunk) << PART_BITS | part) << STATE_BITS | state;
    }
    static bool is_computing(uint64_t word, uint64_t call) {
        return (word & 3) == COMPUTING && word >> (STATE_BITS + PART_BITS + CHUNK_BITS) == call;
    }
    static long chunk(uint64_t word) { return word >> (STATE_BITS + PART_BITS) & ((1 << CHUNK_BITS) - 1); }
    static long part(uint64_t word) { return word >> STATE_BITS & ((1 << PART_BITS) - 1); }
};

// The parts of one chunk, as its thread goes through them.
class Parts {
  public:
    Parts() = default; // of a chunk that nobody can take over
    Parts(std::atomic<uint64_t>& holds, uint64_t held) : first(Held::part(held)), holds_(&holds), held_(held) {}

    const long first = 0; // the part to begin with

    // Asked when a part is computed, before it is written. False: another thread has the chunk now, so leave it.
    bool may_write() {
        if (!holds_) return true;
#ifdef STALL_HELPERS // tests: every chunk of a helper has to be taken over
        if (omp_get_thread_num() != 0)
            while (holds_->load() == held_) pause();
#endif
        uint64_t expected = held_;
        is_lost_ = !holds_->compare_exchange_strong(expected, held_ - Held::COMPUTING + Held::WRITING);
        return !is_lost_;
    }

    // Told when the part has been written.
    void written() {
        if (!holds_) return;
        held_ += 1 << Held::STATE_BITS;
        holds_->store(held_, std::memory_order_release);
    }

    bool is_lost() const { return is_lost_; }

  private:
    std::atomic<uint64_t>* holds_ = nullptr;
    uint64_t held_ = 0;
    bool is_lost_ = false;
};

using RunChunk = void (*)(const void* context, long chunk, Parts& parts);

class Team {
  public:
    static constexpr long CHUNKS_MAX = (1 << Held::CHUNK_BITS) - 1, PARTS_MAX = (1 << Held::PART_BITS) - 1;

    explicit Team(int threads) : seats_(threads) {}

    // Compute all chunks; of the leader. With `has_parts`, `context` must stay until the team is closed, and so must
    // whatever memory a chunk reads: a thread may be in the middle of a chunk that was taken over from it.
    void run(RunChunk run_chunk, const void* context, long chunks, bool has_parts) {
        call_++;
        run_chunk_.store(run_chunk, std::memory_order_relaxed);
        context_.store(context, std::memory_order_relaxed);
        num_done_.store(0, std::memory_order_relaxed);
        const long threads = seats_.size();
        for (long t = 0; t < threads; t++)
            seats_[t].range.store(range(call_, chunks * t / threads, chunks * (t + 1) / threads), std::memory_order_release);
        announce(call_);
        work(0, call_);
        wait_for(chunks, has_parts);
    }

    // Help the leader until it closes the team; of every other thread.
    void help(int thread) {
        for (uint32_t call = 0; (call = call_after(call)) != CLOSED;) work(thread, call);
        num_left_.fetch_add(1);
        wake_all(num_left_);
    }

    // No call follows; returns when no helper is in the middle of anything.
    void close(uint32_t num_helpers) {
        announce(CLOSED);
        Spin spin;
        for (uint32_t left; (left = num_left_.load()) != num_helpers;)
            if (!spin.goes_on()) sleep_while(num_left_, left);
    }

  private:
    static constexpr uint32_t CLOSED = UINT32_MAX;

    struct alignas(64) Seat {
        std::atomic<uint64_t> range{0}; // call, first chunk, end
        std::atomic<uint64_t> holds{0};
    };

    static uint64_t range(uint64_t call, uint64_t first, uint64_t end) {
        return (call << Held::CHUNK_BITS | first) << Held::CHUNK_BITS | end;
    }

    void announce(uint32_t call) {
        announced_.store(call);
        if (is_a_helper_asleep_.load() && is_a_helper_asleep_.exchange(false)) wake_all(announced_);
    }

    uint32_t call_after(uint32_t last) {
        Spin spin;
        uint32_t call;
        while ((call = announced_.load()) == last) {
            if (spin.goes_on()) continue;
            is_a_helper_asleep_.store(true);
            sleep_while(announced_, last);
        }
        return call;
    }

    void work(int thread, uint32_t call) {
        // Another call's, if the leader has gone on meanwhile; but then no chunk of this one is left to take.
        const RunChunk run_chunk = run_chunk_.load(std::memory_order_relaxed);
        const void* context = context_.load(std::memory_order_relaxed);
        for (long chunk; (chunk = take(thread, call)) >= 0;) compute(thread, Held::word(call, chunk, 0, Held::COMPUTING), run_chunk, context);
    }

    void compute(int thread, uint64_t held, RunChunk run_chunk, const void* context) {
        std::atomic<uint64_t>& holds = seats_[thread].holds;
        holds.store(held);
        Parts parts(holds, held);
        run_chunk(context, Held::chunk(held), parts);
        if (parts.is_lost()) return;
        holds.store(Held::NOTHING);
        num_done_.fetch_add(1);
        if (is_leader_asleep_.load()) wake_all(num_done_);
    }

    // A chunk of the call: the first of one's own or the last of another's. -1 if none is left.
    long take(int thread, uint64_t call) {
        const int threads = seats_.size();
        for (int step = 0; step < threads; step++) {
            std::atomic<uint64_t>& range = seats_[(thread + step) % threads].range;
            constexpr uint64_t ONE_FIRST = 1 << Held::CHUNK_BITS, MASK = ONE_FIRST - 1;
            uint64_t now = range.load(std::memory_order_acquire);
            while (now >> (2 * Held::CHUNK_BITS) == call && (now >> Held::CHUNK_BITS & MASK) < (now & MASK)) {
                const uint64_t then = step == 0 ? now + ONE_FIRST : now - 1;
                if (range.compare_exchange_weak(now, then)) return step == 0 ? now >> Held::CHUNK_BITS & MASK : then & MASK;
            }
        }
        return -1;
    }

    void wait_for(uint32_t chunks, bool has_parts) {
        Spin spin;
        uint64_t suspect = 0;
        for (uint32_t done; (done = num_done_.load()) != chunks;) {
            if (spin.goes_on()) continue;
            if (has_parts && take_over(suspect)) {
                spin = Spin();
                continue;
            }
            is_leader_asleep_.store(true);
            if (num_done_.load() == done) sleep_while(num_done_, done);
            is_leader_asleep_.store(false);
        }
    }

    // Take over a chunk whose thread is where it was when looked at last. True: look again before sleeping.
    bool take_over(uint64_t& suspect) {
        for (size_t thread = 1; thread < seats_.size(); thread++) {
            std::atomic<uint64_t>& holds = seats_[thread].holds;
            uint64_t held = holds.load();
            if (!Held::is_computing(held, call_)) continue;
            if (held == suspect && holds.compare_exchange_strong(held, held - Held::COMPUTING + Held::TAKEN))
                compute(0, held, run_chunk_.load(std::memory_order_relaxed), context_.load(std::memory_order_relaxed));
            suspect = held;
            return true;
        }
        return false;
    }

    std::vector<Seat> seats_;
    uint32_t call_ = 0; // of the leader
    std::atomic<RunChunk> run_chunk_{nullptr};
    std::atomic<const void*> context_{nullptr};
    alignas(64) std::atomic<uint32_t> announced_{0};
    std::atomic<bool> is_a_helper_asleep_{false};
    alignas(64) std::atomic<uint32_t> num_done_{0};
    std::atomic<bool> is_leader_asleep_{false};
    std::atomic<uint32_t> num_left_{0};
};

// Call `lead` with a team of all threads that OpenMP gives this one, or with null where that is one thread.
template <class Lead> void with_team(const Lead& lead) {
    const int threads = omp_get_max_threads();
    if (threads == 1) return lead((Team*)nullptr);
    Team team(threads);
#pragma omp parallel num_threads(threads)
    {
        if (const int thread = omp_get_thread_num()) team.help(thread);
        else {
            lead(&team);
            team.close(omp_get_num_threads() - 1);
        }
    }
}

template <class Run> void run_in_team(Team* team, bool is_worth_sharing, const Run& run) {
    if (!is_worth_sharing) run((Team*)nullptr);
    else if (team) run(team);
    else with_team(run);
}

// Call `run_chunk` for chunks 0 to `chunks`, by all threads of the team where that is worth it. A null team is made for
// the call. `run_chunk` goes through its parts as `Parts` says, at most Team::PARTS_MAX.
inline void share_parts(Team* team, bool is_worth_sharing, long chunks, RunChunk run_chunk, const void* context) {
    run_in_team(team, is_worth_sharing && chunks > 1, [&](Team* team) {
        if (team) return team->run(run_chunk, context, chunks, true);
        for (long chunk = 0; chunk < chunks; chunk++) {
            Parts parts;
            run_chunk(context, chunk, parts);
        }
    });
}

// Call body(first, end) for pieces of [0, count), each of `piece` or fewer, as above but for chunks without parts.
template <class Body> void share(Team* team, bool is_worth_sharing, long count, long piece, const Body& body) {
    piece = std::max(piece, count / Team::CHUNKS_MAX + 1);
    struct Pieces {
        const Body& body;
        long count, piece;
        static void run(const void* context, long chunk, Parts&) {
            const Pieces& all = *(const Pieces*)context;
            all.body(chunk * all.piece, std::min(all.count, (chunk + 1) * all.piece));
        }
    } const pieces{body, count, piece};
    const long chunks = (count + piece - 1) / piece;
    run_in_team(team, is_worth_sharing && chunks > 1, [&](Team* team) {
        if (team) team->run(Pieces::run, &pieces, chunks, false);
        else if (count) body(0L, count);
    });
}

constexpr int64_t ELEMENTS_WORTH_SHARING = 1 << 14; // about what waking a thread costs
constexpr int64_t ELEMENTS_PER_PIECE = 1 << 12;

// body(row) for all rows of so many elements.
template <class Body> void share_rows(Team* team, long rows, long elements, const Body& body) {
    const long piece = elements ? (ELEMENTS_PER_PIECE + elements - 1) / elements : rows;
    share(team, rows * elements > ELEMENTS_WORTH_SHARING, rows, piece, [&](long first, long end) {
        for (long row = first; row < end; row++) body(row);
    });
}

} // namespace
