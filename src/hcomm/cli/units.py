"""Quantities for people. Rates count in powers of ten (as nccl-tests do), memory sizes in powers of two."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """`512 B`, `64 MiB`, `23.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.3g} {unit}" if nbytes < 1000 else f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def rate(bytes_per_second: float) -> str:
    """`950 MB/s`, `11.2 GB/s`."""
    return _scaled(bytes_per_second, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))


def bits(bits_per_second: float) -> str:
    """`940 Mbit/s`, `10 Gbit/s`."""
    return _scaled(bits_per_second, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def message(nbytes: int) -> str:
    """Sizes of messages, in powers of ten: `8 B`, `1 MB`, `25 MB`."""
    return _scaled(nbytes, ("B", "kB", "MB", "GB", "TB"))


def duration(seconds: float) -> str:
    """`0.45 µs`, `2.1 ms`, `1.5 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"
