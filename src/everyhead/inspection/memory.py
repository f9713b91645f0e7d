"""Memory that one recording frees stays for the next one.

Copies of what a model used are freed together, and glibc then gives the top of its heap back to
the system; the next recording waits for the same pages again, which at 32 tokens of BERT-base took
3 % of the pass (docs/decisions.md, "What looking costs"). How much glibc keeps, it learns from the
largest block that was freed (malloc(3), M_MMAP_THRESHOLD): up to 64 MiB, after one of 32.
"""

import functools

import torch

# Just under the largest that glibc learns from, in bytes. Nothing is written into it.
LARGEST = 31 * 2**20


@functools.cache
def keep_freed() -> None:
    """Once in a process, at its first recording."""
    torch.empty(LARGEST, dtype=torch.uint8, device="cpu")
