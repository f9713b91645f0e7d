"""everyhead: open any Transformer and see, test and change every attention head; train one, too.

    model, tokenizer = everyhead.load("runs/demo")
    everyhead.translate(model, tokenizer, ["On the way home, I bought bread."], beam=4)
    with everyhead.record(model) as trace:
        model(source, target)
    trace["decoder.1.cross_attn"].weights()

Every name below is loaded when it is first used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Bert": "everyhead.models.bert",
    "BertConfig": "everyhead.models.bert",
    "Clip": "everyhead.models.clip",
    "ClipConfig": "everyhead.models.clip",
    "GPT2": "everyhead.models.gpt2",
    "GPT2Config": "everyhead.models.gpt2",
    "Exact": "everyhead.layers.exact",
    "HeadOff": "everyhead.inspection.changes",
    "Llama": "everyhead.models.llama",
    "LlamaConfig": "everyhead.models.llama",
    "Longformer": "everyhead.models.longformer",
    "LongformerConfig": "everyhead.models.longformer",
    "Lsh": "everyhead.layers.lsh_method",
    "MODELS": "everyhead.models",
    "PictureConvolution": "everyhead.models.picture_convolution",
    "PictureConvolutionConfig": "everyhead.models.picture_convolution",
    "Preparation": "everyhead.data.image_preparation",
    "TextAndPictures": "everyhead.data.text_and_pictures",
    "VisionText": "everyhead.models.vision_text",
    "VisionTextConfig": "everyhead.models.vision_text",
    "VisionTransformer": "everyhead.models.vision_transformer",
    "VisionTransformerConfig": "everyhead.models.vision_transformer",
    "PairTokenizer": "everyhead.data.pair_tokenizer",
    "Replaced": "everyhead.inspection.changes",
    "TextTokenizer": "everyhead.data.text_tokenizer",
    "SequenceClassifier": "everyhead.models.tasks",
    "SequenceClassifierConfig": "everyhead.models.tasks",
    "SpanReader": "everyhead.models.tasks",
    "SpanReaderConfig": "everyhead.models.tasks",
    "TokenClassifier": "everyhead.models.tasks",
    "TokenClassifierConfig": "everyhead.models.tasks",
    "TokenHidden": "everyhead.inspection.changes",
    "Convolutional": "everyhead.models.convolutional",
    "ConvolutionalConfig": "everyhead.models.convolutional",
    "Performer": "everyhead.models.performer",
    "PerformerConfig": "everyhead.models.performer",
    "RandomFeatures": "everyhead.layers.favor",
    "Recurrent": "everyhead.models.recurrent",
    "RecurrentConfig": "everyhead.models.recurrent",
    "RecurrentTranslator": "everyhead.models.recurrent_translator",
    "RecurrentTranslatorConfig": "everyhead.models.recurrent_translator",
    "Reformer": "everyhead.models.reformer",
    "ReformerConfig": "everyhead.models.reformer",
    "T5": "everyhead.models.t5",
    "T5Config": "everyhead.models.t5",
    "Transformer": "everyhead.models.transformer",
    "TransformerConfig": "everyhead.models.transformer",
    "TransformerXL": "everyhead.models.transformer_xl",
    "TransformerXLConfig": "everyhead.models.transformer_xl",
    "UserError": "everyhead.errors",
    "Window": "everyhead.layers.sliding",
    "answer_from": "everyhead.generation.read_texts",
    "attention": "everyhead.layers.attention",
    "attention_figure": "everyhead.inspection.figures",
    "attention_grid": "everyhead.inspection.figures",
    "causal": "everyhead.layers.masks",
    "check": "everyhead.cli.checked",
    "classify": "everyhead.generation.read_texts",
    "dense": "everyhead.layers.masks",
    "documents": "everyhead.layers.masks",
    "embed": "everyhead.generation.embed",
    "fetch": "everyhead.weights.fetch",
    "fill": "everyhead.generation.fill",
    "generate": "everyhead.generation.generate",
    "generate_stream": "everyhead.generation.generate",
    "global_tokens": "everyhead.layers.masks",
    "gradient_weights": "everyhead.inspection.importance",
    "gradients": "everyhead.inspection.importance",
    "head_effects": "everyhead.inspection.importance",
    "head_statistics": "everyhead.inspection.statistics",
    "keys": "everyhead.layers.masks",
    "load": "everyhead.weights.folder",
    "open_foreign": "everyhead.weights.foreign",
    "patches_figure": "everyhead.inspection.overlay",
    "prepare": "everyhead.models.prepare",
    "record": "everyhead.inspection.trace",
    "rollout": "everyhead.inspection.rollout",
    "rollout_figure": "everyhead.inspection.maps",
    "save": "everyhead.weights.folder",
    "save_figure": "everyhead.inspection.figures",
    "sentence_rule": "everyhead.weights.sentences",
    "statistics_figure": "everyhead.inspection.maps",
    "swap": "everyhead.models.swap",
    "tag": "everyhead.generation.read_texts",
    "translate": "everyhead.generation.translate",
    "window": "everyhead.layers.masks",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"everyhead has no {name!r}; it has {', '.join(__all__)}")
    module, _, other = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), other or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
