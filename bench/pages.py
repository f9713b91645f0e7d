"""The page of `everyhead look` beside BertViz's head view: how large, how long until it is written,
and how long until a browser shows the first picture.

    python -m bench.pages [--lengths 64,128,512,1000] [--peer-up-to 128] [--out FILE]

A random BERT of base size (12 layers, 12 heads) reads random tokens. BertViz (pip install bertviz
ipython) writes every weight as text and loads its scripts from the network, so offline its file has
a size and no picture; beyond --peer-up-to tokens it is not asked.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

from everyhead.explorer.page import write
from everyhead.explorer.sessions import Half, scene_of_halves
from everyhead.inspection.trace import Trace, record

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
MEGABYTE = 1e6
Row = dict[str, Any]


def recorded(n: int) -> tuple[Trace, list[str], list[int]]:
    torch.manual_seed(0)
    model = BertModel(BertConfig(max_position_embeddings=max(512, n))).eval()
    ids = torch.randint(0, 3000, (1, n))
    with torch.inference_mode(), record(model) as trace:
        model(ids)
    return trace, [f"w{i}" for i in ids[0].tolist()], ids[0].tolist()


def ours(n: int, folder: Path) -> Row:
    trace, tokens, ids = recorded(n)
    begun = time.perf_counter()
    half = {"encoder": Half(tokens, [False] * n, ids)}
    page = write(scene_of_halves(trace, half, title=f"{n} tokens"), folder / f"{n}.html")
    seconds = time.perf_counter() - begun
    return row(n, "everyhead", page.stat().st_size, seconds) | {"first picture s": first(page)}


def bertviz(n: int) -> Row:
    from bertviz import head_view

    trace, tokens, _ = recorded(n)
    begun = time.perf_counter()
    attention = [trace[name].weights() for name in trace.places()]  # (1, H, n, n) each
    page = head_view(attention, tokens, html_action="return").data
    seconds = time.perf_counter() - begun
    return row(n, "BertViz head_view", len(page.encode("utf-8")), seconds)


def row(n: int, system: str, size: int, seconds: float) -> Row:
    megabytes = round(size / MEGABYTE, 2)
    return {"tokens": n, "system": system, "MB": megabytes, "written in s": round(seconds, 2)}


def first(page: Path) -> float | None:
    """Seconds from the request to the first picture, None without a browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return None
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        tab = browser.new_page()
        begun = time.perf_counter()
        tab.goto(page.as_uri(), wait_until="commit")
        tab.wait_for_selector("body[data-ready]", timeout=60_000)
        seconds = time.perf_counter() - begun
        browser.close()
    return round(seconds, 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--lengths", default="64,128,512,1000")
    parser.add_argument("--peer-up-to", type=int, default=128)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for n in map(int, args.lengths.split(",")):
            rows.append(ours(n, Path(folder)))
            if n <= args.peer_up_to:
                rows.append(bertviz(n))
            for each in rows[-2 if n <= args.peer_up_to else -1 :]:
                print(each, flush=True)
    if args.out:
        text = json.dumps(rows, indent=1) + "\n"
        args.out.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
