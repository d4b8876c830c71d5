"""A target in PyTorch, for accelerators: it writes thousands of answers at once, and reads them for a head.

It computes with the values of the target's file, in 16-bit floats. Its rounding is not that of edge-spec's kernels, so
what it writes is for drafters to learn from, and never the text that the target itself would write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edge_spec.errors import UnsupportedModel
from edge_spec.models import ModelFile, read_header
from edge_spec.training.drafter.heads import head_shape, target_layers
from edge_spec.training.drafter.target_rows import rows_of
from edge_spec.training.model import Block, Cache, Llama
from edge_spec.training.modules import Rotation, rotate
from edge_spec.training.settings import Shape

__all__ = ["TorchTarget"]

_ARCHITECTURE = "llama"
_READ = frozenset(
    {
        "vocab_size",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
    }
)
"""Settings of the architecture that are heeded, or checked; a file with others would be computed wrongly."""

_UNIT = 8
"""Columns of a mask come in whole units, in which fused kernels of attention read it."""
_COMPACTED_EVERY, _SPARSE = 16, 0.8
"""So often the rows of ended answers are dropped, if no more than this share of the rows is still written."""
_READ_AT_ONCE = 1 << 15
"""Tokens of prompts."""

_HINT = "let edge-spec's kernels write its answers: `edge-spec drafter make`"

_Attend = Callable[[int, Block, Tensor], Tensor]
"""Attention of a layer, given by its number, on its normed input."""


class TorchTarget:
    """A model of llama's architecture that has one matrix for input and output.

    Args:
        device: PyTorch's name.
        kind: of its weights and of what it computes: 16-bit floats on accelerators.

    Raises:
        UnsupportedModel: the file holds another model, or weights in a form that cannot be read here.
    """

    def __init__(self, file: ModelFile, *, device: str, kind: torch.dtype = torch.float16) -> None:
        _require_known(file)
        alike = head_shape(file, file.n_vocab)
        model = Llama(
            Shape(
                n_layers=file.n_layers,
                n_embd=file.n_embd,
                n_head=file.n_head,
                n_head_kv=max(file.n_head_kv),
                n_ff=alike.n_ff,
                n_vocab=file.n_vocab,
                n_ctx=file.n_ctx_train,
                rope_base=alike.rope_base,
                norm_epsilon=alike.norm_epsilon,
            )
        )
        weights = model.named_weights()
        if others := sorted({tensor.name for tensor in file.tensors} - weights.keys()):
            raise UnsupportedModel(f"{file.path.name} has {others[0]}, which is not computed here", hint=_HINT)
        for name, weight in weights.items():
            rows = rows_of(file, name)
            if rows is None or rows.size != weight.numel():
                raise UnsupportedModel(f"{name} of {file.path.name} cannot be read here", hint=_HINT)
            with torch.no_grad():
                weight.copy_(torch.from_numpy(rows).view_as(weight))
        self._model = model.eval().requires_grad_(False).to(device)
        # Rotations stay in 32 bits, as a norm's sums do.
        for parameter in self._model.parameters():
            parameter.data = parameter.data.to(kind)
        self._layers = target_layers(file)
        self._device, self._kind = device, kind

    @property
    def device(self) -> str:
        """PyTorch's name of where it computes."""
        return self._device

    @property
    def column_bytes(self) -> int:
        """What a token that was read takes in keys and values."""
        shape = self._model.shape
        return 2 * shape.n_layers * shape.n_head_kv * shape.head_dim * self.output.element_size()

    @property
    def output(self) -> Tensor:
        """The output rows, ``[n_vocab, width]``."""
        return self._model.embedding

    @torch.no_grad()
    def read(self, tokens: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Read rows of texts, of which none sees another.

        Args:
            tokens: ids, ``[rows, n]``.
            texts: number of the text that each token belongs to, ``[rows, n]``.

        Returns:
            What goes into the layers that a head reads, ``[rows, n, 3 * width]``, and what the output rows are
            multiplied by, ``[rows, n, width]``.
        """
        n = tokens.shape[1]
        before = torch.ones((n, n), dtype=torch.bool, device=tokens.device).tril()
        mask = self.mask((texts[:, :, None] == texts[:, None, :]) & before)[:, None]
        rotation = self.rotation(0, n)

        def attend(_: int, block: Block, x: Tensor) -> Tensor:
            return _attended(*self.heads(block, x, rotation), mask)

        with torch.autocast(tokens.device.type, enabled=False):
            x, taps = self.through_layers(tokens, attend)
            return torch.cat(taps, dim=-1), self.normed(x)

    @torch.no_grad()
    def write(
        self,
        prompts: Sequence[Sequence[int]],
        temperatures: npt.NDArray[np.float32],
        ends: npt.NDArray[np.int64],
        *,
        new: int,
        seed: int,
    ) -> list[list[int]]:
        """Return an answer to each prompt; its last token is the one that ends it, unless it is cut.

        Args:
            prompts: in token ids; those of one call take as much memory each as the longest.
            temperatures: of each answer; 0 picks the likeliest token.
            ends: tokens that end an answer.
            new: the most tokens of an answer.
        """
        device, n, longest = self._device, len(prompts), max(map(len, prompts))
        given = np.zeros((n, longest), np.int64)
        for row, prompt in zip(given, prompts, strict=True):
            row[longest - len(prompt) :] = prompt  # so that all of them end, and go on, in the same column
        tokens = torch.from_numpy(given).to(device)
        first = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
        width = -(-(longest + new) // _UNIT) * _UNIT
        columns = torch.arange(width, device=device)
        text = _Text(self, n, width)
        own = columns >= first[:, None]
        last = torch.cat(
            [
                text.prefill(tokens[some], own[some, :longest], some)
                for some in torch.arange(n, device=device).split(max(1, _READ_AT_ONCE // longest))
            ]
        )
        text.see(own & (columns < longest))
        generator = torch.Generator(device).manual_seed(seed)
        heat = torch.from_numpy(temperatures).to(device)[:, None]
        ending = torch.zeros(self.output.shape[0], dtype=torch.bool, device=device)
        ending[torch.from_numpy(ends).to(device)] = True
        written = torch.zeros((n, new), dtype=torch.int64, device=device)
        rows, over = torch.arange(n, device=device), torch.zeros(n, dtype=torch.bool, device=device)
        for place in range(new):
            token = self._drawn(last, heat, generator)
            written[rows, place] = token
            over |= ending[token]
            if place % _COMPACTED_EVERY == _COMPACTED_EVERY - 1:
                going = torch.nonzero(~over).flatten()
                if len(going) == 0:
                    break
                if len(going) <= _SPARSE * len(rows):
                    rows, over, heat, token = rows[going], over[going], heat[going], token[going]
                    text.take(going)
            if place + 1 < new:
                last = text.decode(token, longest + place)
        return _until(written.cpu().numpy(), ends)

    def _drawn(self, last: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a token of each row: the arg max with Gumbel noise, which is a draw from the distribution."""
        logits = functional.linear(last, self.output).float()
        noise = torch.empty_like(logits).exponential_(generator=generator).log_()
        return logits.sub_(noise.mul_(heat)).argmax(-1)

    def rotation(self, first: int, n: int) -> Rotation:
        """Return the rotations of some columns."""
        return self._model.cosines[first : first + n], self._model.sines[first : first + n]

    def heads(self, block: Block, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, ``[rows, heads, n, head]``."""
        q, k, v = (each(x).unflatten(-1, (-1, block.head_dim)) for each in (block.attn_q, block.attn_k, block.attn_v))
        return rotate(q, rotation).transpose(1, 2), rotate(k, rotation).transpose(1, 2), v.transpose(1, 2)

    def mask(self, seen: Tensor) -> Tensor:
        """Return what is added to scores: nothing where a column is seen."""
        return torch.zeros(seen.shape, dtype=self._kind, device=self._device).masked_fill_(~seen, float("-inf"))

    def through_layers(self, tokens: Tensor, attend: _Attend) -> tuple[Tensor, list[Tensor]]:
        """Return what comes out of the last layer, and what goes into those that a head reads."""
        x, taps = functional.embedding(tokens, self.output), []
        for number, block in enumerate(self._model.blocks):
            assert isinstance(block, Block)
            if number in self._layers:
                taps.append(x)
            x = x + block.attn_output(attend(number, block, block.attn_norm(x)))
            y = block.ffn_norm(x)
            x = x + block.ffn_down(functional.silu(block.ffn_gate(y)) * block.ffn_up(y))
        return x, taps

    def normed(self, x: Tensor) -> Tensor:
        """Return what the output rows are multiplied by."""
        normed: Tensor = self._model.output_norm(x)
        return normed

    def cache(self, rows: int, n_ctx: int) -> Cache:
        """Return an empty cache."""
        return self._model.cache(rows, n_ctx, self._kind)


class _Text:
    """What rows have read, in columns that they share."""

    def __init__(self, of: TorchTarget, rows: int, columns: int) -> None:
        self._of, self._cache = of, of.cache(rows, columns)

    def prefill(self, tokens: Tensor, own: Tensor, rows: Tensor) -> Tensor:
        """Read the prompts of some rows, ``[n, columns]``; returns what output rows are multiplied by at their ends.

        Args:
            own: which columns hold tokens of a row's prompt.
        """
        of, n = self._of, tokens.shape[1]
        before = torch.ones((n, n), dtype=torch.bool, device=tokens.device).tril()
        # A position before the beginning of every prompt sees itself, since a softmax over nothing is NaN.
        itself = torch.eye(n, dtype=torch.bool, device=tokens.device)
        mask, rotation = of.mask(before & own[:, None] | itself)[:, None], of.rotation(0, n)
        first = slice(int(rows[0]), int(rows[-1]) + 1)

        def attend(number: int, block: Block, x: Tensor) -> Tensor:
            q, k, v = of.heads(block, x, rotation)
            self._cache.keys[number][first, :, :n], self._cache.values[number][first, :, :n] = k, v
            return _attended(q, k, v, mask)

        return of.normed(of.through_layers(tokens, attend)[0][:, -1])

    def see(self, seen: Tensor) -> None:
        """Say which columns rows see, ``[rows, columns]``; besides, they will see what they decode."""
        self._mask = self._of.mask(seen)

    def decode(self, tokens: Tensor, column: int) -> Tensor:
        """Read a token of every row, which goes into a column of its own; returns as ``prefill``."""
        of, rotation = self._of, self._of.rotation(column, 1)
        self._mask[:, column] = 0
        width = -(-(column + 1) // _UNIT) * _UNIT

        def attend(number: int, block: Block, x: Tensor) -> Tensor:
            q, k, v = of.heads(block, x, rotation)
            keys, values = self._cache.keys[number], self._cache.values[number]
            keys[:, :, column : column + 1], values[:, :, column : column + 1] = k, v
            # The queries that share keys stand side by side as if they were tokens: keys are read once for them.
            n, n_kv = len(q), keys.shape[1]
            grouped = q.view(n, n_kv, -1, block.head_dim)
            mask = self._mask[:, None, None, :width].expand(-1, n_kv, grouped.shape[2], -1)
            y = functional.scaled_dot_product_attention(
                grouped, keys[:, :, :width], values[:, :, :width], attn_mask=mask
            )
            return y.reshape(n, 1, -1)

        return of.normed(of.through_layers(tokens[:, None], attend)[0][:, 0])

    def take(self, rows: Tensor) -> None:
        """Go on with some of the rows only."""
        for each in (self._cache.keys, self._cache.values):
            for number, layer in enumerate(each):
                each[number] = layer[rows]
        self._mask = self._mask[rows]


def _require_known(file: ModelFile) -> None:
    """Refuse a file of another architecture, or with settings that would be computed wrongly."""
    if file.architecture != _ARCHITECTURE:
        raise UnsupportedModel(f"{file.path.name} is not of {_ARCHITECTURE}'s architecture", hint=_HINT)
    begin = f"{_ARCHITECTURE}."
    settings = {
        name.removeprefix(begin): value
        for name, value in read_header(file.path).metadata.items()
        if name.startswith(begin)
    }
    head = file.n_embd // file.n_head
    heads = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    wrong = [name for name in heads if settings.get(name, head) != head] + sorted(settings.keys() - _READ)
    if wrong:
        what = f"{begin}{wrong[0]} = {settings[wrong[0]]}"
        raise UnsupportedModel(f"{file.path.name} has {what}, which is not computed here", hint=_HINT)


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of several tokens, ``[rows, n, width]``."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    mask = mask.expand(-1, q.shape[1], -1, -1)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def _until(written: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[list[int]]:
    """Return each row up to its first token that ends it."""
    over = np.isin(written, ends)
    lengths = np.where(over.any(1), over.argmax(1) + 1, written.shape[1])
    return [row[:length].tolist() for row, length in zip(written, lengths.tolist(), strict=True)]
