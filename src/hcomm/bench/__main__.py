"""`python -m hcomm.bench`."""

from hcomm.cli.bench import bench

if __name__ == "__main__":
    bench(prog_name="python -m hcomm.bench")
