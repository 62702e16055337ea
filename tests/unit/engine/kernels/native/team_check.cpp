// What test_team.py runs: prints nothing and returns 0 if a team does what kernels/native/team.h says, else the failed line.
#include "share.h"

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

const std::thread::id leader = std::this_thread::get_id();
bool is_leader() { return std::this_thread::get_id() == leader; }

template <class Ready> void wait_until(const Ready& ready) {
    while (!ready()) std::this_thread::yield();
}

// One call in which the leader, or each helper that comes, gets stuck before part `stuck_at` of a chunk, or at its end,
// until it may go on.
struct Call {
    Call(bool leader_gets_stuck, long stuck_at) : leader_gets_stuck(leader_gets_stuck), stuck_at(stuck_at) {}
    const bool leader_gets_stuck;
    const long stuck_at;
    std::atomic<int> written[CHUNKS][PARTS] = {};
    std::atomic<int> num_stuck{0}, num_lost{0};
    std::atomic<bool> may_go_on{false};

    static void run(const void* context, long chunk, Parts& parts) {
        Call& call = *(Call*)context;
        for (long part = parts.first; part < PARTS; part++) {
            call.perhaps_get_stuck(part);
            if (!parts.may_write()) {
                call.num_lost++;
                return;
            }
            call.written[chunk][part]++;
            parts.written();
        }
        call.perhaps_get_stuck(PARTS);
    }

    void perhaps_get_stuck(long part) {
        if (is_leader() != leader_gets_stuck) wait_until([&] { return stuck_at < 0 || num_stuck; });
        else if (part == stuck_at) {
            num_stuck++;
            wait_until([&] { return may_go_on.load(); });
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
void check_chunks_of_helpers_are_taken_over(int threads, long stuck_at) {
    omp_set_num_threads(threads);
    Call first(false, stuck_at), second(false, -1);
    with_team([&](Member* member) {
        share_parts(member, true, CHUNKS, Call::run, &first);
        CHECK(first.is_written_once());
        CHECK(first.num_stuck >= 1);
        share_parts(member, true, CHUNKS, Call::run, &second);
        CHECK(second.is_written_once());
        if (is_leader()) first.may_go_on = true;
    });
    CHECK(stuck_at == PARTS || first.num_lost >= first.num_stuck); // more: what took a chunk over may lose it in turn
    CHECK(first.is_written_once() && second.is_written_once());
}

// The leader gets stuck in the first call; the helpers finish it and all that follow without it.
void check_helpers_go_on_without_the_leader(int threads, long stuck_at) {
    omp_set_num_threads(threads);
    Call first(true, stuck_at), second(true, -1);
    std::atomic<int> num_done_once{0};
    with_team([&](Member* member) {
        share_parts(member, true, CHUNKS, Call::run, &first);
        share_parts(member, true, CHUNKS, Call::run, &second);
        once(member, [&] { num_done_once++; });
        CHECK(first.is_written_once() && second.is_written_once() && num_done_once == 1);
        if (!is_leader()) first.may_go_on = true;
    });
    CHECK((stuck_at == PARTS || first.num_lost >= 1) && first.num_stuck == 1);
    CHECK(first.is_written_once() && second.is_written_once() && num_done_once == 1);
}

void check_every_piece_is_computed_once(int threads, long count, long piece, bool is_worth_sharing) {
    omp_set_num_threads(threads);
    std::unique_ptr<std::atomic<int>[]> computed(new std::atomic<int>[count]());
    const auto share_all = [&](Member* member) {
        share(member, is_worth_sharing, count, piece, [&](long begin, long end) {
            for (long i = begin; i < end; i++) computed[i]++;
        });
    };
    with_team([&](Member* member) {
        for (int round = 1; round <= 50; round++) share_all(member);
    });
    share_all(nullptr);
    for (long i = 0; i < count; i++) CHECK(computed[i] == 51);
}

void check_every_chunk_is_computed_once(int threads, bool is_worth_sharing) {
    omp_set_num_threads(threads);
    Call in_a_run(false, -1), alone(false, -1);
    with_team([&](Member* member) { share_parts(member, is_worth_sharing, CHUNKS, Call::run, &in_a_run); });
    share_parts(nullptr, is_worth_sharing, CHUNKS, Call::run, &alone);
    CHECK(in_a_run.is_written_once() && alone.is_written_once());
}

// What a call writes is there for every thread's next one: each adds up what all have written.
void check_calls_are_in_order(int threads) {
    omp_set_num_threads(threads);
    constexpr long COUNT = 64, ROUNDS = 200;
    long values[2][COUNT];
    for (long& value : values[0]) value = 1;
    with_team([&](Member* member) {
        for (long round = 0; round < ROUNDS; round++) {
            const auto &from = values[round % 2];
            auto& to = values[(round + 1) % 2];
            share(member, true, COUNT, 1, [&](long begin, long end) {
                for (long i = begin; i < end; i++) to[i] = (from[i] + from[COUNT - 1 - i]) % 1000003;
            });
        }
    });
    long expected = 1;
    for (long round = 0; round < ROUNDS; round++) expected = 2 * expected % 1000003;
    for (long value : values[ROUNDS % 2]) CHECK(value == expected);
}

// Several threads lead teams at the same time.
void check_teams_do_not_meet() {
    std::atomic<int> num_right{0};
    std::vector<std::thread> leaders;
    for (int i = 0; i < 4; i++)
        leaders.emplace_back([&] {
            omp_set_num_threads(3);
            for (int run = 0; run < 200; run++) {
                std::atomic<long> sum{0};
                with_team([&](Member* member) {
                    CHECK(member);
                    float* workspace = member->workspace(1000);
                    share(member, true, 1000, 10, [&](long begin, long end) {
                        for (long i = begin; i < end; i++) workspace[i] = i;
                    });
                    share(member, true, 1000, 10, [&](long begin, long end) {
                        for (long i = begin; i < end; i++) sum += long(workspace[i]);
                    });
                });
                num_right += sum == 499500;
            }
        });
    for (std::thread& each : leaders) each.join();
    CHECK(num_right == 800);
}

// A helper that is late still reads what it was given, although the others have asked for more since.
void check_a_late_thread_keeps_its_workspace() {
    omp_set_num_threads(2);
    Call first(false, 0);
    std::atomic<bool> has_grown{false};
    with_team([&](Member* member) {
        float* workspace = member->workspace(8);
        share(member, true, 8, 1, [&](long begin, long) { workspace[begin] = begin; });
        share_parts(member, true, CHUNKS, Call::run, &first);
        if (is_leader()) {
            for (long more = 1 << 10; more <= 1 << 24; more <<= 2) CHECK(member->workspace(more));
            for (long i = 0; i < 8; i++) CHECK(workspace[i] == i);
            has_grown = true;
            first.may_go_on = true;
        } else {
            for (long more = 1 << 10; more <= 1 << 24; more <<= 2) member->workspace(more);
        }
    });
    CHECK(has_grown && first.num_stuck >= 1);
}

int main() {
    check_a_late_thread_keeps_its_workspace();
    for (int threads : {2, 3, 5})
        for (long stuck_at = 0; stuck_at <= PARTS; stuck_at++) {
            check_chunks_of_helpers_are_taken_over(threads, stuck_at);
            check_helpers_go_on_without_the_leader(threads, stuck_at);
        }
    for (int threads : {1, 2, 3, 5})
        for (long count : {0, 1, 2, 7, 1000})
            for (long piece : {1, 3, 64})
                for (bool is_worth_sharing : {false, true}) check_every_piece_is_computed_once(threads, count, piece, is_worth_sharing);
    for (int threads : {1, 2, 3, 5}) {
        for (bool is_worth_sharing : {false, true}) check_every_chunk_is_computed_once(threads, is_worth_sharing);
        check_calls_are_in_order(threads);
    }
    check_teams_do_not_meet();
}
