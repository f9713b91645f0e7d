"""The figure of the *bank* study, from the numbers in docs/bank.json."""

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from everyhead.inspection.figures import save_figure

INK, QUIET, LINE = "#1d2433", "#6b7385", "#d5d9e1"
WATER, FINANCE, NEITHER = "#3496a9", "#d9735a", "#b9bfca"
KINDS = {
    WATER: (
        "river",
        "lake",
        "sea",
        "canal",
        "stream",
        "side",
        "edge",
        "shore",
        "mouth",
        "fish",
        "boat",
    ),
    FINANCE: ("account", "loan", "money", "cash", "gold", "cheque", "safe"),
}


def draw(study: dict[str, Any], path: Path) -> None:
    """Write the figure: what two heads look at, and what the vectors know."""
    figure = Figure(figsize=(12.4, 8.0), facecolor="#ffffff")
    FigureCanvasAgg(figure)
    left, right = figure.add_gridspec(
        1, 2, width_ratios=(1.15, 1), left=0.075, right=0.975, top=0.83, bottom=0.075, wspace=0.2
    )
    bars = left.subgridspec(2, 2, wspace=0.42, hspace=0.3)
    heads = study["heads"]
    _bars(figure.add_subplot(bars[0, 0]), heads["keys for river"], "“The bank of the ☐ was muddy.”")
    _bars(figure.add_subplot(bars[0, 1]), heads["queries for river"], "“The ☐ of the river was …”")
    _bars(
        figure.add_subplot(bars[1, 0]),
        heads["keys for money"],
        "“The ☐ was deposited in the bank.”",
    )
    _bars(figure.add_subplot(bars[1, 1]), heads["queries for money"], "“The money was … in the ☐.”")
    _layers(figure.add_subplot(right), study["senses"])
    _texts(figure)
    save_figure(figure, path, dpi=120)


def _texts(figure: Figure) -> None:
    def write(x: float, y: float, text: str, size: float, **more: Any) -> None:
        figure.text(x, y, text, size=size, color=more.pop("color", INK), va="center", **more)

    write(0.02, 0.955, "bank: what a head looks at, and what the vector knows", 15, weight="bold")
    write(0.02, 0.905, "Layer 0 head 4 (above) and layer 2 head 4 (below) look at words that", 9.5)
    write(0.02, 0.88, "go together, whatever bank means: weight when the word in ☐ is swapped", 9.5)
    write(0.56, 0.905, "The sense shows in the vectors: share of sentences whose", 9.5)
    write(0.56, 0.88, "nearest neighbour, by the word’s vector, has the same sense", 9.5)
    for i, (colour, name) in enumerate(
        ((WATER, "water"), (FINANCE, "finance"), (NEITHER, "neither"))
    ):
        write(0.19 + 0.075 * i, 0.03, "■", 10, color=colour)
        write(0.202 + 0.075 * i, 0.03, name, 8.5, color=QUIET)


def _bars(axes: Any, weights: dict[str, float], title: str) -> None:
    words = list(weights)
    colours = [INK, *(_colour(word) for word in words[1:])]
    axes.barh(range(len(words)), [weights[word] for word in words], color=colours, height=0.72)
    for place, word in enumerate(words):
        axes.text(
            weights[word] + 0.012, place, f"{weights[word]:.2f}", va="center", size=7, color=QUIET
        )
    axes.set_yticks(range(len(words)), words, size=8, color=INK)
    axes.get_yticklabels()[0].set_weight("bold")
    axes.set(xlim=(0, 0.8), ylim=(len(words) - 0.4, -0.6))
    axes.set_title(title, size=8.5, color=INK, loc="left")
    axes.tick_params(length=0)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(LINE)


def _colour(word: str) -> str:
    return next((colour for colour, words in KINDS.items() if word in words), NEITHER)


def _layers(axes: Any, senses: dict[str, Any]) -> None:
    places = range(len(senses["bank"]))
    axes.fill_between(places, 0, senses["shuffled, 95 %"], color="#eceef2", linewidth=0)
    axes.axhline(7 / 15, color=QUIET, linewidth=0.8, linestyle=":")
    for name, colour, label, style in (
        ("bank", "#414386", "bank, 16 plain sentences", "-"),
        ("mixed", "#3496a9", "bank, 8 sentences with words of the other sense", "-"),
        ("the", "#d9735a", "control: the, in the same sentences", "--"),
    ):
        axes.plot(places, senses[name], style, color=colour, marker="o", markersize=5, label=label)
    axes.text(6, 7 / 15 + 0.01, "chance", size=8, color=QUIET, ha="right", va="bottom")
    axes.text(0.08, 0.04, "grey: where 95 % of shuffled senses lie", size=8, color=QUIET)
    axes.set_xticks(places, ["embedding", *(f"layer {i}" for i in places[:-1])], size=8, color=INK)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "all"], size=8, color=INK)
    axes.set(ylim=(0, 1.04), xlim=(-0.15, len(places) - 0.85))
    axes.tick_params(length=0)
    axes.legend(frameon=False, fontsize=8.5, loc="lower center", bbox_to_anchor=(0.5, 0.09))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
