"""Operators that multiply no matrices: the only ones that may run without a count.

Anything else that a profiler met and did not count fails the verification by name: a fused attention that fvcore skips
silently, a grouped product, a kernel of somebody's own. `txcalc verify --zero-cost` prints the list.
"""

from __future__ import annotations

_GROUPS = {
    "moves and shapes": """
        _reshape_alias _to_copy _unsafe_index _unsafe_index_put _unsafe_view alias as_strided broadcast_tensors
        broadcast_to cat chunk clone col2im concat constant_pad_nd contiguous copy detach diagonal expand expand_as
        flatten flip gather im2col index index_add index_copy index_put index_select lift_fresh mT masked_fill
        masked_scatter masked_select movedim narrow numpy_T pad permute repeat repeat_interleave reshape roll
        scatter scatter_add select select_backward select_scatter slice slice_backward slice_scatter split
        split_with_sizes squeeze stack swapaxes t tile to transpose tril triu type_as unbind unflatten unfold
        unfold_backward unsafe_split unsqueeze view view_as view_as_complex view_as_real
    """,
    "new tensors": """
        arange bernoulli empty empty_like empty_permuted empty_strided eye fill full full_like linspace new_empty
        new_empty_strided new_full new_ones new_zeros normal ones ones_like rand randint randn randperm
        scalar_tensor uniform zero zeros zeros_like
    """,
    "element by element": """
        __and__ __or__ abs acos add addcdiv addcmul bitwise_and bitwise_not bitwise_or ceil clamp clamp_max clamp_min
        cos div dropout elu eq erf exp exp2 expm1 floor floor_divide fmod ge gelu gelu_backward glu gt hardtanh
        isinf isnan le leaky_relu lerp log log1p log2 log_sigmoid
        log_sigmoid_forward logical_and logical_not logical_or lt masked_fill maximum
        minimum mish mul native_dropout native_dropout_backward ne neg pow reciprocal relu relu6 remainder round
        rsqrt rsub sigmoid sigmoid_backward sign silu silu_backward sin softplus softplus_backward sqrt square sub
        tanh tanh_backward threshold_backward trunc where xlogy
    """,
    "reductions, sorts and scans": """
        _log_softmax _log_softmax_backward_data _safe_softmax _softmax _softmax_backward_data all amax amin any argmax
        argmin argsort avg_pool2d binary_cross_entropy_with_logits bincount cummax cumprod cumsum histc
        linalg_vector_norm log_softmax logcumsumexp logsumexp max max_pool2d_with_indices mean min multinomial
        nll_loss_backward nll_loss_forward norm prod scatter_reduce softmax sort std sum topk var var_mean
    """,
    "norms": """
        _fused_rms_norm _fused_rms_norm_backward _native_batch_norm_legit_no_training _weight_norm_interface
        batch_norm group_norm layer_norm native_batch_norm native_group_norm native_group_norm_backward
        native_layer_norm native_layer_norm_backward rms_norm
    """,
    "tables and sizes": """
        Int ScalarImplicit _local_scalar_dense device dim embedding embedding_dense_backward embedding_renorm
        is_nonzero item numel one_hot size stride sym_size
    """,
    "the reference's own": "RootMeanSquare Xielu",
}
ZERO_COST = {group: tuple(sorted(names.split())) for group, names in _GROUPS.items()}
_NAMES = frozenset(name for names in ZERO_COST.values() for name in names)


_OWN = frozenset(_GROUPS["the reference's own"].split())


def costs_nothing(operator: str) -> bool:
    """True where the operator, or the one of which it is the in-place form, is on the list."""
    space, _, name = operator.rpartition("::")
    if name.startswith("PythonOp."):  # somebody's class: its name says nothing of what it does
        return name.removeprefix("PythonOp.") in _OWN
    return space in ("aten", "prim") and (name in _NAMES or name.removesuffix("_") in _NAMES)
