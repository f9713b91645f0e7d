"""One page about a finished run: scores, learning curve, translations, attention.

The page is a single file: pictures are data: URIs and the style is inline. All text that comes from
data is escaped. It has no script; the pages of explorer/ within it have theirs, which the policy
allows by its hash, and they are framed without any right to the page around them.
"""

import base64
import struct
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from everyhead.cli.framed import Frame, policy, section
from everyhead.errors import UserError
from everyhead.files import atomic_write_bytes

Value = str | int | float | None


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<header><p class="brand">everyhead</p><h1>{title}</h1>{facts}</header>
{sections}
<footer>{attribution}</footer>
</main>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --quiet: #626b7d; --paper: #f6f8f9;
  --card: #fff; --line: #e1e5ea; --accent: #17807c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --quiet: #98a2b5;
  --paper: #12161d; --card: #1b212b; --line: #2d3542; --accent: #63ceae; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans CJK SC",
  "PingFang SC", "Microsoft YaHei", "WenQuanYi Micro Hei", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 3rem; }
.brand { margin: 0; color: var(--accent); font-weight: 700; letter-spacing: .02em; }
h1 { font-size: clamp(1.5rem, 5vw, 2.1rem); line-height: 1.2; margin: .2rem 0 1.2rem;
  text-wrap: balance; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .8rem; }
p.note { color: var(--quiet); margin: 0 0 .9rem; max-width: 46rem; }
dl.facts { display: flex; flex-wrap: wrap; gap: .35rem 1.6rem; margin: 0; }
dl.facts div { display: flex; gap: .45rem; }
dt { color: var(--quiet); } dd { margin: 0; font-variant-numeric: tabular-nums; }
.scores { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr));
  gap: .8rem; margin: 2rem 0 .6rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; }
.score { padding: .9rem 1.1rem; }
.score b { display: block; font-size: 2rem; line-height: 1.2; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.score span { color: var(--quiet); font-size: .9rem; }
.score .name { color: var(--ink); }
code, pre { font: .86rem/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
p.signature { margin: 0; color: var(--quiet); } p.signature code { font-size: .78rem; }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr));
  gap: .8rem; }
.pair { padding: .9rem 1.1rem; margin: 0; display: grid; gap: .15rem; align-content: start; }
.pair dt { font-size: .78rem; } .pair dd { margin-bottom: .45rem; white-space: pre-wrap; }
.pair dd.translation { color: var(--accent); font-weight: 600; margin-bottom: 0; }
figure { margin: 0 0 1.2rem; overflow: hidden; }
figure > div { overflow-x: auto; background: #fff; text-align: center; }
figure img { display: block; margin: 0 auto; max-width: 100%; height: auto; }
figure.wide img { min-width: min(46rem, var(--natural)); }
figcaption { padding: .7rem 1.1rem; color: var(--quiet); border-top: 1px solid var(--line); }
iframe { width: 100%; height: 46rem; border: 1px solid var(--line); }
pre { margin: 0; padding: .9rem 1.1rem; white-space: pre-wrap; }
footer { margin-top: 2.6rem; padding-top: 1rem; border-top: 1px solid var(--line);
  color: var(--quiet); font-size: .88rem; white-space: pre-line; }
"""


def write_report(
    path: str | Path,
    *,
    title: str,
    facts: Mapping[str, Value],
    scores: Mapping[str, Value],
    examples: Sequence[tuple[str, str, str]],
    pictures: Sequence[tuple[str, str | Path]],
    curve: str | Path | None,
    attribution: str,
    commands: Sequence[str],
    frames: Sequence[Frame] = (),
    languages: tuple[str, str] = ("en", "zh"),
) -> Path:
    """Writes index.html; an older page stays whole until the new one is.

    Args:
        facts: short things to know about the run, in this order; None is left out.
        scores: of `bleu bleu_low bleu_high chrf signature loss perplexity`, those that are known.
        examples: (source, reference, translation) of held-out sentences.
        pictures: (caption, PNG) of attention.
        curve: the learning curve's PNG.
        attribution: who made the data, and its licence.
        commands: shell lines to go on with.
        frames: pages of explorer/, each under its own title.
        languages: BCP 47 tags of source and target, so that browsers pick the right glyphs.

    Raises: UserError when a picture cannot be read or the page cannot be written.
    """
    parts = [
        _scores(scores),
        _curve(curve),
        _examples(examples, languages),
        *map(section, frames),
        _pictures(pictures),
        _commands(commands),
    ]
    page = PAGE.format(
        title=escape(title),
        policy=policy(frames),
        style=STYLE,
        facts=_facts(facts),
        sections="\n".join(part for part in parts if part),
        attribution=escape(attribution),
    )
    # A lone surrogate cannot be written; it becomes a question mark.
    atomic_write_bytes(path, page.encode("utf-8", "replace"))
    return Path(path)


def _facts(facts: Mapping[str, Value]) -> str:
    items = [
        f"<div><dt>{escape(name)}</dt><dd>{escape(_shown(value))}</dd></div>"
        for name, value in facts.items()
        if value is not None
    ]
    return f'<dl class="facts">{"".join(items)}</dl>'


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _scores(scores: Mapping[str, Value]) -> str:
    interval = ""
    if scores.get("bleu_low") is not None and scores.get("bleu_high") is not None:
        interval = f"95 % interval {scores['bleu_low']:.1f} to {scores['bleu_high']:.1f}"
    tiles = [
        _tile("BLEU", scores.get("bleu"), 1, interval or "held-out sentences"),
        _tile("chrF", scores.get("chrf"), 1, "held-out sentences"),
        _tile("Loss", scores.get("loss"), 3, "nats per token"),
        _tile("Perplexity", scores.get("perplexity"), 2, "per token"),
    ]
    signature = scores.get("signature")
    note = f'<p class="signature"><code>{escape(str(signature))}</code></p>' if signature else ""
    tiles = [tile for tile in tiles if tile]
    return f'<section><div class="scores">{"".join(tiles)}</div>{note}</section>' if tiles else ""


def _tile(name: str, value: Value, digits: int, note: str) -> str:
    if value is None:
        return ""
    number = f"{float(value):,.{digits}f}"
    return (
        f'<div class="card score"><span class="name">{name}</span><b>{number}</b>'
        f"<span>{note}</span></div>"
    )


def _curve(curve: str | Path | None) -> str:
    if curve is None:
        return ""
    caption = "Loss on training and validation pairs, and BLEU on validation pairs, by step."
    return f"<section><h2>Learning curve</h2>{_figure(caption, curve, wide=False)}</section>"


def _examples(examples: Sequence[tuple[str, str, str]], languages: tuple[str, str]) -> str:
    if not examples:
        return ""
    pairs = "".join(_pair(example, languages) for example in examples)
    return (
        "<section><h2>Held-out sentences</h2>"
        '<p class="note">Chosen by a hash, not by quality; the model never saw them.</p>'
        f'<div class="pairs">{pairs}</div></section>'
    )


def _pair(example: tuple[str, str, str], languages: tuple[str, str]) -> str:
    source, reference, translation = (escape(text) for text in example)
    from_tag, to_tag = (f'lang="{escape(tag)}" dir="auto"' for tag in languages)
    return (
        '<dl class="card pair">'
        f'<dt>Source</dt><dd class="source" {from_tag}>{source}</dd>'
        f'<dt>Reference</dt><dd class="reference" {to_tag}>{reference}</dd>'
        f'<dt>Translation</dt><dd class="translation" {to_tag}>{translation}</dd></dl>'
    )


def _pictures(pictures: Sequence[tuple[str, str | Path]]) -> str:
    if not pictures:
        return ""
    figures = "".join(_figure(caption, png, wide=True) for caption, png in pictures)
    return (
        "<section><h2>Where it looked</h2>"
        '<p class="note">Cross-attention: each row is a piece of the translation being written, '
        "each column a piece of the source; the darker a cell, the more that head took from "
        f"there. Each row sums to 1.</p>{figures}</section>"
    )


def _figure(caption: str, png: str | Path, *, wide: bool) -> str:
    try:
        content = Path(png).read_bytes()
    except OSError as error:
        raise UserError(f"The picture {png} could not be read: {error.strerror}.") from error
    if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
        raise UserError(f"{png} is not a PNG picture; draw it again.")
    # Drawn at 160 dots per inch; a browser's inch has 96.
    width, height = (round(side * 96 / 160) for side in struct.unpack(">II", content[16:24]))
    data = base64.b64encode(content).decode("ascii")
    return (
        f'<figure class="card{" wide" if wide else ""}" style="--natural: {width}px"><div>'
        f'<img width="{width}" height="{height}" alt="{escape(caption)}" '
        f'src="data:image/png;base64,{data}"></div>'
        f'<figcaption dir="auto">{escape(caption)}</figcaption></figure>'
    )


def _commands(commands: Sequence[str]) -> str:
    if not commands:
        return ""
    lines = "\n".join(escape(command) for command in commands)
    return f'<section><h2>Go on</h2><pre class="card"><code>{lines}</code></pre></section>'
