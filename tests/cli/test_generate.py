"""everyhead generate: the text alone on stdout, by pieces, by lines, as JSON; talk; labels."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from everyhead.cli import conversing, writing
from everyhead.cli.app import main
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.generation.generate import generate
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.weights.folder import load, save
from tests.cli.conftest import everyhead, refused, streams
from tests.generation.test_chat import CHATML, SPECIALS

LINES = ["The cat sat on the mat, and the dog sat by the door.", "我看见一只猫。你好，世界！ 🙂"]
SHORT = ("--max-new-tokens", "12")
MAX_LEN = 120


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small GPT-2 that writes many characters, and knows how to converse."""
    folder = tmp_path_factory.mktemp("runs") / "writer"
    tokenizer = TextTokenizer.train(LINES, kind="byte-level", vocab_size=300, specials=SPECIALS)
    tokenizer = TextTokenizer(tokenizer.inner, tokenizer.config | {"chat_template": CHATML})
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300, d_model=32, n_heads=4, n_layers=2, max_len=MAX_LEN, eos_id=tokenizer.eos_id
    )
    model = GPT2(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(std=0.4)
    save(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def opened(writer: Path) -> tuple[Any, Any]:
    return load(writer)


def texts(opened: tuple[Any, Any], prompts: list[str], **asked: Any) -> list[str]:
    return generate(*opened, prompts, max_new_tokens=12, **asked)


def test_a_prompt_is_answered_with_its_text_alone(writer: Path, opened: tuple[Any, Any]):
    for prompt in ("The cat", "我看见", "a\nb"):
        (wanted,) = texts(opened, [prompt], temperature=0)
        code, out, err = everyhead("generate", writer, prompt, *SHORT, "--temperature", 0)
        assert (code, out, err) == (0, wanted + "\n", "")
        stdin = prompt.encode("utf-8") + b"\n"
        found = everyhead("generate", writer, *SHORT, "--temperature", 0, stdin=stdin)
        assert found == (0, wanted + "\n", "")


def test_options_reach_the_sampler(writer: Path, opened: tuple[Any, Any]):
    asked: dict[str, Any] = {"temperature": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.01}
    asked |= {"repetition_penalty": 1.3, "seed": 7}
    options = [str(each) for k, v in asked.items() for each in (f"--{k.replace('_', '-')}", v)]
    (wanted,) = texts(opened, ["The"], **asked)
    assert everyhead("generate", writer, "The", *SHORT, *options).out == wanted + "\n"
    stop = wanted[4:6]
    code, out, _ = everyhead("generate", writer, "The", *SHORT, *options, "--stop", stop)
    assert (code, out) == (0, wanted[: wanted.index(stop)] + "\n")
    (wanted,) = texts(opened, ["The"], beam=3, length_penalty=0.5)
    beams = ("--beam", 3, "--length-penalty", 0.5)
    assert everyhead("generate", writer, "The", *SHORT, *beams).out == wanted + "\n"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_file_of_prompts_gives_a_line_each_in_order(
    writer: Path, opened: tuple[Any, Any], tmp_path: Path, ending: str
):
    prompts = ["The cat", "", "a", "我看见一只猫。", "The dog sat by the"]
    file = tmp_path / "prompts.txt"
    file.write_bytes(("\ufeff" + ending.join(prompts) + ending).encode("utf-8"))
    wanted = [writing.one_line(text) for text in texts(opened, prompts, seed=4)]
    code, out, err = everyhead("generate", writer, "--prompts", file, *SHORT, "--seed", 4)
    assert (code, out, err) == (0, "\n".join(wanted) + "\n", "")
    stdin = file.read_bytes()
    found = everyhead("generate", writer, "--prompts", "-", *SHORT, "--seed", 4, stdin=stdin)
    assert found.out == out


def test_json_says_the_text_exactly_and_why_it_ended(
    writer: Path, opened: tuple[Any, Any], tmp_path: Path
):
    prompts = ["The cat", "我\\n"]
    file = tmp_path / "prompts.txt"
    file.write_bytes("\n".join(prompts).encode("utf-8"))
    asked = ("--json", "--samples", 2, "--seed", 1, *SHORT)
    code, out, err = everyhead("generate", writer, "--prompts", file, *asked)
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    wanted = texts(opened, prompts, seed=1, samples=2)
    assert [each["text"] for each in found] == [text for pair in wanted for text in pair]
    assert [each["prompt"] for each in found] == [p for p in prompts for _ in range(2)]
    for each in found:
        assert (each["ended_by"], each["tokens"]) == ("length", 12) or each["ended_by"] == "end"


@pytest.mark.parametrize("text", ["a\nb\r\\n", "\\", "\n\n", "plain"])
def test_a_line_holds_a_text_and_gives_it_back(text: str):
    line = writing.one_line(text)
    assert "\n" not in line and "\r" not in line
    assert writing.unescaped(line.replace("\\r", "\r")) == text


class Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal, and keeps what is written at once."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.pieces: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return len(text)


def test_a_terminal_gets_pieces_and_a_pipe_whole_lines(monkeypatch):
    pieces = ["one ", "two\nthr", "ee", "\n\nfour"]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert writing.show(pieces) == "".join(pieces)
    assert [piece for piece in terminal.pieces if piece] == [*pieces, "\n"]
    seen: list[str] = []
    with streams(b"") as (out, _):

        def watched() -> Iterator[str]:
            for piece in pieces:
                seen.append(out.getvalue().decode())
                yield piece

        writing.show(watched())
        seen.append(out.getvalue().decode())
    assert seen == ["", "", "one two\n", "one two\n", "one two\nthree\n\nfour\n"]


def test_a_reader_that_goes_away_ends_it_quietly(writer: Path, monkeypatch):
    def gone(pieces: object) -> str:
        raise BrokenPipeError

    monkeypatch.setattr("everyhead.cli.generate.show", gone)
    assert everyhead("generate", writer, "The", *SHORT) == (141, "", "")


def test_the_model_s_limit_is_kept_and_said(writer: Path, opened: tuple[Any, Any]):
    tokenizer = opened[1]
    prompt = tokenizer.decode(tokenizer.encode(LINES[0] * 9)[: MAX_LEN - 4])
    room = MAX_LEN - len(tokenizer.encode(prompt))
    code, out, err = everyhead("generate", writer, prompt, "--seed", 2, "--json")
    (found,) = [json.loads(line) for line in out.splitlines()]
    assert (code, found["tokens"], found["ended_by"]) == (0, room, "context")
    assert f"reads at most {MAX_LEN} tokens" in err
    assert "reads at most 120" in everyhead("generate", writer, prompt, "--seed", 2).err


def test_what_is_wrong_is_one_sentence(writer: Path, run: Path, tmp_path: Path):
    assert "The prompt is empty" in refused("generate", writer, "")
    assert "The prompt is empty" in refused("generate", writer)
    assert "shorten the prompt" in refused("generate", writer, LINES[0] * 30)
    assert "everyhead translate" in refused("generate", run, "The cat")
    assert "nowhere" in refused("generate", tmp_path / "nowhere", "The cat")
    assert "is not UTF-8" in refused("generate", writer, stdin=b"caf\xe9")
    assert "temperature is -1.0" in refused("generate", writer, "a", "--temperature", -1)
    assert "max_new_tokens is 0" in refused("generate", writer, "a", "--max-new-tokens", 0)
    assert "not there" in refused("generate", writer, "--prompts", tmp_path / "no.txt")
    assert "not both" in refused("generate", writer, "a", "--prompts", tmp_path / "no.txt")
    assert "--system is for" in refused("generate", writer, "a", "--system", "x")
    assert "--template says" in refused("generate", writer, "a", "--template", "x")
    assert "one of them" in refused("generate", writer, "--chat", "--labels", "a,b")
    long = tmp_path / "long.txt"
    long.write_bytes(f"a\n{LINES[0] * 30}\n".encode())
    assert "Prompt 2" in refused("generate", writer, "--prompts", long)


def test_chat_answers_a_message_and_remembers_it(writer: Path, opened: tuple[Any, Any]):
    asked = ("--chat", "--temperature", 0, *SHORT)
    first = everyhead("generate", writer, "The cat", *asked)
    assert first.code == 0 and first.err == ""
    said = b"The cat\n\nThe cat\n"
    code, out, err = everyhead("generate", writer, *asked, stdin=said)
    assert (code, err) == (0, "")
    assert out.startswith(first.out)
    assert out == first.out + second_answer(opened, "The cat") + "\n"


def second_answer(opened: tuple[Any, Any], message: str) -> str:
    """To the same message again, by the front door and the template written out."""
    model, tokenizer = opened
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompt = "<|im_start|>system\nYou are helpful<|im_end|>\n" + turn.format(message)
    end = "<|im_end|>"
    asked: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12, "stop": end}
    first = generate(model, tokenizer, prompt, **asked)
    return generate(model, tokenizer, f"{prompt}{first}{end}\n{turn.format(message)}", **asked)


def test_chat_forgets_the_oldest_messages_and_says_so(writer: Path):
    said = ("The cat sat on the mat.\n" * 4).encode()
    code, _, err = everyhead("generate", writer, "--chat", "--seed", 1, *SHORT, stdin=said)
    assert code == 0
    assert "oldest messages are left out" in err


def test_chat_refuses_what_it_cannot_do(writer: Path, tmp_path: Path):
    assert "leave --samples" in refused("generate", writer, "a", "--chat", "--samples", 2)
    assert "message is empty" in refused("generate", writer, " ", "--chat")
    assert "shorten the prompt" in refused("generate", writer, LINES[0] * 30, "--chat")
    model, tokenizer = load(writer)
    del tokenizer.config["chat_template"]
    save(model, tokenizer, tmp_path / "plain")
    assert "no chat template" in refused("generate", tmp_path / "plain", "a", "--chat")


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_conversation(writer: Path, monkeypatch):
    typed = iter(["The cat", KeyboardInterrupt, " ", "The dog", LINES[0] * 30, EOFError])
    heard: list[list[str]] = []

    def given(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    def shown(pieces: Iterator[str]) -> str:
        heard.append([next(pieces)])
        if len(heard) == 1:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr("builtins.input", given)
    monkeypatch.setattr(conversing, "show", shown)
    monkeypatch.setattr(conversing, "is_terminal", lambda stream: True)
    code, _, err = everyhead("generate", writer, "--chat", "--seed", 1, *SHORT)
    assert code == 0 and len(heard) == 2
    assert "Ctrl-D ends" in err and "shorten the prompt" in err
    assert list(typed) == []


def test_labels_are_chosen_by_examples(writer: Path, tmp_path: Path):
    shots = tmp_path / "shots.tsv"
    shots.write_bytes(b"The cat\tgood\n\nthe dog\tbad\n")
    form = ("--template", r"{text}\n=> {label}")
    code, out, err = everyhead(
        "generate", writer, "--shots", shots, *form, stdin=b"a door\tbad\n\nthe mat\n"
    )
    first, blank, second = out.removesuffix("\n").split("\n")
    assert code == 0 and blank == ""
    for line in (first, second):
        label, *shares = line.split("\t")
        names, numbers = zip(*(share.split(" ") for share in shares), strict=True)
        assert names == ("good", "bad") and sum(map(float, numbers)) == pytest.approx(1, abs=1e-3)
        assert label == max(zip(map(float, numbers), names, strict=True))[1]
    right = first.startswith("bad")
    assert f"{int(right)} of 1 labels are right" in err and "always 'bad' would get 100.0%" in err
    asked = ("--labels", "good,bad", *form, "--mean", "--json")
    code, out, err = everyhead("generate", writer, "a door\tgood", *asked)
    found = json.loads(out)
    assert found["text"] == "a door" and found["given"] == "good"
    assert found["probabilities"].keys() == {"good", "bad"}


def test_wrong_examples_and_labels_are_refused_with_their_line(writer: Path, tmp_path: Path):
    shots = tmp_path / "shots.tsv"
    shots.write_bytes(b"The cat\tgood\nthe dog\n")
    assert "line 2: an example is" in refused("generate", writer, "a", "--shots", shots)
    shots.write_bytes(b"The cat\tgood\n")
    assert "There is 1 label" in refused("generate", writer, "a", "--shots", shots)
    asked = ("--shots", shots, "--labels", "a,b")
    assert "has the label 'good'" in refused("generate", writer, "a", *asked)
    wrong = refused("generate", writer, "--labels", "a,b", stdin=b"x\ta\ny\tc\n")
    assert "Line 2 has the label 'c'" in wrong
    assert everyhead("generate", writer, "--labels", "a,b") == (0, "", "")


def test_the_program_knows_the_verb():
    assert main(["generate", "--help"]) == 0
