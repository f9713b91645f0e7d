"""The table of kinds: how each family lies in a Hugging Face folder.

A family's module says `KIND = Kind(…)` (weights/kind.py); one line here puts it into the table.
"""

from everyhead.weights import bert, clip, gpt2, llama, longformer, reformer, t5, transformer, vit
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.tasks import TASK_KINDS

__all__ = ["KINDS", "Kind", "Tidied"]

KINDS: tuple[Kind, ...] = (
    transformer.KIND,
    bert.KIND,
    *TASK_KINDS,
    vit.KIND,
    clip.KIND,
    gpt2.KIND,
    llama.KIND,
    longformer.KIND,
    reformer.KIND,
    t5.KIND,
)
