// What test_team.py runs: prints nothing and returns 0 if a team does what kernels/native/team.h says, else the failed line.
#include "team.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#define CHECK(condition) \
    if (!(condition)) { \
        std::printf("line %d: %s\n", __LINE__, #condition); \
        std::exit(1); \
    }

constexpr long CHUNKS = 40, PARTS = 4;

// One call whose helpers get stuck at part `stuck_at` of a chunk until they are let go.
struct Call {
    explicit Call(long stuck_at) : stuck_at(stuck_at) {}
    const long stuck_at;
    std::atomic<int> written[CHUNKS][PARTS] = {};
    std::atomic<int> num_stuck{0}, num_lost{0};
    std::atomic<bool> may_go_on{false};

    static void run(const void* context, long chunk, Parts& parts) {
        Call& call = *(Call*)context;
        const bool is_leader = omp_get_thread_num() == 0;
        for (long part = parts.first; part < PARTS; part++) {
            if (is_leader)
                while (!call.num_stuck) std::this_thread::yield();
            else if (part == call.stuck_at) {
                call.num_stuck++;
                while (!call.may_go_on) std::this_thread::yield();
            }
            if (!parts.may_write()) {
                call.num_lost++;
                return;
            }
            call.written[chunk][part]++;
            parts.written();
        }
    }

    bool is_written_once() const {
        for (auto& chunk : written)
            for (auto& part : chunk)
                if (part != 1) return false;
        return true;
    }
};

// Helpers get stuck in the first call; the leader finishes it and the next one without them.
void check_chunks_are_taken_over(int threads, long stuck_at) {
    omp_set_num_threads(threads);
    Call first(stuck_at), second(-1);
    second.num_stuck = 1;
    with_team([&](Team* team) {
        share_parts(team, true, CHUNKS, Call::run, &first);
        CHECK(first.is_written_once());
        CHECK(first.num_stuck >= 1 && first.num_lost == 0);
        share_parts(team, true, CHUNKS, Call::run, &second);
        CHECK(second.is_written_once());
        first.may_go_on = true;
    });
    CHECK(first.num_lost == first.num_stuck);
    CHECK(first.is_written_once() && second.is_written_once());
}

void check_every_piece_is_computed_once(int threads, long count, long piece) {
    omp_set_num_threads(threads);
    std::unique_ptr<std::atomic<int>[]> computed(new std::atomic<int>[count]());
    with_team([&](Team* team) {
        for (int round = 1; round <= 50; round++) {
            share(team, true, count, piece, [&](long begin, long end) {
                for (long i = begin; i < end; i++) computed[i]++;
            });
            for (long i = 0; i < count; i++) CHECK(computed[i] == round);
        }
    });
    share(nullptr, true, count, piece, [&](long begin, long end) {
        for (long i = begin; i < end; i++) computed[i]++;
    });
    for (long i = 0; i < count; i++) CHECK(computed[i] == 51);
}

int main() {
    for (int threads : {2, 3, 5})
        for (long stuck_at = 0; stuck_at < PARTS; stuck_at++) check_chunks_are_taken_over(threads, stuck_at);
    for (int threads : {1, 2, 3, 5})
        for (long count : {0, 1, 2, 7, 1000})
            for (long piece : {1, 3, 64}) check_every_piece_is_computed_once(threads, count, piece);
}
