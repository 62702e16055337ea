// Sharing the work of a call among the threads of a team. A null member: a team is made for the call, if it is worth one.
#pragma once
#include <omp.h>

#include "team.h"

namespace {

using nightshift::Member, nightshift::Parts, nightshift::RunChunk;

// Call `lead(member)` by all threads that OpenMP gives this one, or with null where that is one thread.
template <class Lead> void with_team(const Lead& lead) {
    const int threads = omp_get_max_threads();
    if (threads == 1) return lead((Member*)nullptr);
    nightshift::Team* team = nightshift::teams.take();
    team->run(threads, [](const void* code, Member& member) { (*(const Lead*)code)(&member); }, &lead);
    nightshift::teams.give_back(team);
}

// Call `run_chunk` for chunks 0 to `chunks`. It goes through its parts as `Parts` says, at most Chunks::PARTS_MAX; what
// `context` points to stays while this member is in the call, and is the same for all.
inline void share_parts(Member* member, bool is_worth_sharing, long chunks, RunChunk run_chunk, const void* context) {
    struct All {
        RunChunk run_chunk;
        const void* context;
        long chunks;
        static void run(const void* context, long, Parts&) {
            const All& all = *(const All*)context;
            for (long chunk = 0; chunk < all.chunks; chunk++) {
                Parts parts;
                all.run_chunk(all.context, chunk, parts);
            }
        }
    } const all{run_chunk, context, chunks};
    is_worth_sharing = is_worth_sharing && chunks > 1;
    const auto compute = [&](Member* member) {
        Parts none;
        if (!member) All::run(&all, 0, none);
        else if (is_worth_sharing) member->call(run_chunk, context, chunks, true);
        else member->call(All::run, &all, 1, false);
    };
    if (member || !is_worth_sharing) compute(member);
    else with_team(compute);
}

// Call body(first, end) for pieces of [0, count), each of `piece` or fewer, as above but for chunks without parts.
template <class Body> void share(Member* member, bool is_worth_sharing, long count, long piece, const Body& body) {
    struct Pieces {
        const Body& body;
        long count, piece;
        static void run(const void* context, long chunk, Parts&) {
            const Pieces& all = *(const Pieces*)context;
            all.body(chunk * all.piece, std::min(all.count, (chunk + 1) * all.piece));
        }
    };
    if (count == 0) return;
    piece = is_worth_sharing ? std::max(piece, count / nightshift::Chunks::CHUNKS_MAX + 1) : count;
    const long chunks = (count + piece - 1) / piece;
    const auto compute = [&](Member* member) {
        const Pieces pieces{body, count, piece}; // each member has its own
        member->call(Pieces::run, &pieces, chunks, false);
    };
    if (member) compute(member);
    else if (chunks > 1) with_team([&](Member* member) { if (member) compute(member); else body(0L, count); });
    else body(0L, count);
}

// By one of the threads, before any goes on.
template <class Body> void once(Member* member, const Body& body) {
    share(member, false, 1, 1, [&](long, long) { body(); });
}

constexpr int64_t ELEMENTS_WORTH_SHARING = 1 << 14; // about what waking a thread costs
constexpr int64_t ELEMENTS_PER_PIECE = 1 << 12;

// body(row) for all rows of so many elements.
template <class Body> void share_rows(Member* member, long rows, long elements, const Body& body) {
    const long piece = elements ? (ELEMENTS_PER_PIECE + elements - 1) / elements : rows;
    share(member, rows * elements > ELEMENTS_WORTH_SHARING, rows, piece, [&](long first, long end) {
        for (long row = first; row < end; row++) body(row);
    });
}

} // namespace
