"""A small decoder over characters: every layer is `attention(q, k, v, mask=Causal(), bias=RoPE(...))`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, pad

from experiments.demo.text import ALPHABET
from unified_attn import ALiBi, Bias, Causal, RoPE, attention, attention_weights

NEWLINE = ALPHABET.index("\n")


@dataclass
class DecoderConfig:
    """The decoder and its training.

    Args:
        dim: Width.
        layers: Number of layers.
        heads: Query heads a layer.
        bias: Where tokens are: "rope" turns queries and keys, "alibi" penalises distance.
        buckets: Rows of the table of hashed character n-grams.
        context: Characters that the decoder sees.
        batch: Windows a step.
        steps: Training steps; a fixed number, so that a rerun gives the same numbers.
        matrix_lr: Peak learning rate of Muon, for the weight matrices.
        lr: Peak learning rate of Adam, for embeddings and norms.
        weight_decay: Of the matrices.
        seed: Of weights and batches.
    """

    dim: int = 128
    layers: int = 4
    heads: int = 4
    bias: str = "rope"
    buckets: int = 1 << 16
    context: int = 128
    batch: int = 24
    steps: int = 200
    matrix_lr: float = 0.01
    lr: float = 0.01
    weight_decay: float = 0.1
    seed: int = 0


class SelfAttention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        self.mask = Causal()
        self.bias: Bias = ALiBi(config.heads) if config.bias == "alibi" else RoPE(config.dim // config.heads)

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v ``[B, H, N, D]`` of x ``[B, N, H D]``."""
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads_of(x)
        return self.out(attention(q, k, v, mask=self.mask, bias=self.bias).transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        """``[B, H, N, N]``."""
        q, k, _ = self.heads_of(x)
        return attention_weights(q, k, mask=self.mask, bias=self.bias)


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(config.dim), nn.RMSNorm(config.dim)
        self.attention = SelfAttention(config)
        self.up = nn.Linear(config.dim, 4 * config.dim, bias=False)
        self.down = nn.Linear(4 * config.dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(gelu(self.up(self.norm2(x))))


class HashedNGrams(nn.Module):
    """Adds up learned vectors of the last 2, 3, 4 and 5 characters, found by hash (Pagnoni et al. 2024, section 3.2.1).

    What a 5-gram table knows costs a look-up here, and is left out of what attention has to learn. The gradient is
    sparse: a step touches only the rows that its text names.
    """

    def __init__(self, buckets: int, dim: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(buckets, dim, mode="sum", sparse=True)
        nn.init.normal_(self.table.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        code, found = x, []
        for back in range(1, 5):
            code = code * len(ALPHABET) + pad(x, (back, 0))[:, : x.shape[1]]
            # Multiplicative hashing: int64 wraps around, and a remainder by a positive size is never negative.
            found.append((code * 0x9E3779B1 >> 8) % self.table.num_embeddings)
        return self.table(torch.stack(found, -1).flatten(0, 1)).unflatten(0, x.shape)


class Decoder(nn.Module):
    """Logits ``[B, N, characters]`` of the next character, from characters ``[B, N]``."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), config.dim)
        self.ngrams = HashedNGrams(config.buckets, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim)
        nn.init.normal_(self.characters.weight, std=0.05)
        for name, weight in self.blocks.named_parameters():
            if weight.dim() == 2:  # what is added to the residual stream starts small
                into = 0.02 / math.sqrt(2 * config.layers) if name.endswith(("out.weight", "down.weight")) else None
                nn.init.normal_(weight, std=config.dim**-0.5 if into is None else into)

    def embed(self, x: Tensor) -> Tensor:
        return self.characters(x) + self.ngrams(x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return linear(self.norm(x), self.characters.weight)  # tied

    @torch.no_grad()
    def head_weights(self, x: Tensor) -> Tensor:
        """Attention of every layer and head, ``[layers, H, N, N]``, over one text ``[N]``."""
        x, found = self.embed(x[None]), []
        for block in self.blocks:
            found.append(block.attention.weights(block.norm1(x))[0])
            x = block(x)
        return torch.stack(found)

    @torch.no_grad()
    def generate(self, prompt: Tensor, length: int, context: int, temperature: float, seed: int) -> Tensor:
        """The prompt and `length` characters sampled after it."""
        generator, text = torch.Generator().manual_seed(seed), prompt
        for _ in range(length):
            logits = self(text[None, -context:])[0, -1]
            p = (logits / temperature).softmax(-1)
            text = torch.cat([text, torch.multinomial(p, 1, generator=generator)])
        return text


class RandomWindows:
    """Training batches ``[B, context + 1]``: windows at random places, the same in every run."""

    def __init__(self, text: Tensor, config: DecoderConfig) -> None:
        self.text, self.config = text, config

    def __len__(self) -> int:
        return self.config.steps

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.config.seed)
        window = torch.arange(self.config.context + 1)
        for _ in range(len(self)):
            start = torch.randint(len(self.text) - len(window), (self.config.batch, 1), generator=generator)
            yield self.text[start + window]


class EveryCharacter:
    """Batches of inputs and targets ``[B, context]``: each character is a target once; -100 is no target.

    A window is moved by three quarters of its length, so that all but the first characters have a quarter of it to look
    back upon.
    """

    def __init__(self, text: Tensor, context: int, batch: int = 32) -> None:
        inputs = torch.cat([torch.tensor([NEWLINE]), text[:-1]])
        overlap = context // 4
        self.inputs, self.targets, self.batch = [], [], batch
        for start in range(0, max(len(text) - overlap, 1), context - overlap):
            target = text[start : start + context].clone()
            target[: overlap if start else 0] = -100
            short = context - len(target)
            self.inputs.append(pad(inputs[start : start + context], (0, short)))
            self.targets.append(pad(target, (0, short), value=-100))

    def __len__(self) -> int:
        return math.ceil(len(self.inputs) / self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for n in range(0, len(self.inputs), self.batch):
            yield torch.stack(self.inputs[n : n + self.batch]), torch.stack(self.targets[n : n + self.batch])


def bits_and_count(decoder: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Bits that the targets cost, and their number."""
    nats = cross_entropy(decoder(x).transpose(1, 2), y, reduction="sum")
    return torch.stack([nats.double() / math.log(2), (y >= 0).sum().double()])


@torch.no_grad()
def bits_per_character(decoder: nn.Module, text: EveryCharacter) -> float:
    bits, count = sum(bits_and_count(decoder, x, y) for x, y in text)
    return float(bits / count)


class DecoderTraining(lightning.LightningModule):
    """Muon for the matrices, Adam for what is looked up or scales."""

    def __init__(self, net: Decoder, config: DecoderConfig) -> None:
        super().__init__()
        self.config, self.decoder = config, net
        self.automatic_optimization = False  # Lightning steps several optimizers only by hand
        self.train_curve: list[float] = []
        self.validation_curve: list[tuple[int, float]] = []
        self._sum = torch.zeros(2, dtype=torch.float64)

    def configure_optimizers(self):
        config, decoder = self.config, self.decoder
        matrices = [p for p in decoder.blocks.parameters() if p.dim() == 2]
        scales = [p for p in decoder.parameters() if p.dim() == 1]
        optimizers = [
            # Learning rates on AdamW's scale (Liu et al. 2025): measured, at equal steps, far ahead of AdamW.
            torch.optim.Muon(
                matrices, lr=config.matrix_lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW([decoder.characters.weight, *scales], lr=config.lr, betas=(0.9, 0.98), weight_decay=0.0),
            torch.optim.SparseAdam([decoder.ngrams.table.weight], lr=config.lr, betas=(0.9, 0.98)),
        ]
        return optimizers, [torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate) for optimizer in optimizers]

    def rate(self, step: int) -> float:
        """Share of the peak learning rate: up over a tenth of all steps, then down along a cosine."""
        done = (step + 0.5) / self.config.steps
        return done / 0.1 if done < 0.1 else 0.5 + 0.5 * math.cos(math.pi * (done - 0.1) / 0.9)

    def training_step(self, batch: Tensor, index: int) -> None:
        loss = cross_entropy(self.decoder(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        for schedule in self.lr_schedulers():
            schedule.step()
        self.train_curve.append(loss.item() / math.log(2))
        self.log("train_bpc", self.train_curve[-1], prog_bar=True)

    def on_validation_epoch_start(self) -> None:
        self._sum.zero_()

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self._sum += bits_and_count(self.decoder, *batch)

    def on_validation_epoch_end(self) -> None:
        bits = float(self._sum[0] / self._sum[1])
        self.validation_curve.append((len(self.train_curve), bits))
        seen = len(self.train_curve) * self.config.batch * self.config.context
        self.print(f"  after {seen:>9,} characters: {bits:.3f} bits per character of validation text")
