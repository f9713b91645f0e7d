"""How a sublayer f joins the stream x.

    PostNorm:  norm(x + f(x))        Vaswani et al. 2017 (1706.03762) section 3.1; B441
    PreNorm:   x + f(norm(x))        Xiong et al. 2020 (2002.04745)

Dropout is applied to f's output before it is added (1706.03762 section 5.4). The sublayers stay the
block's own modules; a residual only calls them, so parameter paths are free of it.
"""

from collections.abc import Callable

from torch import Tensor, nn

from everyhead.layers.dropout import add_dropped

Sublayer = Callable[[Tensor], Tensor]


class Residual(nn.Module):
    """The share of f's output that is dropped in training."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + dropout(y)."""
        return add_dropped(x, y, self.dropout if self.training else 0.0)


class PostNorm(Residual):
    """norm(x + f(x))."""

    def forward(self, x: Tensor, norm: nn.Module, sublayer: Sublayer) -> Tensor:
        return norm(self.add(x, sublayer(x)))


class PreNorm(Residual):
    """x + f(norm(x)); the stack ends in a norm of its own."""

    def forward(self, x: Tensor, norm: nn.Module, sublayer: Sublayer) -> Tensor:
        return self.add(x, sublayer(norm(x)))
