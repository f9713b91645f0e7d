"""Small decoders with weights worth searching, their Hugging Face twins, and plain oracles."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.llama import Llama, LlamaConfig

VOCAB, LONGEST = 90, 64
END = 0


def livelier(model: nn.Module) -> nn.Module:
    """Weights so large that the next token depends on all that came before."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.normal_(std=0.5 if "proj" in name else 1.0)
    return model.eval()


@cache
def gpt2(seed: int = 0, vocab_size: int = VOCAB, max_len: int = LONGEST) -> GPT2:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab_size, d_model=32, n_heads=4, n_layers=2, max_len=max_len, eos_id=END
    )
    return livelier(GPT2(config))


@cache
def llama(seed: int = 0, vocab_size: int = VOCAB, max_len: int = LONGEST) -> Llama:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        d_model=32,
        n_heads=4,
        n_kv_heads=2,
        d_ff=48,
        n_layers=2,
        max_len=max_len,
        eos_id=END,
    )
    return livelier(Llama(config))


def their_gpt2(ours: GPT2) -> transformers.GPT2LMHeadModel:
    """Hugging Face's model with the same weights."""
    c = ours.config
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=c.vocab_size,
            n_embd=c.d_model,
            n_head=c.n_heads,
            n_layer=c.n_layers,
            n_positions=c.max_len,
            eos_token_id=END,
            bos_token_id=None,
            pad_token_id=END,
        )
    ).eval()
    state = {
        "transformer.wte.weight": ours.token_embed.weight,
        "lm_head.weight": ours.token_embed.weight,
        "transformer.wpe.weight": ours.positions.weight,
        **_both("transformer.ln_f", ours.decoder.norm),
    }
    for i, block in enumerate(ours.decoder.blocks):
        at, own = f"transformer.h.{i}", block.self_attn
        maps = (own.q_proj, own.k_proj, own.v_proj)
        state |= _both(f"{at}.ln_1", block.self_attn_norm)
        state |= _both(f"{at}.ln_2", block.feed_forward_norm)
        state[f"{at}.attn.c_attn.weight"] = torch.cat([each.weight for each in maps]).T
        state[f"{at}.attn.c_attn.bias"] = torch.cat([each.bias for each in maps])
        for name, part in (
            ("attn.c_proj", own.o_proj),
            ("mlp.c_fc", block.feed_forward.up_proj),
            ("mlp.c_proj", block.feed_forward.down_proj),
        ):
            state[f"{at}.{name}.weight"], state[f"{at}.{name}.bias"] = part.weight.T, part.bias
    theirs.load_state_dict(state)
    return theirs


def their_llama(ours: Llama) -> transformers.LlamaForCausalLM:
    """Hugging Face's model with the same weights."""
    c = ours.config
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.d_model,
            intermediate_size=c.d_ff,
            num_hidden_layers=c.n_layers,
            num_attention_heads=c.n_heads,
            num_key_value_heads=c.n_kv_heads,
            max_position_embeddings=c.max_len,
            rms_norm_eps=c.norm_eps,
            eos_token_id=END,
            bos_token_id=None,
            pad_token_id=END,
            tie_word_embeddings=False,
        )
    ).eval()
    state = {
        "model.embed_tokens.weight": ours.token_embed.weight,
        "lm_head.weight": ours.output_head.weight,
        "model.norm.weight": ours.decoder.norm.weight,
    }
    for i, block in enumerate(ours.decoder.blocks):
        at = f"model.layers.{i}"
        state[f"{at}.input_layernorm.weight"] = block.self_attn_norm.weight
        state[f"{at}.post_attention_layernorm.weight"] = block.feed_forward_norm.weight
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            state[f"{at}.self_attn.{name}.weight"] = getattr(block.self_attn, name).weight
        for name in ("gate_proj", "up_proj", "down_proj"):
            state[f"{at}.mlp.{name}.weight"] = getattr(block.feed_forward, name).weight
    theirs.load_state_dict(state)
    return theirs


def _both(name: str, norm: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}


PAIRS = {"gpt2": (gpt2, their_gpt2), "llama": (llama, their_llama)}


def prompts(lengths: Sequence[int], vocab_size: int = VOCAB, seed: int = 0) -> list[list[int]]:
    """Random ids without the end's."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocab_size, (n,), generator=rng).tolist() for n in lengths]


@torch.no_grad()
def next_logits(model: nn.Module, ids: Sequence[int]) -> Tensor:
    """(V,) after all of the ids, without a cache."""
    return model(torch.tensor([list(ids)]))[0, -1]


def plain_greedy(model: nn.Module, prompt: Sequence[int], longest: int) -> list[int]:
    """New ids by the whole text each time; the end's id is not kept."""
    ids = list(prompt)
    for _ in range(longest):
        ids.append(int(next_logits(model, ids).argmax()))
        if ids[-1] == END:
            return ids[len(prompt) : -1]
    return ids[len(prompt) :]


def sequences(model: nn.Module, ids: Sequence[Sequence[int]], **asked: Any) -> list[list[int]]:
    """The new ids of their `generate`, padded on the left as it wants; END fills what is short."""
    longest = max(map(len, ids))
    padded = torch.tensor([[END] * (longest - len(row)) + list(row) for row in ids])
    real = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
    found = model.generate(padded, attention_mask=real, do_sample=False, **asked)
    return found[:, longest:].tolist()


def without_end(row: list[int]) -> list[int]:
    return row[: row.index(END)] if END in row else row
