"""What a reading job takes from the body it goes on from, and what it does not."""

import json
import warnings

import pytest
import torch

from everyhead.files import read_json
from everyhead.training.run import prepare, write_beginnings
from everyhead.weights.as_task import load_as
from everyhead.weights.folder import save
from tests.training.reading import TOOLS, body, fitted, recipe_of, written


@pytest.mark.parametrize("told", [None, int(1e30), 30])
@pytest.mark.parametrize("job", ["classify", "tag", "answer"])
def test_texts_are_cut_where_the_body_ends(job, told, tmp_path):
    """Whatever the tokenizer says, or leaves out, of the longest text."""
    start = body(tmp_path / "start")  # of 40 positions
    config = start / "tokenizer_config.json"
    values = read_json(config) | {"model_max_length": told}
    values = {key: value for key, value in values.items() if value is not None}
    config.write_text(json.dumps(values), encoding="utf-8")
    recipe = recipe_of(job, start, written(tmp_path))
    longer = recipe.model.model_copy(update={"max_len": 128})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(recipe.model_copy(update={"model": longer}), None, TOOLS)
    assert prepared.longest == min(40, told or 40)


def test_a_classifier_of_several_at_once_becomes_one_of_one(tmp_path):
    start, files = body(tmp_path / "bert"), written(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, tokenizer = load_as("sequence-classifier", start, ("a", "b", "c", "d"))
    model.config = model.config.model_copy(update={"problem": "multi_label_classification"})
    save(model, tokenizer, tmp_path / "several")
    assert read_json(tmp_path / "several" / "config.json")["problem_type"].startswith("multi")
    recipe = recipe_of("classify", tmp_path / "several", files, max_steps=2, evaluate_every=2)
    _, trainer = fitted(recipe, tmp_path / "run")
    assert trainer.model.config.problem == "single_label_classification"
    assert read_json(tmp_path / "run" / "config.json")["problem_type"].startswith("single")


def test_an_answer_is_always_given_where_none_was_learnt_to_be_refused(tmp_path):
    """SQuAD 1 has an answer to each question; what was learnt lies in the run's data.json."""
    from tests.cli.conftest import everyhead

    files = written(tmp_path)
    told = json.loads(files["answer"].read_text(encoding="utf-8"))
    for paragraph in told["data"][0]["paragraphs"]:
        paragraph["qas"] = [each for each in paragraph["qas"] if each["answers"]]
    files["answer"].write_text(json.dumps(told), encoding="utf-8")
    recipe = recipe_of("answer", body(tmp_path / "bert"), files, max_steps=2, evaluate_every=2)
    prepared, trainer = fitted(recipe, tmp_path / "run")
    write_beginnings(tmp_path / "run", prepared)
    model = trainer.model.eval()
    with torch.no_grad():  # whatever is read, [CLS] is what both ends point at
        bias = model.body.token_embed.weight[prepared.tokenizer.cls_id]
        bias.copy_(10 * bias)
    save(model, prepared.tokenizer, tmp_path / "run")
    code, out, _ = everyhead("predict", tmp_path / "run", "where ?", "bob sold paris")
    assert code == 0 and out.strip() in "bob sold paris" and out.strip()
    report = read_json(tmp_path / "run" / "data.json") | {"has_unanswerable": True}
    (tmp_path / "run" / "data.json").write_text(json.dumps(report), encoding="utf-8")
    margins = json.loads(
        everyhead("predict", tmp_path / "run", "where ?", "bob sold paris", "--json").out
    )
    refused = everyhead("predict", tmp_path / "run", "where ?", "bob sold paris").out == "-\n"
    assert refused == (margins["margin"] < 0)
