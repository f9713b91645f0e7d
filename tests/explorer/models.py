"""Tiny Hugging Face folders with a byte-level tokenizer: a decoder, an answerer, encoders."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

WORDS = "the bank of the river was muddy and money lay in a bank 我在河边 the cat sat on the mat"
PAD, END, START = 0, 1, 2
SMALL = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": START}


def tokenizer(*, ended: bool = False) -> Any:
    """Bytes and a few merges; `ended` puts </s> after each text."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "</s>", "<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([WORDS] * 20, trainer)
    if ended:
        inner.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", END)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", bos_token="<s>"
    )


def lively(model: torch.nn.Module) -> torch.nn.Module:
    """Weights so large that attention is far from even."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(0, 0.25)
    return model.eval()


def gpt2(n_positions: int = 128, vocab: int = 300) -> Any:
    config = transformers.GPT2Config(
        vocab_size=vocab, n_embd=32, n_layer=2, n_head=4, n_positions=n_positions, **SMALL
    )
    return lively(transformers.GPT2LMHeadModel(config))


def bert(vocab: int = 300) -> Any:
    config = transformers.BertConfig(
        vocab_size=vocab,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return lively(transformers.BertModel(config))


def t5(vocab: int = 300) -> Any:
    config = transformers.T5Config(
        vocab_size=vocab,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=4,
        decoder_start_token_id=PAD,
        **SMALL,
    )
    return lively(transformers.T5ForConditionalGeneration(config))


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    return lively(transformers.ViTModel(config))


def saved(model: Any, folder: Path, *, ended: bool = False) -> Path:
    """The folder with model and tokenizer in it."""
    model.save_pretrained(folder)
    if isinstance(model, transformers.ViTModel):
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    else:
        tokenizer(ended=ended).save_pretrained(folder)
    return folder


def picture(path: Path) -> Path:
    """A small picture of noise."""
    from PIL import Image

    torch.manual_seed(0)
    Image.fromarray((torch.rand(40, 40, 3) * 255).byte().numpy()).save(path)
    return path
