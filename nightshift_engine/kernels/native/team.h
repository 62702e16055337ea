// Threads that go through the same calls together, also where other processes want their cores.
//
// All threads of a team run the same code, call after call. Each call is cut into chunks, of which every thread has a
// range: it takes from the range's front and, once that is empty, from the back of another's. A thread goes on to the next
// call when all chunks of this one are computed, so a thread that lost its core holds up nothing but the chunk it is in.
// Which thread computes a chunk changes none of its bits.
//
// Where a chunk consists of parts that are computed in registers and written at the end, a thread that waits takes over
// the chunk of one that stands still: it computes what is left of it again, and the other drops what it has. The first
// of them to claim the writing writes, so nothing is written twice.
//
// One thread leads: it opens a run and closes it. The others, the helpers, come when they get a core, or not at all.
#pragma once
#include <algorithm>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include <sched.h>
#include <signal.h>

#include "waiting.h"

namespace nightshift {

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
    Parts() = default; // of a chunk that cannot be taken over
    Parts(std::atomic<uint64_t>& holds, uint64_t held) : first(Held::part(held)), holds_(&holds), held_(held) {}

    const long first = 0; // the part to begin with

    // Asked when a part is computed, before it is written. False: another thread has the chunk now, so leave it.
    bool may_write() {
        if (!holds_) return true;
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

    // Told at the end of the chunk. False: another thread finishes it.
    bool may_finish() {
        uint64_t expected = held_;
        return !is_lost_ && holds_->compare_exchange_strong(expected, Held::NOTHING);
    }

  private:
    std::atomic<uint64_t>* holds_ = nullptr;
    uint64_t held_ = 0;
    bool is_lost_ = false;
};

using RunChunk = void (*)(const void* context, long chunk, Parts& parts);

// The chunks of the call that a run is at. Calls are numbered from 1, at most 2^24 in a run.
class Chunks {
  public:
    static constexpr long CHUNKS_MAX = (1 << Held::CHUNK_BITS) - 1, PARTS_MAX = (1 << Held::PART_BITS) - 1;

    void reset(int threads) {
        while (int(seats_.size()) < threads) seats_.emplace_back();
        for (Seat& seat : seats_) {
            seat.range = 0, seat.holds = Held::NOTHING;
            seat.suspects.assign(threads, 0);
        }
        threads_ = threads;
        done_ = 0;
    }

    // Compute chunks of the call until all of them are computed, by this thread or by others. `has_parts`: chunks may be
    // taken over.
    void go_through(int thread, uint64_t call, RunChunk run_chunk, const void* context, long chunks, bool has_parts) {
        begin(call, chunks);
        const Work work{thread, call, run_chunk, context, chunks};
        for (long chunk; (chunk = take(thread, call)) >= 0;) compute(work, Held::word(call, chunk, 0, Held::COMPUTING));
        wait_for_others(work, has_parts);
    }

  private:
    struct alignas(64) Seat {
        std::atomic<uint64_t> range{0}; // call, first chunk, end
        std::atomic<uint64_t> holds{0};
        std::vector<uint64_t> suspects; // what its thread has seen others hold
    };
    struct Work {
        int thread;
        uint64_t call;
        RunChunk run_chunk;
        const void* context;
        long chunks;
    };
    static constexpr int DONE_BITS = 32;

    static uint64_t range(uint64_t call, uint64_t first, uint64_t end) {
        return (call << Held::CHUNK_BITS | first) << Held::CHUNK_BITS | end;
    }

    // By every thread that comes to the call; the first one's words stay.
    void begin(uint64_t call, long chunks) {
        advance(done_, call << DONE_BITS, call, DONE_BITS);
        for (long t = 0; t < threads_; t++)
            advance(seats_[t].range, range(call, chunks * t / threads_, chunks * (t + 1) / threads_), call, 2 * Held::CHUNK_BITS);
    }

    static void advance(std::atomic<uint64_t>& word, uint64_t to, uint64_t call, int call_shift) {
        uint64_t now = word.load();
        while (now >> call_shift < call && !word.compare_exchange_weak(now, to));
    }

    bool is_done(uint64_t call, long chunks) const {
        const uint64_t done = done_.load();
        return done >> DONE_BITS > call || (done >> DONE_BITS == call && long(done & UINT32_MAX) == chunks);
    }

    // A chunk of the call: the first of one's own or the last of another's. -1 if none is left.
    long take(int thread, uint64_t call) {
        for (int step = 0; step < threads_; step++) {
            std::atomic<uint64_t>& range = seats_[(thread + step) % threads_].range;
            constexpr uint64_t ONE_FIRST = 1 << Held::CHUNK_BITS, MASK = ONE_FIRST - 1;
            uint64_t now = range.load();
            while (now >> (2 * Held::CHUNK_BITS) == call && (now >> Held::CHUNK_BITS & MASK) < (now & MASK)) {
                const uint64_t then = step == 0 ? now + ONE_FIRST : now - 1;
                if (range.compare_exchange_weak(now, then)) return step == 0 ? now >> Held::CHUNK_BITS & MASK : then & MASK;
            }
        }
        return -1;
    }

    void compute(const Work& work, uint64_t held) {
        std::atomic<uint64_t>& holds = seats_[work.thread].holds;
        holds.store(held);
        Parts parts(holds, held);
        work.run_chunk(work.context, Held::chunk(held), parts);
        if (!parts.may_finish()) return;
        if (long((done_.fetch_add(1) + 1) & UINT32_MAX) == work.chunks) call_done_.happened();
    }

    void wait_for_others(const Work& work, bool has_parts) {
        Spin spin;
        while (!is_done(work.call, work.chunks)) {
            if (spin.goes_on()) continue;
            if (has_parts && take_over(work)) {
                spin.begin_again();
                continue;
            }
            const uint32_t seen = call_done_.count();
            if (!is_done(work.call, work.chunks)) call_done_.sleep(seen, SLEEP_NS); // not longer: a thread may get stuck
        }
    }

    // Take over chunks whose threads are where they were when looked at last. True: look again before sleeping.
    bool take_over(const Work& work) {
        std::vector<uint64_t>& suspects = seats_[work.thread].suspects;
        bool look_again = false;
        for (int t = 0; t < threads_; t++) {
            uint64_t held = seats_[t].holds.load();
            if (t == work.thread || !Held::is_computing(held, work.call)) continue;
            if (held == suspects[t] && seats_[t].holds.compare_exchange_strong(held, held - Held::COMPUTING + Held::TAKEN))
                compute(work, held);
            suspects[t] = held;
            look_again = true;
        }
        return look_again;
    }

    std::deque<Seat> seats_;
    int threads_ = 0;
    alignas(64) std::atomic<uint64_t> done_{0}; // call, number of its chunks that are computed
    Event call_done_;
};

// What passes between two steps of an engine. A thread that sleeps for it waits for a core again afterwards, where another
// process has taken it meanwhile, and has missed a good part of the step.
constexpr int64_t SPIN_BETWEEN_RUNS_NS = 1'000'000;

class Team;

// One thread's place in a run of a team.
class Member {
  public:
    Member(Team& team, int thread) : team_(team), thread_(thread) {}

    // The next call, which must be the same for every member. Returns when all its chunks are computed.
    void call(RunChunk run_chunk, const void* context, long chunks, bool has_parts);

    // `floats` for all members to use until they ask again; null if there is no memory. What a late thread still reads
    // of it is there until the run ends.
    float* workspace(int64_t floats);

  private:
    Team& team_;
    const int thread_;
    uint64_t call_ = 0;
};

class Team {
  public:
    using Lead = void (*)(const void* code, Member& member);

    // Run `lead(code, member)` by so many threads: this one, and helpers as they come. Returns when all have left it.
    void run(int threads, Lead lead, const void* code) {
        add_helpers(threads - 1);
        chunks.reset(threads);
        if (memory.size() > 1) memory.erase(memory.begin(), memory.end() - 1);
        lead_ = lead, code_ = code;
        leader_ = gettid(), leader_cpu_ = sched_getcpu();
        threads_ = threads;
        state_.store(state_.load() + IS_OPEN);
        opened_.happened();
        Member member(*this, 0);
        lead(code, member);
        close();
    }

    Chunks chunks;
    std::vector<std::vector<float>> memory; // the last is the largest, and in use
    std::atomic<float*> workspace{nullptr};

  private:
    // Low half of the state: how many helpers are in the run. High half: changes whenever a run opens or closes, odd: open.
    static constexpr uint64_t IS_OPEN = uint64_t(1) << 32;
    static bool is_open(uint64_t state) { return state & IS_OPEN; }
    static uint32_t num_inside(uint64_t state) { return state; }

    // A team lives as long as the process, and its helpers with it.
    void add_helpers(int count) {
        while (num_helpers_ < count) {
            sigset_t all, before;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the process's other threads
            try {
                std::thread helper(&Team::help, this, num_helpers_ + 1);
                pthread_setname_np(helper.native_handle(), "nightshift-team"); // `step_threads.py` looks for it
                helper.detach();
                num_helpers_++;
            } catch (const std::system_error&) {
                count = 0; // as many as the system gives
            }
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
        }
    }

    void help(int thread) {
        for (uint64_t run = 0;; run = wait_for_run_after(run)) {
            if (thread >= threads_ || !enter(run)) continue;
            keep_off_the_leaders_core();
            Member member(*this, thread);
            lead_(code_, member);
            if (const uint64_t left = state_.fetch_sub(1) - 1; !is_open(left) && num_inside(left) == 0) emptied_.happened();
        }
    }

    uint64_t wait_for_run_after(uint64_t last) {
        Spin spin(SPIN_BETWEEN_RUNS_NS);
        for (;;) {
            const uint32_t seen = opened_.count();
            const uint64_t state = state_.load();
            if (is_open(state) && state >> 32 != last) return state >> 32;
            if (!spin.goes_on()) opened_.sleep(seen, 0);
        }
    }

    bool enter(uint64_t run) {
        uint64_t state = state_.load();
        while (state >> 32 == run && is_open(state))
            if (state_.compare_exchange_weak(state, state + 1)) return true;
        return false;
    }

    void close() {
        uint64_t state = state_.fetch_add(IS_OPEN) + IS_OPEN;
        for (Spin spin; num_inside(state); state = state_.load()) {
            if (spin.goes_on()) continue;
            const uint32_t seen = emptied_.count();
            if (num_inside(state_.load())) emptied_.sleep(seen, 0);
        }
    }

    // The system wakes a thread on the core of the one that woke it, where it would only take turns with it.
    void keep_off_the_leaders_core() {
        const int cpu = leader_cpu_;
        if (cpu < 0 || sched_getcpu() != cpu) return;
        cpu_set_t others;
        if (sched_getaffinity(leader_, sizeof others, &others) != 0) return; // its own are fewer since it was here last
        CPU_CLR(cpu, &others);
        if (CPU_COUNT(&others)) sched_setaffinity(0, sizeof others, &others);
    }

    int num_helpers_ = 0;
    Lead lead_ = nullptr;
    const void* code_ = nullptr;
    std::atomic<int> threads_{0}, leader_{0}, leader_cpu_{-1};
    alignas(64) std::atomic<uint64_t> state_{0};
    Event opened_, emptied_;
};

inline void Member::call(RunChunk run_chunk, const void* context, long chunks, bool has_parts) {
    team_.chunks.go_through(thread_, ++call_, run_chunk, context, chunks, has_parts);
}

inline float* Member::workspace(int64_t floats) {
    struct Memory {
        Team& team;
        int64_t floats;
        static void make(const void* context, long, Parts&) {
            auto& [team, floats] = *(const Memory*)context;
            try {
                std::vector<std::vector<float>>& memory = team.memory;
                if (memory.empty() || int64_t(memory.back().size()) < floats) memory.emplace_back(floats);
                team.workspace = memory.back().data();
            } catch (const std::bad_alloc&) {
                team.workspace = nullptr; // an exception must not leave a chunk
            }
        }
    } const memory{team_, floats};
    call(Memory::make, &memory, 1, false);
    return team_.workspace;
}

// The teams of this process, one for every thread that leads one at the time. Unique although each kernel library
// includes this: the linker sees to it for inline variables (STB_GNU_UNIQUE).
class Teams {
  public:
    Team* take() {
        const std::lock_guard lock(mutex_);
        if (idle_.empty()) return new Team;
        Team* team = idle_.back();
        idle_.pop_back();
        return team;
    }

    void give_back(Team* team) {
        const std::lock_guard lock(mutex_);
        idle_.push_back(team);
    }

  private:
    std::mutex mutex_;
    std::vector<Team*> idle_;
};

inline Teams& teams = *new Teams; // never destroyed: helpers go on until the process ends

} // namespace nightshift
