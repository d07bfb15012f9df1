"""Many cases through one job: starting processes costs more than a case."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from support.inside import describe, meet
from support.job import Job, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.cases import Case

#: A case that kills its job or breaks its communicator costs one restart with the cases that are left.
_RESTARTS = 6


def run_cases(cases: list[tuple[str, Case]]) -> None:
    """A rank's side: run every case, and write down each verdict at once, so that a crash shows where it happened."""
    import hcomm
    from support.cases import Bench

    bench = Bench()
    with (Path(os.environ["JOB_DIR"]) / f"verdicts-{bench.rank}").open("ab", buffering=0) as verdicts:

        def write(name: str, verdict: str | None) -> None:
            verdicts.write(pickle.dumps((name, verdict)))

        for index, (name, case) in enumerate(cases):
            write(name, None)
            try:
                verdict = bench.run(case)
            except hcomm.errors.CommunicatorError as error:
                write(name, f"{describe(error).kind}: {error}")
                return
            except Exception as error:
                write(name, f"{describe(error).kind}: {error}")
                meet(f"after-{index}", bench.size)  # all ranks should have refused alike
                continue
            write(name, verdict)


def _verdicts(directory: Path, rank: int) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    with (directory / f"verdicts-{rank}").open("rb") as file:
        while True:
            try:
                name, verdict = pickle.load(file)
            except EOFError:
                return found
            found[name] = verdict


def run_table(
    cases: Sequence[Case], ranks: int, transport: str | None, timeout: float = 240.0
) -> dict[str, str]:
    """Case name → empty when every rank found it right, otherwise what went wrong and where."""
    left = {str(case): case for case in cases}
    results: dict[str, str] = {}
    for _ in range(_RESTARTS):
        if not left:
            break
        job = Job(ranks, run_cases, args=(list(left.items()),), transport=transport, timeout=timeout)
        try:
            outcomes = job.wait()
            by_rank = {}
            for rank in range(ranks):
                if (job.directory / f"verdicts-{rank}").exists():
                    by_rank[rank] = _verdicts(job.directory, rank)
        finally:
            job.discard()
        if len(by_rank) < ranks:
            return results | dict.fromkeys(left, f"the job did not start{report(outcomes)}")
        for name in list(left):
            if not all(name in by_rank[rank] for rank in range(ranks)):
                break
            wrong = [
                f"rank {rank}: {'never came back' if v is None else v}"
                for rank in by_rank
                if (v := by_rank[rank][name]) != ""
            ]
            if any(by_rank[rank][name] is None for rank in by_rank):
                wrong.append(report(outcomes))
            results[name] = "\n".join(wrong)
            del left[name]
        else:
            if any(o.code for o in outcomes):
                results["the end of the job"] = report(outcomes)
    return results | dict.fromkeys(left, "not run: too many earlier cases broke their job")
