"""The jobs that can be trained: a table of one line each. docs/jobs.md says how to add one.

A job's module is imported when it is asked for; it holds `KIND`, a JobKind.
"""

import importlib

from everyhead.errors import UserError
from everyhead.training.complaints import nearest
from everyhead.training.job import JobKind

JOBS = {
    "translate": "everyhead.training.jobs.translate",
    "pretrain-gpt2": "everyhead.training.jobs.pretrain_gpt2",
    "pretrain-bert": "everyhead.training.jobs.pretrain_bert",
    "pretrain-t5": "everyhead.training.jobs.pretrain_t5",
    "tune": "everyhead.training.jobs.tune",
    "tune-pairs": "everyhead.training.jobs.tune_pairs",
    "classify": "everyhead.training.jobs.classify",
    "tag": "everyhead.training.jobs.tag",
    "answer": "everyhead.training.jobs.answer",
    "image": "everyhead.training.jobs.image",
    "vqa": "everyhead.training.jobs.vqa",
    "clip": "everyhead.training.jobs.clip",
}


def job_kind(name: object) -> JobKind:
    """The line of the table.

    Raises:
        UserError: there is no such job.
    """
    if not isinstance(name, str) or name not in JOBS:
        raise UserError(f"There is no job {name!r}; {nearest(str(name), JOBS)}")
    kind: JobKind = importlib.import_module(JOBS[name]).KIND
    return kind
