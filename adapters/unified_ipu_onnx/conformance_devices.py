"""What the conformance kit does otherwise on PopART: a loss in the graph, and what is left out."""

from __future__ import annotations

from typing import Any, Mapping

from unified_ipu_torch.conformance import TorchSubject

_NO_PYTHON = "PopART runs graphs: an objective= is Python on tensors"
_ITS_INPUTS = "a loss in the graph takes its inputs: there is no sample_weight beside them"
_ONE_NUMBER = "one number that the graph computes holds the rows of padding too"
_FIRST_VELOCITY = "PopART damps the first velocity too, so dampening is refused"
_CLIPPED_VELOCITY = "with momentum PopART clips the velocity, so update.clip_norm is refused"
_STATISTICS = "training with BatchNormalization is not written for PopART"
_HALF = "precision.compute in half precision is not written for PopART"
_COMPILED_IN = "what a program does not train is compiled into it: one program a model"

LIMITS: Mapping[str, str] = {
    "test_l1_3_token_losses_are_divided_by_all_tokens": _NO_PYTHON,
    "test_l1_11_a_penalty_weighs_the_same_however_the_update_is_split": _NO_PYTHON,
    "test_an_objective_must_return_a_loss": _NO_PYTHON,
    "test_l1_2_a_sample_weight_scales_the_loss_and_not_its_count": _ITS_INPUTS,
    "test_one_number_cannot_weigh_samples": _ITS_INPUTS,
    "test_l6_3_the_loss_of_an_epoch_weighs_batches_by_their_rows": _ONE_NUMBER,
    "test_l5_*dampen*": _FIRST_VELOCITY,
    "test_l5_3_fifty_updates_with_each_option*momentum-decay*": _FIRST_VELOCITY,
    "test_l3_1_slots_have_the_names_and_values_of_pytorch": _FIRST_VELOCITY,
    "test_l5_3_clipping_warm_up_and_scaling_equal_the_oracle": _CLIPPED_VELOCITY,
    "test_l1_12_*": _STATISTICS,
    "test_l5_4_*": _STATISTICS,
    "test_l3_1_running_statistics_come_back_to_each_rank": _STATISTICS,
    "test_l3_7_saving_changes_nothing_and_each_rank_gets_its_own_buffers_back": _STATISTICS,
    "test_l6_7_buffers_are_the_same_for_every_sample_and_stay_as_they_were": _STATISTICS,
    "test_l5_6_*": _HALF,
    "test_l5_1_weights_are_counted_exactly_in_half_precision": _HALF,
    "test_two_programs_play_against_each_other_on_one_model": _COMPILED_IN,
}
"""Names of tests (shell patterns), and why PopART does not hold them."""

_OUTPUT = "y"


class Product:
    """A loss of the user's: outputs times targets, a callable that can become nodes of a graph.

    Args:
        reduction: As of the subject's ``product_loss``.
    """

    output = "product"
    """Its name in the graph."""

    def __init__(self, reduction: str) -> None:
        self._reduction = reduction
        self._call = TorchSubject().product_loss(reduction)

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """On tensors of torch."""
        return self._call(outputs, targets)

    def add_to(self, native: Any) -> None:
        """Give a graph an input for targets, and this loss as its last output.

        Args:
            native: One of the subject's, of operator set 11; it keeps what it was given before.
        """
        from onnx import helper

        graph = native.graph
        if graph.output[-1].name == self.output:
            return  # a second program of one model
        kind = graph.input[0].type.tensor_type.elem_type
        graph.input.append(helper.make_tensor_value_info("targets", kind, ["rows", "columns"]))
        graph.node.append(helper.make_node("Mul", [_OUTPUT, "targets"], ["products"]))
        last = "products"
        if self._reduction == "mean":
            last = "means"
            graph.node.append(helper.make_node("ReduceMean", ["products"], [last], axes=[0]))
        over: Mapping[str, Any] = {"axes": [1]} if self._reduction == "none" else {}
        node = helper.make_node("ReduceSum", [last], [self.output], keepdims=0, **over)
        graph.node.append(node)
        graph.output.append(helper.make_tensor_value_info(self.output, kind, None))
