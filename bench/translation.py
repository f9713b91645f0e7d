"""(b) Translation on a trained run: greedy and beam 4, batch 1 and 32, beside Hugging Face and
CTranslate2 (float32 and int8).

All read the same folder and get the same token ids; the figure is generated tokens a second of the
same sentences. Whether the outputs agree is counted and printed.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import torch
import transformers
from transformers import AutoModelForSeq2SeqLM

from bench.timing import Row, System, rounds, rows_of
from everyhead.data.batching import pad_rows
from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.generation.search import inference, search
from everyhead.generation.workers import at_once
from everyhead.models.prepare import prepare
from everyhead.weights.folder import load

MAX_NEW = 64
transformers.logging.set_verbosity_error()
Ids = list[list[int]]


class Systems:
    """The peers and everyhead on one folder; each turns source ids into target ids."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.threads = torch.get_num_threads()
        self.model, self.tokenizer = load(folder)
        self.prepared = {"fp32": prepare(self.model), "bf16": prepare(self.model, torch.bfloat16)}
        self.marian = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        self.pad, self.eos = self.model.config.pad_id, self.model.config.eos_id
        self.converted = {
            kind: self._convert(folder, scratch / kind, kind) for kind in ("float32", "int8")
        }
        self.pieces = [""] * self.model.config.vocab_size
        for piece, number in self.tokenizer.source.inner.get_vocab().items():
            self.pieces[number] = piece

    def _convert(self, folder: Path, out: Path, kind: str) -> Path:
        converter = ctranslate2.converters.TransformersConverter(str(folder))
        converter.convert(str(out), quantization=kind, force=True)
        return out

    def everyhead(self, dtype: str, workers: int, batch: Ids, beam: int) -> Ids:
        """One search on all threads, or one of a share of the batch on each of several."""
        torch.set_num_threads(self.threads)  # CTranslate2 sets the process's number
        size = -(-len(batch) // workers)
        shares = [batch[i : i + size] for i in range(0, len(batch), size)]

        def searched(share: Ids) -> Ids:
            source, mask = pad_rows(share, self.pad)
            # eager: the same guess by which Hugging Face ends a beam search by default
            found = search(
                self.prepared[dtype], source, mask, beam=beam, max_len=MAX_NEW, eager=True
            )
            return [hypotheses[0].ids for hypotheses in found]

        with inference(self.model):
            parts = list(at_once(searched, shares, torch.device("cpu")))
        return [ids for part in parts for ids in part]

    def hugging_face(self, batch: Ids, beam: int) -> Ids:
        torch.set_num_threads(self.threads)
        source, mask = pad_rows(batch, self.pad)
        with torch.inference_mode():
            out = self.marian.generate(
                input_ids=source,
                attention_mask=mask.long(),
                num_beams=beam,
                max_new_tokens=MAX_NEW,
                do_sample=False,
            )
        return [[i for i in row if i not in (self.pad, self.eos)] for row in out[:, 1:].tolist()]

    def ctranslate2(self, translator: Any, batch: Ids, beam: int) -> Ids:
        found = translator.translate_batch(
            [[self.pieces[i] for i in row] for row in batch],
            beam_size=beam,
            max_decoding_length=MAX_NEW,
            max_batch_size=max(1, len(batch) // translator.num_translators),
        )
        numbers = self.tokenizer.source.inner.get_vocab()
        return [[numbers[piece] for piece in each.hypotheses[0]] for each in found]


def translation_rows(
    folder: Path, lines: list[str], *, n_rounds: int, n_single: int = 12
) -> list[Row]:
    """Rows for the four settings, and a row each that counts equal outputs."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        systems = Systems(folder, Path(scratch))
        ids = source_ids(systems.tokenizer, lines)
        for size in (1, 32):
            chosen = ids[:n_single] if size == 1 else ids[:32]
            batches = [[row] for row in chosen] if size == 1 else [chosen]
            for beam in (1, 4):
                rows += _setting(systems, batches, size, beam, n_rounds)
    return rows


def source_ids(tokenizer: PairTokenizer, lines: list[str]) -> Ids:
    """Ids with </s> of lines that fit."""
    eos = tokenizer.source.eos_id
    return [[*row, eos] for row in tokenizer.source.encode_batch(lines) if 0 < len(row) < 100]


def _setting(
    systems: Systems, batches: list[Ids], size: int, beam: int, n_rounds: int
) -> list[Row]:
    workers = [(1, systems.threads)]
    if size > 1 and systems.threads > 1:
        workers.append((systems.threads, 1))
    calls: dict[str, Any] = {"Hugging Face fp32": systems.hugging_face}
    for inter, intra in workers:
        for dtype in systems.prepared:
            calls[f"everyhead {dtype}, {inter} × {intra}"] = partial(
                systems.everyhead, dtype, inter
            )
        for kind, path in systems.converted.items():
            translator = ctranslate2.Translator(
                str(path), compute_type=kind, inter_threads=inter, intra_threads=intra
            )
            calls[f"CTranslate2 {kind}, {inter} × {intra}"] = partial(
                systems.ctranslate2, translator
            )
    outputs = {n: [row for b in batches for row in call(b, beam)] for n, call in calls.items()}
    timed = [
        System(n, lambda c=c: [c(b, beam) for b in batches], lambda c=c: c(batches[0], beam))
        for n, c in calls.items()
    ]
    seconds = rounds(timed, n_rounds)
    setting = f"batch {size}, {'greedy' if beam == 1 else f'beam {beam}'}"
    mine = f"everyhead fp32, 1 × {systems.threads}"
    tokens = sum(len(row) + 1 for row in outputs[mine])
    floats = {n: s for n, s in seconds.items() if "int8" not in n}
    rows = rows_of("translation", setting, floats, tokens, "tokens/s")
    rest = {n: s for n, s in seconds.items() if "int8" in n or n.startswith("everyhead")}
    rows += [
        r._replace(speed_over_best_peer=None)
        for r in rows_of("translation", setting, rest, tokens, "tokens/s")
        if "int8" in r.system
    ]
    others = [n for n in outputs if n != mine and "int8" not in n]
    for name in others:
        equal = sum(a == b for a, b in zip(outputs[mine], outputs[name], strict=True))
        share = round(100 * equal / len(outputs[mine]), 1)
        rows.append(Row("translation", setting, name, share, "% outputs as ours in fp32", None))
    pair = {n: s for n, s in seconds.items() if n[:9] == "everyhead" or n[:12] == "Hugging Face"}
    best = next(
        row
        for row in rows_of("translation", setting, pair, tokens, "times Hugging Face")
        if row.speed_over_best_peer is not None
    )
    return [*rows, best._replace(value=best.speed_over_best_peer or 0.0, speed_over_best_peer=None)]
