"""Rules over several keys or layers of a stack: which of them fit together. One small rule per mechanism."""

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
    """A stack whose layers are checked; `missing` says whether nobody wrote a key."""
    apply((_learned,), stack, missing, fault)
    with SOUND:
        check_table(stack.head, fault)
    with SOUND:
        if stack.audio is not None:
            check_table(stack.audio, fault)
    apply(STACK_RULES, stack, fault)


def check_halves(encoder: StackSpec, decoder: StackSpec, fault: ReportFault) -> None:
    """One token table serves both halves where the encoder reads tokens, unless each has its own; those that are
    matched are classifiers of one width, each by itself."""
    with SOUND:
        heads = encoder.head, decoder.head
        read = any("cross_attention" in layer.parts for layer in decoder.layer.values())
        alike = {head.form for head in heads} == {"classifier"} and not unequal(
            *(head.get("classes") for head in heads)
        )
        if decoder.matched and (read or not alike):
            fault("decoder.matched", True, "false but where halves that do not read each other have as many classes")
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
                    fault(f"decoder.{prefix}{key}", other, f"the encoder's {number}, for they share a table of tokens")


# Layers.


def _learned(stack: StackSpec, missing: Callable[[str], bool], fault: ReportFault) -> None:
    known = stack.positions.form != "learned" or stack.audio or (stack.vision and stack.vision.image)
    if not known and missing("positions.rows"):
        fault("positions.rows", ABSENT, "the rows of the learned table")


def _projected_distances(stack: StackSpec, fault: ReportFault) -> None:
    form = stack.positions.form
    if form == "relative-projection" and stack.role in ("encoder", "vision"):
        fault("positions.form", form, "another form: it projects the distances that a causal decoder sees")


def _apart(stack: StackSpec, fault: ReportFault) -> None:
    separate = stack.positions.get("apart", False)
    if any(layer.positions.get("apart", False) != separate for layer in stack.layer.values()):
        fault("positions.apart", not separate, "the same in every layer")


def _sinusoids(stack: StackSpec, fault: ReportFault) -> None:
    rows = stack.positions.get("rows")
    if stack.positions.form == "rotary" and rows is not None:
        widths = [attention.d_head for attention in stack.attentions]
        if not widths or any(unequal(width, widths[0]) for width in widths):
            fault("positions.rows", rows, "none: its sinusoids are those of equally wide heads")


def _relative(stack: StackSpec, fault: ReportFault) -> None:
    if stack.positions.form != "relative":
        return
    heads = [attention.n_heads for attention in stack.attentions]
    if stack.tables("latent") or not heads or any(type(n) is int and n != heads[0] for n in heads):
        fault("positions.form", "relative", "another form: its table is added to the scores of equal query heads")
    side, vision = stack.positions.get("side"), stack.vision
    if side is None:
        return
    if not vision or not vision.class_token or vision.image is None:
        fault("positions.side", side, "none without pictures of one size and a class token")
    elif unequal(side * vision.patch, vision.image):
        fault("positions.side", side, f"the patches of {vision.patch} on a side of {vision.image}")


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


def _extra(stack: StackSpec, fault: ReportFault) -> None:
    if stack.embedding.extra and (stack.vocab_size is None or stack.head.tied):
        fault("embedding.extra", stack.embedding.extra, "0 without a token table, or where the head shares it")


# Parts whose adapters PyTorch has shown: what they cost, and what they keep.
ADAPTED = {"attention", "feed_forward", "experts", "mamba"}


def _lora(stack: StackSpec, fault: ReportFault) -> None:
    if stack.lora is None:
        return
    rank, role = stack.lora.rank, stack.role
    if role not in ("decoder", "encoder") or stack.audio or stack.vision:
        fault("lora.rank", rank, "none but in a single stack that reads tokens")
    elif stack.streams is not None or stack.hyper is not None or stack.tables("layer_input"):
        fault("lora.rank", rank, "none with several residual streams, or layers that read their own vectors")
    parts = {part for layer in stack.layer.values() for part in layer.parts}
    odd = sorted(parts - ADAPTED)
    odd += ["keep" for attention in stack.attentions if attention.get("keep") is not None]
    odd += ["expert_attention"] if stack.tables("expert_attention") else []
    odd += [stack.positions.form] if stack.positions.form in ("disentangled", "relative-projection") else []
    if odd:
        fault("lora.rank", rank, f"none beside what no proof of adapters covers yet: {', '.join(dict.fromkeys(odd))}")


def _crossing(stack: StackSpec, fault: ReportFault) -> None:
    """Only the decoder beside an encoder reads the encoder's positions."""
    if stack.role == "cross-decoder":
        return
    listed = [("around", stack.around)] + [("pieces.leaves", table.get("leaves")) for table in stack.tables("pieces")]
    for path, leaves in listed:
        if name := crosses(leaves):
            fault(path, name, "pieces that read no encoder's positions: this stack has none beside it")


def _projected(stack: StackSpec, fault: ReportFault) -> None:
    if stack.projected and (stack.role != "cross-decoder" or not stack.attentions):
        fault("projected", True, "false but in a decoder that attends to its encoder")


def _matched(stack: StackSpec, fault: ReportFault) -> None:
    if stack.matched and stack.role != "cross-decoder":
        fault("matched", True, "false but in the decoder beside an encoder")


def _length(stack: StackSpec, fault: ReportFault) -> None:
    listed = all(layer.parts == ["pieces"] for layer in stack.layer.values()) or stack.projector
    if stack.length is not None and (stack.role != "encoder" or stack.vocab_size is not None or not listed):
        fault("length", stack.length, "none but in an encoder without a token table: a tower, or layers of pieces")


def _features(stack: StackSpec, fault: ReportFault) -> None:
    """A draft is a decoder of tokens whose layers follow one another; what reads its embedding is there for it."""
    table = stack.features
    drafting = stack.tables("draft_attention")
    if table is None:
        if drafting:
            fault("draft_attention", "a part", "none without a table features: hidden states of another model")
        return
    if stack.role != "decoder" or stack.vocab_size is None or stack.streams is not None or stack.hyper:
        fault("features.number", table.number, "none but in a decoder of tokens, with one residual stream")
    if stack.lora is not None:
        fault("lora.rank", stack.lora.rank, "none in a draft")
    if table.embedded and drafting:
        fault("features.embedded", True, "false where attention reads the embedding itself")


def _early(stack: StackSpec, fault: ReportFault) -> None:
    embedding = stack.embedding
    if embedding.early and (embedding.rank is None or stack.head.form != "lm"):
        fault("embedding.early", True, "false without embedding.rank and head.form = 'lm'")


def _pooled(stack: StackSpec, fault: ReportFault) -> None:
    head, pool = stack.head, stack.head.get("pool", "first")
    if pool == "attention":
        first = next(iter(stack.layer.values()))
        alike = first.attention and first.feed_forward
        if not stack.vision or head.form not in ("none", "classifier") or not alike:
            fault("head.pool", "attention", "'first' but over patches, in layers of attention and a feed-forward")
        elif head.get("transform") or head.get("every") or head.pooler:
            fault("head.pool", "attention", "'first' beside another layer of the head")
    elif pool != "first" and not (stack.vision and stack.vision.class_token):
        fault("head.pool", pool, "'first' where there are no patches after a class token")


def _contacts(stack: StackSpec, fault: ReportFault) -> None:
    if stack.contacts and (stack.role != "encoder" or len(stack.attentions) < len(stack.layer)):
        fault("contacts", True, "false but in an encoder whose layers all have attention")


def _slopes(stack: StackSpec, fault: ReportFault) -> None:
    head = stack.head
    if head.form != "masked-lm" or head.get("activation") is not None or head.get("plain"):
        return
    if any(table.get("activation") == "xielu" for table in stack.tables("feed_forward")):
        expected = "another with head.form = 'masked-lm', whose layer has no weights for it"
        fault("feed_forward.activation", "xielu", expected)


def _lenders(stack: StackSpec, fault: ReportFault) -> None:
    """Who reads another layer's keys and values, or borrows a shared block, stands after the layer that has them, and
    would have made equal ones."""
    same = "a layer kind of as many and as wide key/value heads, and the same window"
    sizes = ("n_kv_heads", "d_head", "d_v", "window", "chunked")
    _after_a_lender(stack, fault, "attention.kv_from", "keys and values", sizes, same)
    sizes = ("n_heads", "n_kv_heads", "d_head", "d_ff", "bias")
    _after_a_lender(
        stack, fault, "shared.from", "a shared block", sizes, "a layer kind whose shared block has the same sizes"
    )


def _after_a_lender(
    stack: StackSpec, fault: ReportFault, path: str, owned: str, sizes: Sequence[str], same: str
) -> None:
    section, key = path.split(".")
    first = {name: indices[0] for name, indices in stack.groups if len(indices)}  # they ascend
    for name, layer in stack.layer.items():
        with SOUND:
            table = layer.tables.get(section)
            if not table or (wanted := table.get(key)) is None:
                continue
            lender = stack.layer[wanted].tables.get(section) if wanted in stack.layer else None
            if not lender or lender.get(key) is not None:
                fault(f"layer.{name}.{path}", wanted, f"a layer kind with {owned} of its own")
            elif first.get(wanted, 0) > first.get(name, 0):
                fault(f"layer.{name}.{path}", wanted, "a layer kind that stands before its reader")
            elif any(table.get(size) != lender.get(size) for size in sizes):
                fault(f"layer.{name}.{path}", wanted, same)


def _shared_once(stack: StackSpec, fault: ReportFault) -> None:
    """A layer kind that holds a shared block is one layer."""
    for name, indices in stack.groups:
        table = stack.layer[name].tables.get("shared")
        if table and table.get("from") is None and len(indices) > 1:
            fault(
                f"layer.{name}.shared.from",
                None,
                "a layer kind that holds the weights: several layers would each hold them",
            )


def _streams(stack: StackSpec, fault: ReportFault) -> None:
    """Streams and learned residuals stand in decoders whose parts follow one another."""
    if stack.streams is None and stack.laurel is None:
        return
    norms = [layer.norm for layer in stack.layer.values()]
    placed = all(norm.place != "post" and norm.parallel == "no" for norm in norms)
    for key in ("streams", "laurel"):
        if stack.get(key) is not None and (stack.role != "decoder" or not placed):
            fault(key, stack.get(key), "none but in a decoder, with norms before its parts, which follow one another")


def _hyper(stack: StackSpec, fault: ReportFault) -> None:
    """Hyper-connections stand in decoders whose parts follow one another, in the place of other streams."""
    number = stack.hyper
    if number is None:
        if stack.hyper_steps:
            fault("hyper_steps", stack.hyper_steps, "0: there are no streams (hyper)")
        return
    usual: Raw = {
        "place": "pre",
        "parallel": "no",
        "joint": [],
        "residual": None,
        "residual_scale": False,
        "scalar": False,
    }
    placed = all(layer.norm.get(key) == value for layer in stack.layer.values() for key, value in usual.items())
    plain = stack.streams is None and stack.laurel is None
    if stack.role != "decoder" or not placed or not plain or stack.tables("layer_input") or stack.tables("shared"):
        fault("hyper", number, "none but in a decoder, with norms before its parts, which follow one another")
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
        fault("layer_input", "a part", "the last of a layer's parts where there are streams")
    if stack.vocab_size is None:
        fault("vocab_size", ABSENT, "the rows of the token table: layer_input looks tokens up")
    if any(_unlike(table, inputs[0], ("width", "rows")) for table in inputs):
        fault("layer_input.width", [table and table.get("width") for table in inputs], "the same in every layer")


def _patches(stack: StackSpec, fault: ReportFault) -> None:
    vision, tower = stack.vision, stack.projector
    if vision and vision.image is None and not tower:
        fault("vision.image", ABSENT, "side of the picture, pixels", "a tower alone reads pictures of any size")
    elif vision and vision.image is not None and not divides(vision.patch, vision.image):
        fault("vision.patch", vision.patch, f"a divisor of image = {vision.image}")
    elif tower and stack.role not in ("encoder", "vision"):
        fault("projector.steps", "steps", "none but in an encoder: a tower")
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
            fault("attention.cell", cell, f"squares of the {merged:,} positions that are merged, and none dropped")


STACK_RULES: tuple[Callable[[StackSpec, ReportFault], None], ...] = (
    _projected_distances,
    _apart,
    _sinusoids,
    _relative,
    _rows,
    _tied_head,
    _extra,
    _lora,
    _projected,
    _matched,
    _length,
    _features,
    _crossing,
    _early,
    _pooled,
    _contacts,
    _slopes,
    _lenders,
    _shared_once,
    _streams,
    _hyper,
    _number_of_streams,
    _layer_inputs,
    _patches,
)


def _unlike(first: Options | None, second: Options | None, keys: Sequence[str]) -> bool:
    """Whether only one is there, or numbers of theirs differ."""
    return not (first and second) or any(unequal(first.get(key), second.get(key)) for key in keys)
