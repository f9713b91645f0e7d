"""What one recording frees, the next one uses."""

import resource

import torch
from transformers import BertConfig, BertModel

from everyhead.inspection.trace import record


def test_a_recording_waits_for_no_new_pages():
    model = BertModel(BertConfig(num_hidden_layers=3)).eval()
    ids = torch.randint(0, 3000, (1, 64))  # 12 copies of 192 KiB, or 576 pages

    def recorded() -> None:
        with torch.inference_mode(), record(model):
            model(ids)

    for _ in range(3):
        recorded()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        recorded()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert (after - before) / 10 < 200
