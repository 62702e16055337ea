"""Send every costly request of the security tests' corpus, and measure what each costs and how soon
`/healthz` is answered meanwhile.

    python -m benchmarks.reliability.costly
"""

from statistics import median

from benchmarks.machine import cpu_name
from tests.security.corpus import CORPUS
from tests.security.limited_api import limited_api

MIB = 2**20
WITHIN_S = 0.25  # the 99th percentile


def main() -> int:
    print("| request | bytes | status | memory, MiB | × its size | CPU, s | loop blocked, s of CPU |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with limited_api(MODELS="m") as api:
        api.health_s.clear()
        for each in CORPUS:
            body = each.make()
            cost = api.ask(each.method, each.path, body, each.headers)
            times = f"{cost.memory_bytes / len(body):.1f}" if body else "–"
            print(
                f"| {each.name} | {len(body)} | {cost.status} | {cost.memory_bytes / MIB:.0f} | {times} "
                f"| {cost.cpu_s:.2f} | {cost.blocked_s:.3f} |"
            )
        answered_s = sorted(api.health_s)
    p99_s = answered_s[int(0.99 * len(answered_s))]
    print(
        f"\n/healthz, {len(answered_s)} answers: "
        f"p50 {median(answered_s) * 1000:.0f} ms, p99 {p99_s * 1000:.0f} ms, "
        f"max {answered_s[-1] * 1000:.0f} ms; {cpu_name()}"
    )
    return 0 if p99_s < WITHIN_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
