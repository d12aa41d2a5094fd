"""The description of a model, resolved: every key has a value, and each table is the options of its mechanism.

`sources` resolves what a file, a config or a line of text says into a `Description`; `sources.assemble` builds its
parts. Numbers may be symbols or arrays (from `algebra` and `sweep`, never from a user), which pass unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from txcalc.num import Num, total
from txcalc.parts.forms import pieces
from txcalc.parts.mechanisms import section_of
from txcalc.parts.options import (
    REQUIRED,
    Options,
    Raw,
    Table,
    Wrong,
    count,
    flag,
    key,
    letter,
    one_of,
    size,
    text,
    texts,
    up_to,
)

if TYPE_CHECKING:
    from txcalc.parts.adapters import LoraOptions
    from txcalc.parts.attention import AttentionOptions
    from txcalc.parts.drafts import FeaturesOptions
    from txcalc.parts.embedding import AudioOptions, EmbeddingOptions, VisionOptions
    from txcalc.parts.feedforward import ExpertsOptions, FeedForwardOptions
    from txcalc.parts.head import HeadOptions
    from txcalc.parts.latent import LatentOptions
    from txcalc.parts.norm import NormOptions
    from txcalc.parts.place import Mechanism
    from txcalc.parts.positions import PositionsOptions
    from txcalc.parts.projectors import ProjectorOptions

MAX_LAYERS = 10**5


def layers(value: Any) -> Any:
    """A number of layers."""
    if type(size(value)) is int and value > MAX_LAYERS:
        raise Wrong(f"a whole number from 1 to {MAX_LAYERS:,}")
    return value


def expected_params(value: object) -> int:
    """A number of parameters that a preset expects."""
    if type(value) is not int or value < 1:
        raise Wrong("a whole number above 0")
    return value


def table(value: object) -> Table | None:
    """A table, whose keys are read elsewhere."""
    if value is not None and not isinstance(value, Mapping):
        raise Wrong("a table")
    return value


def tables_by_name(value: object) -> Table:
    """Tables by name."""
    if not isinstance(value, Mapping) or not all(isinstance(item, Mapping) for item in value.values()):
        raise Wrong("tables by name")
    return value


class LayerSpec(Struct, frozen=True):
    """A kind of layer: its parts in order, its norms and positions, and the options of its parts by their table."""

    parts: list[str]
    norm: NormOptions
    positions: PositionsOptions
    tables: Mapping[str, Mechanism]

    def options(self, part: str) -> Mechanism:
        """The options of one of its parts."""
        return self.tables[section_of(part, self.tables)]

    @property
    def attention(self) -> AttentionOptions | None:
        """Its softmax attention with keys and values per head; of MLA and the like: None."""
        return cast("AttentionOptions | None", self.tables.get("attention"))

    @property
    def latent(self) -> LatentOptions | None:
        return cast("LatentOptions | None", self.tables.get("latent"))

    @property
    def feed_forward(self) -> FeedForwardOptions | None:
        return cast("FeedForwardOptions | None", self.tables.get("feed_forward"))

    @property
    def experts(self) -> ExpertsOptions | None:
        return cast("ExpertsOptions | None", self.tables.get("experts"))

    @property
    def leaves(self) -> list[Raw]:
        """The leaves that it lists one by one."""
        return cast("list[Raw]", self.tables["pieces"].get("leaves")) if "pieces" in self.parts else []


class StackSpec(Options):
    """A stack of layers: its sizes, the options of its tables, and its kinds of layers.

    role      "decoder", "encoder", "cross-decoder" (of an encoder-decoder) or "vision"
    groups    the kinds of layers by first appearance, with the indices at which each stands
    counts    layers of each kind where that is a symbol; else as many as its indices
    """

    section = ""

    d_model: Num = letter(REQUIRED, "model width")
    n_layers: Num = key(layers, REQUIRED, "layers")
    vocab_size: Num | None = letter(
        None,
        "rows of the token table as stored; without it no table and no head",
        "where tokens are read, not patches or sound",
    )
    pattern: list[str] | None = key(
        texts, None, "layer kinds in order, repeated over the layers: 'local', '5*local', …"
    )
    shared_layers: bool = key(flag, False, "one set of weights for all layers")
    streams: Num | None = key(
        size, None, "residual streams: a layer computes one, and predicts and corrects the others (AltUp)"
    )
    active_stream: Num = key(count, 0, "which of the `streams` a layer computes, from 0")
    hyper: Num | None = key(
        size, None, "residual streams: each part reads a mix of them, and its result is added to all"
    )
    hyper_steps: int = key(
        up_to(100), 0, "how often rows and columns of the matrix that mixes the streams are normalised; 0: never"
    )
    contacts: bool = key(flag, False, "weights of a regression on the attention weights of all heads; not run (ESM)")
    idle: Num | None = letter(None, "parameters that no token runs through", check=expected_params)
    around: list[Raw] = key(pieces, [], "leaves outside the layers, each a table of name, form, sizes, …")
    projected: bool = key(flag, False, "a matrix with a bias from the encoder's width to the decoder's")
    matched: bool = key(
        flag, False, "scores of every text with every picture of the batch: dot products of their classes (CLIP)"
    )
    length: Num | None = letter(None, "positions that listed layers produce, whatever the number of tokens (a picture)")
    laurel: Num | None = key(size, None, "rank of a learned residual beside a layer's first part")

    role: str
    norm: NormOptions
    positions: PositionsOptions
    embedding: EmbeddingOptions
    head: HeadOptions
    vision: VisionOptions | None
    audio: AudioOptions | None
    lora: LoraOptions | None
    features: FeaturesOptions | None
    projector: ProjectorOptions | None
    groups: Sequence[tuple[str, tuple[int, ...]]]
    layer: Mapping[str, LayerSpec]
    counts: Mapping[str, Num] | None = None
    whole_layers: Num | None = None  # of the model, where this is a structure with one layer of each kind

    @property
    def layer_counts(self) -> list[tuple[str, tuple[int, ...], Num]]:
        """The kinds of layers with their indices, and how many layers are of each."""
        if self.counts is not None:
            return [(name, indices, self.counts[name]) for name, indices in self.groups]
        if len(self.groups) == 1:
            return [(name, indices, self.n_layers) for name, indices in self.groups]
        return [(name, indices, len(indices)) for name, indices in self.groups]

    @property
    def all_layers(self) -> Num:
        """The number of the model's layers."""
        return total([number for _, _, number in self.layer_counts]) if self.whole_layers is None else self.whole_layers

    @property
    def fixed_positions(self) -> Num | None:
        """Positions of the picture that it reads, or of an audio tower; None: as the workload says."""
        if self.length is not None:
            return self.length
        if self.audio and self.role == "encoder" and self.projector:
            return self.audio.positions
        return self.vision.positions if self.vision else None

    def tables(self, section: str) -> list[Mechanism]:
        """A table of every kind of layer that has it."""
        return [layer.tables[section] for layer in self.layer.values() if section in layer.tables]

    @property
    def attentions(self) -> list[AttentionOptions]:
        """The softmax attention of every kind of layer that has it."""
        return [layer.attention for layer in self.layer.values() if layer.attention]


class Description(Options):
    """A model: its name, what it is, how its checkpoint is stored, and its stacks: "encoder" and "decoder", or one
    named ""."""

    section = ""

    name: str = key(text, "", "name in lower case with hyphens")
    family: str = key(text, "", "family the model belongs to")
    kind: str = key(
        one_of("decoder", "encoder", "encoder-decoder", "vision", "audio"), "decoder", "how stacks are joined"
    )
    context: Num | None = key(size, None, "longest context it was made for, in tokens")
    source: str = key(text, "", "where the sizes were published")
    params: int | None = key(expected_params, None, "parameters it must give")
    active: int | None = key(expected_params, None, "active parameters it must give")
    published: str = key(text, "", "the count its authors print, and why it differs, if it does")
    model_type: str = key(text, "", "name of the architecture in Hugging Face configs")
    predictors: Num = key(
        count, 0, "multi-token-prediction layers, each like the last layer; not part of the model's counts"
    )
    drafting: str = key(
        one_of("in-turn", "at-once", "block"),
        "in-turn",
        "how it proposes tokens for another model: one after another, all in one pass, or a block that reads itself",
    )
    multimodal: bool = key(flag, False, "whether it is the language model of a multimodal model")
    dtype: str = key(
        one_of("bf16", "fp16", "fp32"), "bf16", "dtype that the published checkpoint has, quantised or not"
    )
    released: bool = key(flag, True, "whether its weights are available; `fit` offers only these")
    quantization: Table | None = key(table, None, "quantization_config of the published checkpoint")
    variants: Table = key(tables_by_name, {}, "quantization_config of its makers' other checkpoints, by format")
    towers: Table = key(tables_by_name, {}, "vision and audio towers, each a description with a projector")
    undescribed_tower_params: int | None = key(
        expected_params, None, "parameters of towers and projectors that `towers` does not describe"
    )

    stacks: Mapping[str, StackSpec]

    @classmethod
    def joined(cls, kind: str, stacks: Mapping[str, StackSpec]) -> Description:
        """The description of stacks alone."""
        return cls.of({"kind": kind}).replace(stacks=stacks)

    @property
    def last(self) -> StackSpec:
        """Its only stack, or its decoder."""
        return [*self.stacks.values()][-1]

    @property
    def layers(self) -> list[LayerSpec]:
        """Every kind of layer of every stack."""
        return [layer for stack in self.stacks.values() for layer in stack.layer.values()]


def as_tables(value: object) -> Any:
    """A description, or a part of it, as plain tables by key."""
    if isinstance(value, LayerSpec):
        layer = {"parts": value.parts, **value.tables, "norm": value.norm, "positions": value.positions}
        return as_tables(layer)
    if isinstance(value, Options):
        return as_tables(value.values())
    if isinstance(value, Mapping):
        return {name: as_tables(item) for name, item in value.items()}
    return value


Node = TypeVar("Node")


def map_values(value: Node, change: Callable[[str, Any], Any], name: str = "") -> Node:
    """A description with each of its values replaced by `change(key, value)`."""
    result: Any
    if isinstance(value, Options):
        result = value.replace(**{key: map_values(item, change, key) for key, item in vars(value).items()})
    elif isinstance(value, LayerSpec):
        tables = map_values(value.tables, change)
        norm, positions = map_values(value.norm, change), map_values(value.positions, change)
        result = replace(value, norm=norm, positions=positions, tables=tables)
    elif isinstance(value, Mapping):
        result = {key: map_values(item, change, key) for key, item in value.items()}
    else:
        result = change(name, value)
    return cast(Node, result)
