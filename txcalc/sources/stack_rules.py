"""Rules over several keys or layers of a stack: which values fit together. One small rule per mechanism."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txcalc.description import StackSpec
from txcalc.errors import ABSENT
from txcalc.num import divides, exceeds
from txcalc.parts.forms import crosses
from txcalc.parts.options import Options, Raw
from txcalc.parts.projectors import ProjectorOptions, projector
from txcalc.sources.layer_rules import check_table
from txcalc.sources.tables import SOUND, ReportFault, apply, unequal


def check_stack(stack: StackSpec, missing: Callable[[str], bool], fault: ReportFault) -> None:
    """Check a stack whose layers are checked; `missing` tells whether a key was not written."""
    apply((_learned_rows,), stack, missing, fault)
    with SOUND:
        check_table(stack.head, fault)
    with SOUND:
        if stack.audio is not None:
            check_table(stack.audio, fault)
    apply(STACK_RULES, stack, fault)


def check_halves(encoder: StackSpec, decoder: StackSpec, fault: ReportFault) -> None:
    """Check that halves that share a token table have equal widths, and that matched halves are classifiers of one
    width without cross-attention."""
    with SOUND:
        heads = encoder.head, decoder.head
        cross = any("cross_attention" in layer.parts for layer in decoder.layer.values())
        alike = {head.form for head in heads} == {"classifier"} and not unequal(
            *(head.get("classes") for head in heads)
        )
        if decoder.matched and (cross or not alike):
            fault("decoder.matched", True, "false: it needs two classifiers with equal classes and no cross-attention")
    with SOUND:
        if encoder.audio or encoder.vision or not encoder.embedding.shared:
            return
        pairs: tuple[tuple[str, str, Options, Options], ...] = (
            ("", "d_model", encoder, decoder),
            ("", "vocab_size", encoder, decoder),
            ("embedding.", "rank", encoder.embedding, decoder.embedding),
        )
        for prefix, key, table, reader in pairs:
            with SOUND:
                if unequal(number := table.get(key), other := reader.get(key)):
                    fault(f"decoder.{prefix}{key}", other, f"the encoder's {number}: they share a token table")


# Layers.


def _learned_rows(stack: StackSpec, missing: Callable[[str], bool], fault: ReportFault) -> None:
    counted = stack.positions.form != "learned" or stack.audio or (stack.vision and stack.vision.image)
    if not counted and missing("positions.rows"):
        fault("positions.rows", ABSENT, "the number of learned positions")


def _projected_distances(stack: StackSpec, fault: ReportFault) -> None:
    form = stack.positions.form
    if form == "relative-projection" and stack.role in ("encoder", "vision"):
        fault("positions.form", form, "another form: relative-projection needs a causal decoder")


def _separate_positions(stack: StackSpec, fault: ReportFault) -> None:
    separate = stack.positions.get("apart", False)
    if any(layer.positions.get("apart", False) != separate for layer in stack.layer.values()):
        fault("positions.apart", not separate, "the same in every layer")


def _sinusoids(stack: StackSpec, fault: ReportFault) -> None:
    rows = stack.positions.get("rows")
    if stack.positions.form == "rotary" and rows is not None:
        widths = [attention.d_head for attention in stack.attentions]
        if not widths or any(unequal(width, widths[0]) for width in widths):
            fault("positions.rows", rows, "none: a table of sinusoids needs attention heads of one width")


def _relative(stack: StackSpec, fault: ReportFault) -> None:
    if stack.positions.form != "relative":
        return
    heads = [attention.n_heads for attention in stack.attentions]
    if stack.tables("latent") or not heads or any(type(n) is int and n != heads[0] for n in heads):
        fault("positions.form", "relative", "another form: its biases need the same n_heads in every attention")
    side, vision = stack.positions.get("side"), stack.vision
    if side is None:
        return
    if not vision or not vision.class_token or vision.image is None:
        fault("positions.side", side, "none without images of one size and a class token")
    elif unequal(side * vision.patch, vision.image):
        fault("positions.side", side, f"image / patch = {vision.image} / {vision.patch}")


def _rows(stack: StackSpec, fault: ReportFault) -> None:
    form, rows = stack.positions.form, stack.positions.get("rows")
    if rows is not None and form not in ("learned", "disentangled") and stack.role not in ("encoder", "vision"):
        fault("positions.rows", rows, f"none with positions.form = {form!r}, which has no table")


def _tied_head(stack: StackSpec, fault: ReportFault) -> None:
    head, embedding = stack.head, stack.embedding
    if not head.tied or stack.role == "encoder":
        return
    if stack.vocab_size is None or head.form not in ("lm", "masked-lm"):
        fault("head.tied", True, "false: there is no token table, or no head, to share it")
    elif head.form == "lm" and embedding.rank is not None and not embedding.early:
        fault("head.tied", True, "false with embedding.rank: the table is narrower than the head")
    elif unequal(head.get("rank") or stack.d_model, embedding.rank or stack.d_model):
        fault("head.tied", True, "false with head.rank: the table has another width")


def _extra_rows(stack: StackSpec, fault: ReportFault) -> None:
    if stack.embedding.extra and (stack.vocab_size is None or stack.head.tied):
        fault("embedding.extra", stack.embedding.extra, "0 without a token table, or with a tied head")


# Parts whose adapters are proved against PyTorch: FLOPs and saved activations.
ADAPTED = {"attention", "feed_forward", "experts", "mamba"}


def _lora(stack: StackSpec, fault: ReportFault) -> None:
    if stack.lora is None:
        return
    rank, role = stack.lora.rank, stack.role
    if role not in ("decoder", "encoder") or stack.audio or stack.vision:
        fault("lora.rank", rank, "none outside a single stack with tokens as input")
    elif stack.streams is not None or stack.hyper is not None or stack.tables("layer_input"):
        fault("lora.rank", rank, "none with several residual streams, or with layer_input")
    parts = {part for layer in stack.layer.values() for part in layer.parts}
    unsupported = sorted(parts - ADAPTED)
    unsupported += ["keep" for attention in stack.attentions if attention.get("keep") is not None]
    unsupported += [stack.positions.form] if stack.positions.form in ("disentangled", "relative-projection") else []
    if unsupported:
        fault("lora.rank", rank, f"none: adapters are not supported with {', '.join(dict.fromkeys(unsupported))}")


def _encoder_positions(stack: StackSpec, fault: ReportFault) -> None:
    """Only an encoder–decoder's decoder reads the encoder's positions."""
    if stack.role == "cross-decoder":
        return
    listed = [("around", stack.around)] + [("pieces.leaves", table.get("leaves")) for table in stack.tables("pieces")]
    for path, leaves in listed:
        if name := crosses(leaves):
            fault(path, name, "pieces that do not read an encoder's positions: this stack has no encoder")


def _check_projected(stack: StackSpec, fault: ReportFault) -> None:
    if stack.projected and (stack.role != "cross-decoder" or not stack.attentions):
        fault("projected", True, "false outside a decoder with cross-attention")


def _check_matched(stack: StackSpec, fault: ReportFault) -> None:
    if stack.matched and stack.role != "cross-decoder":
        fault("matched", True, "false outside an encoder–decoder's decoder")


def _length(stack: StackSpec, fault: ReportFault) -> None:
    listed = all(layer.parts == ["pieces"] for layer in stack.layer.values()) or stack.projector
    if stack.length is not None and (stack.role != "encoder" or stack.vocab_size is not None or not listed):
        fault("length", stack.length, "none outside a tower, or an encoder of pieces without a token table")


def _features(stack: StackSpec, fault: ReportFault) -> None:
    """A draft is a decoder of tokens with one residual stream; `draft_attention` needs features to read."""
    table = stack.features
    drafting = stack.tables("draft_attention")
    if table is None:
        if drafting:
            fault("draft_attention", "a part", "none without the table features (hidden states of another model)")
        return
    if stack.role != "decoder" or stack.vocab_size is None or stack.streams is not None or stack.hyper:
        fault("features.number", table.number, "none outside a decoder of tokens with one residual stream")
    if stack.lora is not None:
        fault("lora.rank", stack.lora.rank, "none in a draft")
    if table.embedded and drafting:
        fault("features.embedded", True, "false with draft_attention, which reads the embedding itself")


def _early_embedding(stack: StackSpec, fault: ReportFault) -> None:
    embedding = stack.embedding
    if embedding.early and (embedding.rank is None or stack.head.form != "lm"):
        fault("embedding.early", True, "false without embedding.rank and head.form = 'lm'")


def _pooling(stack: StackSpec, fault: ReportFault) -> None:
    head, pool = stack.head, stack.head.get("pool", "first")
    if pool == "attention":
        first = next(iter(stack.layer.values()))
        alike = first.attention and first.feed_forward
        if not stack.vision or head.form not in ("none", "classifier") or not alike:
            fault("head.pool", "attention", "'first' unless layers of attention and a feed-forward read patches")
        elif head.get("transform") or head.get("every") or head.pooler:
            fault("head.pool", "attention", "'first' with head.transform, head.every or head.pooler")
    elif pool != "first" and not (stack.vision and stack.vision.class_token):
        fault("head.pool", pool, "'first' without patches and a class token")


def _contacts(stack: StackSpec, fault: ReportFault) -> None:
    if stack.contacts and (stack.role != "encoder" or len(stack.attentions) < len(stack.layer)):
        fault("contacts", True, "false outside an encoder with attention in every layer")


def _xielu_head(stack: StackSpec, fault: ReportFault) -> None:
    head = stack.head
    if head.form != "masked-lm" or head.get("activation") is not None or head.get("plain"):
        return
    if any(table.get("activation") == "xielu" for table in stack.tables("feed_forward")):
        expected = "another with head.form = 'masked-lm', whose transform has no weights for it"
        fault("feed_forward.activation", "xielu", expected)


def _shared_sources(stack: StackSpec, fault: ReportFault) -> None:
    """A layer that reads another layer's keys and values, or its shared block, comes later and has equal sizes."""
    same = "a layer kind with equal n_kv_heads, d_head, d_v, window and chunked"
    sizes = ("n_kv_heads", "d_head", "d_v", "window", "chunked")
    _check_source(stack, fault, "attention.kv_from", "keys and values", sizes, same)
    sizes = ("n_heads", "n_kv_heads", "d_head", "d_ff", "bias")
    _check_source(
        stack, fault, "shared.from", "a shared block", sizes, "a layer kind whose shared block has the same sizes"
    )


def _check_source(stack: StackSpec, fault: ReportFault, path: str, owned: str, sizes: Sequence[str], same: str) -> None:
    section, key = path.split(".")
    first = {name: indices[0] for name, indices in stack.groups if len(indices)}  # they ascend
    for name, layer in stack.layer.items():
        with SOUND:
            table = layer.tables.get(section)
            if not table or (length := table.get(key)) is None:
                continue
            lender = stack.layer[length].tables.get(section) if length in stack.layer else None
            if not lender or lender.get(key) is not None:
                fault(f"layer.{name}.{path}", length, f"a layer kind with {owned} of its own")
            elif first.get(length, 0) > first.get(name, 0):
                fault(f"layer.{name}.{path}", length, "a layer kind that comes before this one")
            elif any(table.get(size) != lender.get(size) for size in sizes):
                fault(f"layer.{name}.{path}", length, same)


def _shared_once(stack: StackSpec, fault: ReportFault) -> None:
    """A layer kind that holds the weights of a shared block has one layer."""
    for name, indices in stack.groups:
        table = stack.layer[name].tables.get("shared")
        if table and table.get("from") is None and len(indices) > 1:
            fault(
                f"layer.{name}.shared.from",
                None,
                "a layer kind that holds the weights: several layers would each have a copy",
            )


def _streams(stack: StackSpec, fault: ReportFault) -> None:
    """Streams and learned residuals (LAuReL) need a decoder without post-norms and parallel parts."""
    if stack.streams is None and stack.laurel is None:
        return
    norms = [layer.norm for layer in stack.layer.values()]
    placed = all(norm.place != "post" and norm.parallel == "no" for norm in norms)
    for key in ("streams", "laurel"):
        if stack.get(key) is not None and (stack.role != "decoder" or not placed):
            fault(key, stack.get(key), "none: it needs a decoder with norms before its parts and no parallel parts")


def _hyper(stack: StackSpec, fault: ReportFault) -> None:
    """Hyper-connections need a pre-norm decoder without parallel parts and without other streams."""
    number = stack.hyper
    if number is None:
        if stack.hyper_steps:
            fault("hyper_steps", stack.hyper_steps, "0: there are no streams (hyper)")
        return
    required: Raw = {
        "place": "pre",
        "parallel": "no",
        "joint": [],
        "residual": None,
        "residual_scale": False,
        "scalar": False,
    }
    placed = all(layer.norm.get(key) == value for layer in stack.layer.values() for key, value in required.items())
    plain = stack.streams is None and stack.laurel is None
    if stack.role != "decoder" or not placed or not plain or stack.tables("layer_input") or stack.tables("shared"):
        fault("hyper", number, "none: it needs a decoder with norms before its parts and no parallel parts")
    elif exceeds(2, number):
        fault("hyper", number, "two or more")


def _number_of_streams(stack: StackSpec, fault: ReportFault) -> None:
    number, active = stack.streams, stack.active_stream
    if number is None:
        if active:
            fault("active_stream", active, "0: there are no streams")
    elif exceeds(2, number):
        fault("streams", number, "two or more")
    elif exceeds(active, number - 1):
        fault("active_stream", active, f"less than streams = {number}")


def _layer_inputs(stack: StackSpec, fault: ReportFault) -> None:
    inputs = [layer.tables.get("layer_input") for layer in stack.layer.values()]
    if not any(inputs):
        return
    parts = [layer.parts for layer in stack.layer.values() if "layer_input" in layer.parts]
    if stack.streams is not None and any(names[-1] != "layer_input" for names in parts):
        fault("layer_input", "a part", "the last part of each layer, with streams")
    if stack.vocab_size is None:
        fault("vocab_size", ABSENT, "the rows of the token table: layer_input looks tokens up")
    if any(_differ(table, inputs[0], ("width", "rows")) for table in inputs):
        fault("layer_input.width", [table and table.get("width") for table in inputs], "the same in every layer")


def _patches(stack: StackSpec, fault: ReportFault) -> None:
    vision, tower = stack.vision, stack.projector
    if vision and vision.image is None and not tower:
        fault("vision.image", ABSENT, "image side in pixels", "only a tower takes images of any size")
    elif vision and vision.image is not None and not divides(vision.patch, vision.image):
        fault("vision.patch", vision.patch, f"a divisor of image = {vision.image}")
    elif tower and stack.role not in ("encoder", "vision"):
        fault("projector.steps", "steps", "none outside an encoder")
    elif tower:
        _projector(stack, tower, fault)


def _projector(stack: StackSpec, tower: ProjectorOptions, fault: ReportFault) -> None:
    positions, dropped = stack.fixed_positions, tower.dropped
    cells = {attention.get("cell") or 1 for attention in stack.attentions}
    try:
        merged = projector(stack.d_model, tower.steps).reads
    except ValueError as error:
        fault("projector.steps", "steps", f"steps whose widths and numbers fit: {error}")
        return
    if positions is not None and (positions <= dropped or not divides(merged, positions - dropped)):
        fault(
            "projector.dropped", dropped, f"a number of the {positions:,} positions that leaves a multiple of {merged}"
        )
    for cell in sorted(cells - {1}):
        if dropped or (tower.steps and not divides(cell * cell, merged)):
            fault("attention.cell", cell, f"a cell whose square divides the {merged:,} merged positions, dropped = 0")


STACK_RULES: tuple[Callable[[StackSpec, ReportFault], None], ...] = (
    _projected_distances,
    _separate_positions,
    _sinusoids,
    _relative,
    _rows,
    _tied_head,
    _extra_rows,
    _lora,
    _check_projected,
    _check_matched,
    _length,
    _features,
    _encoder_positions,
    _early_embedding,
    _pooling,
    _contacts,
    _xielu_head,
    _shared_sources,
    _shared_once,
    _streams,
    _hyper,
    _number_of_streams,
    _layer_inputs,
    _patches,
)


def _differ(first: Options | None, second: Options | None, keys: Sequence[str]) -> bool:
    """Whether a table is missing or values of `keys` differ."""
    return not (first and second) or any(unequal(first.get(key), second.get(key)) for key in keys)
