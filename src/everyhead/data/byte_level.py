"""Byte-level BPE from vocab.json and merges.txt: GPT-2's, RoBERTa's and CLIP's.

Radford et al. 2019 section 2.2: merges over the 256 bytes, so that no text is unknown. CLIP
(Radford et al. 2021, arXiv:2103.00020) lowercases, joins white space, and marks the end of a word
with </w>. Which of the three it is, the vocabulary says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from everyhead.errors import UserError

END_OF_WORD = "</w>"
CLIPS_RUNS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)


def open_merges(vocabulary: Path, merges: Path, config: Mapping[str, Any]) -> tuple[Tokenizer, str]:
    """The tokenizer and whose it is: gpt2, roberta or clip.

    Raises:
        UserError: a file is broken, or the two do not belong together.
    """
    try:
        pieces, pairs = models.BPE.read_file(str(vocabulary), str(merges))
        if f"a{END_OF_WORD}" in pieces:
            return _clip(pieces, pairs), "clip"
        inner = Tokenizer(models.BPE(pieces, pairs))
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"{vocabulary} and {merges.name} are broken or not of one model ({error})."
        ) from None
    spaced = bool(config.get("add_prefix_space", False))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    inner.decoder = decoders.ByteLevel()
    if "<s>" in pieces and "</s>" in pieces:
        ends = ("</s>", pieces["</s>"]), ("<s>", pieces["<s>"])
        inner.post_processor = processors.RobertaProcessing(*ends, True, spaced)
        return inner, "roberta"
    return inner, "gpt2"


def prepare_as_said(inner: Tokenizer, config: Mapping[str, Any]) -> None:
    """As GPT2Tokenizer and RobertaTokenizer do by tokenizer_config.json: no space in front of a
    text unless `add_prefix_space` asks for it, whatever tokenizer.json says.

    What cuts in several steps (SmolLM2's digits) is left alone; their code would drop the others.
    """
    cut = inner.pre_tokenizer
    if isinstance(cut, pre_tokenizers.ByteLevel):
        spaced = bool(config.get("add_prefix_space", False))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(spaced, use_regex=cut.use_regex)


def _clip(pieces: dict[str, int], pairs: list[tuple[str, str]]) -> Tokenizer:
    start, end = "<|startoftext|>", "<|endoftext|>"
    model = models.BPE(pieces, pairs, unk_token=end, end_of_word_suffix=END_OF_WORD)
    inner = Tokenizer(model)
    inner.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    runs = pre_tokenizers.Split(Regex(CLIPS_RUNS), "removed", invert=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [runs, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    ends = (end, pieces[end]), (start, pieces[start])
    inner.post_processor = processors.RobertaProcessing(*ends, False, False)
    return inner
