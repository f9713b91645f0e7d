"""One family a file; MODELS is the table of them."""

from everyhead.models import (
    bert,
    clip,
    convolutional,
    gpt2,
    llama,
    longformer,
    performer,
    picture_convolution,
    recurrent,
    recurrent_translator,
    reformer,
    t5,
    tasks,
    transformer,
    transformer_xl,
    vision_text,
    vision_transformer,
)
from everyhead.models.family import Family

MODELS: dict[str, Family] = {
    "transformer": Family(
        transformer.Transformer, transformer.TransformerConfig, transformer.PRESETS
    ),
    "bert": Family(bert.Bert, bert.BertConfig, bert.PRESETS),
    "gpt2": Family(gpt2.GPT2, gpt2.GPT2Config, gpt2.PRESETS),
    "llama": Family(llama.Llama, llama.LlamaConfig, llama.PRESETS),
    "longformer": Family(longformer.Longformer, longformer.LongformerConfig, longformer.PRESETS),
    "performer": Family(performer.Performer, performer.PerformerConfig, performer.PRESETS),
    "transformer-xl": Family(
        transformer_xl.TransformerXL, transformer_xl.TransformerXLConfig, transformer_xl.PRESETS
    ),
    "reformer": Family(reformer.Reformer, reformer.ReformerConfig, reformer.PRESETS),
    "t5": Family(t5.T5, t5.T5Config, t5.PRESETS),
    "picture-convolution": Family(
        picture_convolution.PictureConvolution,
        picture_convolution.PictureConvolutionConfig,
        picture_convolution.PRESETS,
    ),
    "vision-transformer": Family(
        vision_transformer.VisionTransformer,
        vision_transformer.VisionTransformerConfig,
        vision_transformer.PRESETS,
    ),
    "clip": Family(clip.Clip, clip.ClipConfig, clip.PRESETS),
    "vision-text": Family(
        vision_text.VisionText, vision_text.VisionTextConfig, vision_text.PRESETS
    ),
    **tasks.FAMILIES,
    "recurrent": Family(recurrent.Recurrent, recurrent.RecurrentConfig, recurrent.PRESETS),
    "recurrent-translator": Family(
        recurrent_translator.RecurrentTranslator,
        recurrent_translator.RecurrentTranslatorConfig,
        recurrent_translator.PRESETS,
    ),
    "convolutional": Family(
        convolutional.Convolutional, convolutional.ConvolutionalConfig, convolutional.PRESETS
    ),
}
