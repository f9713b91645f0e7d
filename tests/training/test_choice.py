"""The recipe chosen for a file of one's own grows with it and can be changed."""

import pytest

from everyhead.data.pairs import Pairs
from everyhead.errors import UserError
from everyhead.training.choice import SIZES, bleu_tokenizer, choose_recipe
from everyhead.training.recipe import load_recipe, recipe_text

DATA = {"pairs": "my.tsv"}


def pairs(n: int, target: str = "ein Satz") -> Pairs:
    return Pairs(["a sentence"] * n, [target] * n)


@pytest.mark.parametrize("n", [1, 999, 1_000, 7_999, 8_000, 199_999, 200_000])
def test_every_size_has_a_recipe_that_can_be_read_back(n: int, tmp_path):
    recipe = choose_recipe("mine", pairs(n), DATA)
    assert recipe.name == "mine" and f"{n:,} pairs" in recipe.about
    assert recipe.data.pairs == "my.tsv" and recipe.data.corpus is None
    recipe.model.config(recipe.tokenizer.vocab_size, None)
    assert recipe.train.warmup < recipe.train.max_steps
    assert recipe.train.evaluate_every == recipe.train.save_every < recipe.train.max_steps
    path = tmp_path / "recipe.toml"
    path.write_bytes(recipe_text(recipe).encode("utf-8"))
    assert load_recipe(str(path)) == recipe


def test_more_pairs_get_more_of_everything():
    chosen = [choose_recipe("mine", pairs(n), DATA) for n in (500, 5_000, 50_000, 500_000)]
    assert len(SIZES) == len(chosen)
    sizes = [recipe.tokenizer.vocab_size for recipe in chosen]
    steps = [recipe.train.max_steps for recipe in chosen]
    widths = [recipe.model.config(1000, None).d_model for recipe in chosen]
    depths = [recipe.model.config(1000, None).n_encoder_layers for recipe in chosen]
    assert sizes == sorted(set(sizes)) and steps == sorted(set(steps))
    assert widths == sorted(widths) and depths == sorted(depths)


def test_changes_go_over_what_was_chosen_and_choosing_again_is_not_changed_by_them():
    changes = ["train.max_steps=7", "train.batch_tokens=100", "model.preset=tiny"]
    recipe = choose_recipe("mine", pairs(5_000), DATA, changes)
    assert recipe.train.max_steps == 7 and recipe.model.preset == "tiny"
    assert (recipe.train.batch_tokens, recipe.train.batch_sentences) == (100, None)
    again = choose_recipe("mine", pairs(5_000), DATA)
    assert again.train.max_steps == 3000 and again.model.preset == "small"
    assert again.train.batch_sentences == 48


@pytest.mark.parametrize("change", ["train.max_step=7", "train.max_steps=x", "train"])
def test_a_wrong_change_is_a_sentence(change: str):
    with pytest.raises(UserError, match="max_steps"):
        choose_recipe("mine", pairs(9), DATA, [change])


@pytest.mark.parametrize(
    ("line", "tokenizer"),
    [
        ("On the way home, I bought bread.", "13a"),
        ("Auf dem Heimweg kaufte ich Brot.", "13a"),
        ("В дороге я купил хлеб.", "13a"),
        ("집에 가는 길에 빵을 샀다.", "13a"),
        ("回家的路上，我买了面包。", "zh"),
        ("我在 GitHub 上写 Python 代码。", "zh"),
        ("帰り道でパンを買った。", "char"),
        ("ฉันซื้อขนมปัง", "char"),
        ("ຂ້ອຍຊື້ເຂົ້າຈີ່", "char"),
        ("ကျွန်တော် ပေါင်မုန့် ဝယ်ခဲ့တယ်။", "char"),
        ("ខ្ញុំបានទិញនំប៉័ង", "char"),
        ("", "13a"),
        (" \t", "13a"),
    ],
)
def test_the_tokenizer_of_bleu_follows_the_script(line: str, tokenizer: str):
    assert bleu_tokenizer([line] * 3) == tokenizer


def test_a_few_foreign_words_do_not_change_it():
    assert bleu_tokenizer(["An ordinary English sentence about 北京."] * 9) == "13a"
    assert bleu_tokenizer([]) == "13a"
