"""Two hosts of two ranks each, made of network namespaces by netlab: shared memory inside, TCP between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.job import clean_env

_DEFAULT = Path(__file__).resolve().parents[2].parent / "shared" / "netlab" / "netlab"
NETLAB = Path(os.environ.get("HCOMM_NETLAB", _DEFAULT))
LAB = f"hc{os.getpid()}"


def netlab(*words: str, timeout: float = 60.0, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run netlab; skip when this machine cannot."""
    command = [sys.executable, str(NETLAB), words[0], "--name", LAB, *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=clean_env())
    if done.returncode == 77:
        pytest.skip(f"netlab cannot run here: {done.stderr.strip()}")
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two hosts."""
    if not NETLAB.exists():
        pytest.skip(f"netlab is not at {NETLAB} (set HCOMM_NETLAB)")
    netlab("up", "--hosts", "2")
    yield
    netlab("down")


def run(body: str, tmp_path: Path, *, nproc: int = 2, timeout: int = 60, **env: str) -> dict[int, object]:
    """Run a script on every rank; what each rank passed to `answer`."""
    script = script_file(body, tmp_path)
    words = [w for k, v in {"JOB_DIR": str(tmp_path), **env}.items() for w in ("--env", f"{k}={v}")]
    launch = [
        "--launcher",
        "env",
        "--port",
        "29517",
        "--timeout",
        str(timeout),
        *words,
        "--",
        sys.executable,
        script,
    ]
    netlab("run", "--nproc", str(nproc), *launch, timeout=timeout + 20)
    return answers(tmp_path)


def script_file(body: str, tmp_path: Path) -> str:
    head = """
        import json, os, sys, time
        from pathlib import Path
        import numpy as np
        import hcomm

        def answer(value):
            (Path(os.environ["JOB_DIR"]) / f"answer-{os.environ['RANK']}").write_text(json.dumps(value))

        def mark(name):
            (Path(os.environ["JOB_DIR"]) / f"{name}-{os.environ['RANK']}").touch()

    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
    return str(path)


def answers(tmp_path: Path) -> dict[int, object]:
    files = sorted(tmp_path.glob("answer-*"))
    return {int(f.name.removeprefix("answer-")): json.loads(f.read_text()) for f in files}


def test_all_reduce_over_two_hosts(tmp_path: Path) -> None:
    body = """
        hcomm.init()
        me = hcomm.rank()
        found = {"backend": hcomm.get_backend_name(), "local": [hcomm.local_rank(), hcomm.local_size()]}
        for dtype in ("float32", "float64", "int32", "uint8", "float16"):
            for op in ("sum", "max", "min", "prod", "avg"):
                for count in (0, 1, 7, 1000, 300_003):
                    x = np.full(count, me + 1, dtype=dtype)
                    x[::2] += 1
                    hcomm.all_reduce(x, op=op)
                    found[f"{op} {dtype} {count}"] = sorted(set(x.tolist()))
        found["pair"] = hcomm.get_backend_name(hcomm.new_group([0, 1] if me < 2 else [2, 3]))
        across = hcomm.new_group([0, 2] if me in (0, 2) else [1, 3])
        found["across"] = [hcomm.get_backend_name(across), float(across.all_reduce(np.array([me + 1.0]))[0])]
        hcomm.finalize()
        answer(found)
    """
    found = run(body, tmp_path)
    assert sorted(found) == [0, 1, 2, 3]
    # odd elements hold 1 2 3 4, even ones 2 3 4 5
    odd = {"sum": 10, "max": 4, "min": 1, "prod": 24, "avg": 2.5}
    even = {"sum": 14, "max": 5, "min": 2, "prod": 120, "avg": 3.5}
    for rank, answer in found.items():
        assert isinstance(answer, dict)
        assert answer.pop("backend") == "shm+tcp"
        assert answer.pop("local") == [rank % 2, 2]
        assert answer.pop("pair") == "shm"
        assert answer.pop("across") == ["tcp", [4.0, 6.0][rank % 2]]
        for what, values in answer.items():
            op, dtype, count = what.split()
            whole = dtype in ("int32", "uint8")
            expected = {int(v) if whole else v for v in (even[op], odd[op])[: min(2, int(count))]}
            assert values == sorted(expected), (rank, what)


def test_every_algorithm_on_hosts_of_two_and_of_one(tmp_path: Path) -> None:
    """All ranks, and groups of both hosts that are uneven or in another order."""
    body = """
        from hcomm.planning.registry import LINKS, algorithms
        hcomm.init()
        wrong, ran = [], 0
        me = hcomm.rank()
        for ranks in ([0, 1, 2, 3], [0, 1, 2], [3, 0, 1], [2, 0, 3, 1]):
            if me not in ranks:
                continue
            group = hcomm.new_group(ranks)
            n, r = group.size, group.rank
            for count in (1, 1001, 400_003):
                blocks = [np.arange(count, dtype=np.float32) % 31 + q for q in range(n)]
                wholes = [np.arange(n * count, dtype=np.float32) % 29 + q for q in range(n)]
                uneven = [count + q for q in range(n)]
                for entry in (a for o in ("all_reduce", "all_gather", "reduce_scatter") for a in algorithms(o)):
                    if entry.requires is not LINKS:
                        continue
                    call = getattr(group, entry.operation)
                    if entry.operation == "all_reduce":
                        right = np.array_equal(call(blocks[r].copy(), algorithm=entry.name), sum(blocks))
                    elif entry.operation == "all_gather":
                        pieces = [np.resize(blocks[q], uneven[q]) for q in range(n)]
                        found = call(pieces[r], sizes=uneven, algorithm=entry.name)
                        right = np.array_equal(found, np.concatenate(pieces))
                    else:
                        found = call(wholes[r], algorithm=entry.name)
                        right = np.array_equal(found, sum(wholes)[r * count : (r + 1) * count])
                    ran += 1
                    if not right:
                        wrong.append(f"{entry.operation} {entry.name} of {count} on {ranks}")
        hcomm.finalize()
        answer([wrong, ran])
    """
    found = run(body, tmp_path)
    assert sorted(found) == [0, 1, 2, 3]
    for wrong, ran in found.values():  # type: ignore[misc]
        assert wrong == []
        assert ran >= 2 * 3 * 15


def test_every_operation_over_two_hosts(tmp_path: Path) -> None:
    body = """
        hcomm.init()
        me, n = hcomm.rank(), 4
        found = {}
        for size in (1, 1000, 100_001):
            block = np.full(size, me, dtype=np.int64)
            whole = np.arange(n * size, dtype=np.int64) + me
            mine = np.arange(n * size, dtype=np.int64)[me * size : (me + 1) * size]
            x = hcomm.broadcast(block.copy(), src=3)
            found[f"broadcast {size}"] = bool((x == 3).all())
            y = hcomm.reduce(block.copy(), dst=2)
            found[f"reduce {size}"] = bool((y == (6 if me == 2 else me)).all())
            g = hcomm.all_gather(block)
            found[f"all_gather {size}"] = bool((g == np.repeat(np.arange(n), size)).all())
            found[f"reduce_scatter {size}"] = bool((hcomm.reduce_scatter(whole) == n * mine + 6).all())
            exchanged = np.concatenate([mine + r for r in range(n)])
            found[f"all_to_all {size}"] = bool((hcomm.all_to_all(whole) == exchanged).all())
            got = hcomm.gather(block, dst=1)
            found[f"gather {size}"] = bool((got == np.repeat(np.arange(n), size)).all()) if me == 1 else got is None
            part = np.zeros(size, dtype=np.int64)
            hcomm.scatter(whole if me == 1 else None, src=1, out=part)
            found[f"scatter {size}"] = bool((part == mine + 1).all())
            inbox = [np.zeros(size, dtype=np.int64) for _ in range(n)]
            others = [r for r in range(n) if r != me]
            works = [hcomm.recv(inbox[r], src=r, async_op=True) for r in others]
            works += [hcomm.send(block + 10 * r, dst=r) for r in others]
            for work in works:
                work.wait()
            found[f"messages {size}"] = all(bool((inbox[r] == r + 10 * me).all()) for r in others)
            hcomm.barrier()
        hcomm.finalize()
        answer(found)
    """
    found = run(body, tmp_path)
    assert sorted(found) == [0, 1, 2, 3]
    for rank, answer in found.items():
        assert isinstance(answer, dict)
        assert [what for what, right in answer.items() if not right] == [], rank


def test_costs_between_hosts_are_measured(tmp_path: Path) -> None:
    """When the job is made, alike on all ranks; and then the costs decide. Groups take them over."""
    body = """
        hcomm.init()
        world = hcomm.default_communicator()
        x = hcomm.all_reduce(np.ones(100_000, dtype=np.float32))
        import hcomm.costs
        hcomm.costs.BUDGET = 60.0
        world.measure_costs()  # what a busy machine had no time for
        told = [world.explain("all_reduce", n) for n in (64, 1_000_000, 50_000_000)]
        pair = world.new_group([0, 1] if hcomm.rank() < 2 else [2, 3])
        pair.all_reduce(np.ones(100_000))
        answer({
            "costs": world.costs.as_dict(),
            "sum": sorted(set(x.tolist())),
            "choices": [t.choice for t in told],
            "by costs": ["measured costs" in t.why for t in told],
            "pair": pair.costs.measured,
            "across": world.new_group([0, 2]).costs.measured if hcomm.rank() in (0, 2) else ("shm", "tcp", "memory"),
        })
        hcomm.finalize()
    """
    found = run(body, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert sorted(found) == [0, 1, 2, 3]
    first = found[0]
    assert isinstance(first, dict)
    assert first["costs"]["measured"] == ["shm", "tcp", "memory"]
    assert first["sum"] == [4.0]
    assert first["by costs"] == [True] * 3
    assert first["pair"] == []  # on one host the table serves
    assert first["across"] == ["shm", "tcp", "memory"]
    assert all(answer == first for answer in found.values())


def test_shared_memory_forced_across_hosts_fails_cleanly(tmp_path: Path) -> None:
    body = """
        try:
            hcomm.init()
            answer(["no error", hcomm.get_backend_name()])
        except hcomm.errors.HcommError as error:
            answer([type(error).__name__, str(error)])
    """
    for kind, text in run(body, tmp_path, HCOMM_TRANSPORT="shm", HCOMM_INIT_TIMEOUT="20").values():  # type: ignore[misc]
        assert kind == "TransportUnavailable", text
        assert "shm" in text


def test_compressed_gradients_between_hosts(tmp_path: Path) -> None:
    """Each host has 4 MB to send in a ring of 4 ranks, six times over as float32; statistics count what left it."""
    body = """
        hcomm.init()
        group, found = hcomm.default_communicator(), {}
        parts = [np.random.default_rng(k).normal(size=1 << 18).astype(np.float32) for k in range(4)]
        exact = np.mean(parts, axis=0)
        for scheme in (None, "uint8", "fp16", "ring"):
            x, before = parts[hcomm.rank()].copy(), group.statistics().network
            if scheme == "ring":
                hcomm.all_reduce(x, "avg", algorithm="ring")
            else:
                hcomm.compression.all_reduce(x, scheme)
            hcomm.barrier()
            sent = float(hcomm.all_reduce(np.array([group.statistics().network - before * 1.0]))[0])
            found[str(scheme)] = [sent, float(abs(x - exact).max()), x.tobytes().hex()[:1000]]
        found["self"] = group.statistics().sent.get(hcomm.rank())
        hcomm.finalize()
        answer(found)
    """
    answers = run(body, tmp_path)
    assert sorted(answers) == [0, 1, 2, 3]
    for found in answers.values():
        assert isinstance(found, dict)
        assert found == answers[0], "ranks have different results"
        assert found["None"][1] < 1e-6
        assert found["fp16"][1] < 3e-3
        assert 1e-4 < found["uint8"][1] < 0.04  # chunks range over about 7, their average over about 4
        # Both add up inside the hosts first, and send a vector, in a quarter of the bytes.
        assert found["uint8"][0] < 0.27 * found["None"][0]
        assert found["fp16"][0] < 0.52 * found["None"][0]
        assert found["uint8"][0] < 0.2 * found["ring"][0]
        assert found["self"] is None


@pytest.mark.parametrize("count", [1, 4_000_000])
def test_the_link_is_cut(tmp_path: Path, count: int) -> None:
    """Ranks on both sides raise within the timeout of 3 s; none hangs."""
    body = f"""
        hcomm.init()
        start = time.monotonic()
        try:
            for turn in range(10**9):
                x = np.full({count}, 1.0, dtype=np.float32)
                start = time.monotonic()
                hcomm.all_reduce(x, timeout=3.0)
                assert x[0] == 4.0
                if turn == 5:
                    mark("running")
        except hcomm.errors.CommunicatorError as error:
            answer([type(error).__name__, str(error), list(error.ranks), time.monotonic() - start])
    """
    script = script_file(body, tmp_path)
    words = ["--env", f"JOB_DIR={tmp_path}"]
    command = [
        sys.executable,
        str(NETLAB),
        "run",
        "--name",
        LAB,
        "--nproc",
        "2",
        "--launcher",
        "env",
        "--port",
        "29518",
    ]
    command += ["--timeout", "60", *words, "--", sys.executable, script]
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_env()
    )
    try:
        end = time.monotonic() + 30
        while len(list(tmp_path.glob("running-*"))) < 4:
            assert time.monotonic() < end, "the job did not start"
            assert job.poll() is None, job.stdout and job.stdout.read()
            time.sleep(0.05)
        netlab("cut", "h1")
        output, _ = job.communicate(timeout=25)
    finally:
        job.kill()
        job.wait()
        netlab("heal", "h1")
    found = answers(tmp_path)
    assert sorted(found) == [0, 1, 2, 3], output
    for rank, (kind, text, ranks, seconds) in found.items():  # type: ignore[misc]
        assert kind in ("CollectiveTimeout", "PeerLost"), (rank, kind, text)
        assert seconds < 5.0, (rank, seconds, text)
        assert set(ranks) <= ({2, 3} if rank < 2 else {0, 1}), (rank, text)


def test_torch_distributed_over_two_hosts(tmp_path: Path) -> None:
    body = """
        import torch
        import torch.distributed as dist
        import hcomm.torch

        dist.init_process_group("hcomm")
        me = dist.get_rank()
        total = torch.full((100_003,), float(me + 1))
        dist.all_reduce(total)
        inside = dist.new_group([0, 1]), dist.new_group([2, 3])
        across = dist.new_group([0, 2]), dist.new_group([1, 3])
        names = [hcomm.torch.communicator(pair).backend_name for pair in (inside[me // 2], across[me % 2])]
        torch.manual_seed(me)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        model(torch.full((1, 4), float(me))).sum().backward()
        gradient = model.module.weight.grad[0].tolist()
        dist.destroy_process_group()
        answer([sorted(set(total.tolist())), names, gradient])
    """
    found = run(body, tmp_path)
    # the gradient of a sum is the input; its mean over the ranks is (0 + 1 + 2 + 3) / 4
    assert found == {rank: [[10.0], ["shm", "tcp"], [1.5] * 4] for rank in range(4)}
