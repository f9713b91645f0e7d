"""modules.json and the files it names: how sentence-transformers make a sentence's vector.

modules.json                 0: Transformer, 1: Pooling, 2: Normalize
1_Pooling/config.json        which pooling
sentence_bert_config.json    where texts are cut, whether they are lower-cased
config_sentence_transformers.json   a prompt that stands before every text
"""

import json
from pathlib import Path
from typing import Any

from everyhead.errors import UserError
from everyhead.files import read_json
from everyhead.models.sentences import SentenceRule
from everyhead.weights.named import located

MODULES, TEXTS = "modules.json", "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
OLD_MODES = {  # as separate switches
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MODES = tuple(OLD_MODES.values())
NEWER = {"mean_sqrt_len_tokens": "mean_sqrt_len"}  # what recent versions call it


def sentence_rule(folder: Path | str) -> SentenceRule:
    """The rule of a folder; of one without modules.json the mean, scaled to length 1.

    Raises:
        UserError: a module that everyhead does not have, or two ways of pooling side by side.
    """
    folder = located(folder)
    if not (folder / MODULES).is_file():
        return SentenceRule()
    kinds = {str(module.get("type", "")).rpartition(".")[2]: module for module in _modules(folder)}
    unknown = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise UserError(
            f"{folder / MODULES} names {', '.join(sorted(unknown))}; everyhead's sentence vectors "
            "are pooled and normalised, and nothing else."
        )
    pooling = kinds.get("Pooling")
    texts = read_json(folder / TEXTS) if (folder / TEXTS).is_file() else {}
    return SentenceRule(
        pooling=_mode(folder / str(pooling.get("path", "")) / "config.json") if pooling else "mean",
        normalise="Normalize" in kinds,
        max_len=texts.get("max_seq_length"),
        lowercase=bool(texts.get("do_lower_case")),
        prompt=_prompt(folder / PROMPTS),
    )


def _modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / MODULES
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        modules = sorted(modules, key=lambda module: int(module["idx"]))
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise UserError(f"{path} is broken: it is no list of modules ({error}).") from error
    return list(modules)


def _mode(path: Path) -> Any:
    values = read_json(path)
    named = values.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    modes = modes or [mode for switch, mode in OLD_MODES.items() if values.get(switch)]
    modes = [NEWER.get(str(mode), mode) for mode in modes]
    if len(modes) != 1 or modes[0] not in MODES:
        raise UserError(
            f"{path} says pooling {', '.join(map(str, modes)) or 'none'}; everyhead has one of "
            f"{', '.join(MODES)} at a time."
        )
    if values.get("include_prompt") is False and _prompt(path.parent.parent / PROMPTS):
        raise UserError(f"{path} leaves a prompt out of the mean, which everyhead cannot.")
    return modes[0]


def _prompt(path: Path) -> str:
    values = read_json(path) if path.is_file() else {}
    name = values.get("default_prompt_name")
    return "" if name is None else str((values.get("prompts") or {}).get(name, ""))
