"""`Ensemble`: M Keras models, their priors and bootstrap weights, as one Keras model.

The class is read in the order of use: building, the forward pass, compiling, training, prediction, saving. The work is
done in the modules beside it: `members` makes and runs members, `data` prepares examples, `steps` has what happens to
a batch, `losses` the losses of members, `outputs` mixtures and metrics, `serving` what is asked of a trained ensemble,
`updates` the optimizer's steps, `callbacks` frozen members and what happens between epochs.

Members may return one tensor, or a list or dict of them; all that follows works on the list of their outputs, which
`_structure` names, and gives users the members' own structure back.

Shapes: inputs `[batch, ...]`, each output `[batch, members, ...]`, losses `[members]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import prior as priors_lib
from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import arguments, batches, data, keras_private, losses, replicas, updates
from tf_ensembles.ensemble import callbacks as callbacks_lib
from tf_ensembles.ensemble import outputs as outputs_lib
from tf_ensembles.ensemble import trunk as trunk_lib
from tf_ensembles.ensemble.collection import Collected
from tf_ensembles.ensemble.members import building, stack, structure
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.ensemble.serving import Served
from tf_ensembles.ensemble.steps import MemberMean, Steps
from tf_ensembles.ensemble.trunk import Trunked
from tf_ensembles.metrics.kinds import tagged
from tf_ensembles.prior import PriorFunction


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Ensemble(Trunked, Collected, Steps, Served):
    """An ensemble of any Keras model, with optional random prior functions and bootstrapping.

    Member m minimizes `mean(W[t, m] * loss(f_m(x_t), y_t)) + l2 * ||theta_m||^2` with
    `f_m(x) = g_m(x) + scale * p_m(x)`; only `g_m` is trained. Members share no gradient: the loss that is minimized is
    the sum of theirs, so training M together equals training M alone. Reported losses are means over members.

    Args:
        build_member: returns a new Keras model, inputs to `[batch, ..., outputs]`, or to a list or dict of such, at
            each call.
        num_members: M.
        prior: a frozen random function added to each member's output; None for ensemble-n. Of several outputs, a
            dict of them by name, or one that returns the structure of outputs.
        bootstrap: the distribution of each example's weight in each member's loss; None for equal weights. As with
            Keras's `sample_weight`, examples of weight zero still count in batch statistics.
        l2: weight decay per member, in the mean form: the paper's `lambda / T`.
        seed: decides initial weights, priors and bootstrap weights.
        outputs: what a member returns: `"logits"`, `"binary_logits"`, `"multilabel_logits"`, `"probabilities"`,
            `"multilabel_probabilities"`, `"values"`, `"gaussian"` (means, then raw scales) or another `Kind`.
            `"auto"` reads it from the type of the loss at `compile`. Of several outputs, a dict by name.
        check: False skips the comparison of each member's own outputs with those of the stack, when members are built.
        trunk: a Keras model that all members share and that runs once per batch: members are heads on its output then.
            Frozen by `trunk.trainable = False`: it runs in inference mode, and once per training example where data are
            arrays. Otherwise it is trained by the mean of the members' gradients; `l2` is that of heads.
    """

    def __init__(
        self,
        build_member: Callable[[], keras.Model],
        num_members: int,
        prior: PriorFunction | None = None,
        bootstrap: Bootstrap | None = None,
        l2: float = 0.0,
        seed: int = 0,
        outputs: Any = "auto",
        check: Any = True,
        trunk: keras.Model | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_members, seed = arguments.check(build_member, num_members, prior, bootstrap, l2, seed)
        outputs_lib.check_argument(outputs)
        prior = priors_lib.joined(prior)
        self._take_trunk(trunk, prior)
        self._settle(prior, bootstrap, l2, seed)
        self.num_members, self._outputs_argument = num_members, outputs
        self.members: stack.Members | None = None
        self.priors: stack.Members | None = None
        self.member_history: dict[str, list[Array]] = {}
        self._frozen, self._diverged = (callbacks_lib.Marks(self, num_members, name) for name in ("frozen", "diverged"))
        self._auto_jit = True
        self._update: Hidden | None = None
        self._built_on: Any = None
        self._numbered = data.Numbered()
        # What a saved file says: {"members": why they run separately}.
        self._check = Hidden(check)
        drafts = [building.Draft(build_member, num_members, seed, "build_member")]
        if prior is not None:
            drafts.append(building.draft_priors(prior, num_members, building.prior_seed(seed)))
        self._drafts, self._builder = Hidden(drafts), Hidden(build_member)
        if all(draft.has_known_outputs for draft in drafts):
            self._stack_models(None)

    # Building: the variables of all members become stacked ones.

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: variables come from the builders, or from the first data."""

    def _build_on(self, sample: Any) -> None:
        """Builds models that were returned unbuilt, by a batch of one example."""
        for draft, seen in zip(self._drafts.value, self._samples(sample), strict=False):
            draft.build_on(seen)
        known = all(draft.has_known_outputs for draft in self._drafts.value)
        self._require_known(known, self._drafts.value[0].models[0])
        self._built_on = None if known else stack.built_on(sample)
        self._stack_models(None if known else sample)

    def _stack_models(self, sample: Any) -> None:
        options = {"sample": sample, "num_members": self.num_members, "dtype": self.dtype_policy}
        self.members, *priors = building.assemble_all(self._drafts.value, self._check.value, **options)
        self.priors = priors[0] if priors else None
        self._drafts = Hidden([])
        self.supports_jit = self.members.supports_jit and (self.priors is None or self.priors.supports_jit)
        self.supports_jit = self.supports_jit and self._trunk_supports_jit()
        self.built = True
        self._check_trunk()
        self._take_structure(stack.output_structure(self.members, self.priors, self._built_on))

    def _build_from(self, x: Any) -> None:
        """Builds from data, arrays or a dataset, and decides on XLA, which depends on what was built."""
        if self.members is None:
            sample = data.first_example(x)
            members, *others = self._drafts.value
            members.build_on(self._samples(sample)[0])
            for draft in others:
                self._show_prior(draft, x, members.models[0], sample)
            self._build_on(sample)
            if self.compiled and self._auto_jit:
                self.jit_compile = self._resolve_auto_jit_compile()

    def adapt(self, x: Any) -> None:
        """Shows data to an ensemble that has seen none: priors that look at data, or are normalized, are made on them.

        The first data that `fit`, `predict` or `evaluate` are given do the same.

        Args:
            x: training inputs, as `fit` takes them.
        """
        if self.members is not None:
            raise ValueError("Expected adapt before anything else. Received: an ensemble that is made already")
        self._build_from(data.peek(x)[1])

    def _built_members(self) -> stack.Members:
        if self.members is None:
            raise ValueError(
                "Expected an ensemble that has seen data, or members that start with keras.Input. "
                "Received: one that is not built yet"
            )
        return self.members

    def _member_models(self) -> list[keras.Model]:
        return self._drafts.value[0].models if self.members is None else self.members.templates

    @property
    def execution(self) -> str:
        """How members run: `"vectorized"`, or what is looped over members and why nothing better is known."""
        return stack.execution(self.members, self.priors, self._built_on)

    @property
    def member_losses(self) -> Array:
        """Each member's loss over the current epoch or the last evaluation, `[members]`."""
        return np.asarray(self._member_mean.result())

    @property
    def owned_variables(self) -> list[tuple[keras.Variable, int | None]]:
        """The members' variables without their priors', each with the member whose it is; None: `[members, ...]`."""
        return self._built_members().owned_variables()

    @property
    def stacked_variables(self) -> list[keras.Variable]:
        """Those of the members' variables that hold all members, each `[members, ...]`; none if members run apart."""
        return [variable for variable, owner in self.owned_variables if owner is None]

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints what `keras.Model.summary` does, and how members run."""
        super().summary(*args, **kwargs)
        (kwargs.get("print_fn") or print)(f"Members run: {self.execution}")

    # The forward pass.

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns member outputs `[batch, members, ...]`, in the structure in which a member returns them."""
        data.refuse_ragged(inputs)
        parts = data.split(inputs)
        self._build_from(parts.x)
        return self._packed(self._forward(self._seen(parts, training), training)[0])

    def _forward(self, parts: data.Inputs, training: bool) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the list of outputs, each `[members, batch, ...]`, and regularization losses `[members]`."""
        members = self._built_members()
        raw, penalty = members.run(parts.x if self.trunk is None else parts.features, training, not training)
        outputs = self._with_priors(raw, parts, predicting=not training)
        total = tf.zeros([self.num_members]) if penalty is None else tf.cast(penalty, tf.float32)
        total += self._trunk_penalty()
        if self.l2:
            total += self.l2 * members.squared_norm()
        return outputs, total

    # Compiling.

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        jit_compile: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """Configures training, as `keras.Model.compile` does.

        Args:
            optimizer: any Keras optimizer; norms and clipping are taken per member.
            loss: Keras's, or a function or class of yours, which gets each member's batch by itself. Members with a
                `compute_loss` of their own are asked instead; it finds this loss in `super().compute_loss`. Of several
                outputs: one for all, a list, or a dict by name.
            loss_weights: of several outputs: numbers, in the same form.
            metrics: Keras metrics, which see the mixture's prediction `[batch, ..., outputs]`, logits if
                `from_logits=True`; and metrics of `tfe.metrics`, which see the members. Of several outputs: a dict by
                name, or a list with those of each.
            weighted_metrics: Keras metrics that take sample weights, in the same form.
            jit_compile: as in Keras; `"auto"` uses XLA where all layers are vectorized.
            **kwargs: what else `keras.Model.compile` takes.
        """
        said = self._structure
        outputs_lib.check_seen(said, loss)
        self._output_losses, self._output_weights = map(
            tuple, losses.of_members(self._member_models(), said, loss, loss_weights)
        )
        metrics_of = outputs_lib.by_output(said, metrics, "metrics")
        weighted_of = outputs_lib.by_output(said, weighted_metrics, "weighted_metrics")
        scales = priors_lib.scales(self.prior, said)
        if self.priors is not None:
            shapes = stack.prior_shapes(said, self.priors.template, self._built_on)
            scales = [None if shape is None else scale for scale, shape in zip(scales, shapes, strict=True)]
        for output, scale, own in zip(self.outputs_said(), scales, weighted_of, strict=True):
            outputs_lib.check_compiled(output, scale, own)
            losses.check_stateless(output.loss, output.shape)
        stack.check_prior(said, [output.head for output in self.outputs_said()], self.priors, self._built_on)
        splits = [outputs_lib.split_metrics(*pair) for pair in zip(self.outputs_said(), metrics_of, strict=True)]
        if self.compiled:
            old = [*self._member_metrics, *self._logit_metrics, *self._output_means, self._member_mean]
            keras_private.forget_metrics(self, old)
        listed, members, logits, others = zip(*splits, strict=True)
        self._member_metrics, self._logit_metrics = ([m for part in parts for m in part] for parts in (members, logits))
        self._metric_places = Hidden([[i for i, p in enumerate(part) for _ in p] for part in (members, logits)])
        self._auto_jit = jit_compile == "auto"
        kwargs.update(jit_compile=jit_compile, loss_weights=loss_weights)
        kwargs["weighted_metrics"] = weighted_metrics if said.is_one else outputs_lib.metrics_by_name(said, weighted_of)
        given = others[0] or None if said.is_one else outputs_lib.metrics_by_name(said, others)
        super().compile(optimizer=optimizer, loss=loss, metrics=given, **kwargs)
        self._all_metrics = Hidden(said.pack(listed))
        self._member_mean = MemberMean(self.num_members)
        named = [output.name for output in self.outputs_said() if output.loss is not None]
        self._output_means = [keras.metrics.Mean(name=f"{name}_loss") for name in named] if len(named) > 1 else []
        self._update = None
        updates.check_independent(self.optimizer)
        if self.members is not None:
            self.members.flags()
            self.members.forget_traces()
            outputs_lib.check_activations(self.members.template, self.outputs_said(), scales)

    def _resolve_auto_jit_compile(self) -> bool:
        """XLA pays for vectorized members on every device; Keras, whose hook this is, leaves it off on CPUs."""
        # It cannot reach the variables of other replicas' devices, except on TPUs, which compile by themselves.
        return bool(self.members and self.supports_jit and self.distribute_strategy.num_replicas_in_sync == 1)

    # The Keras entry points, with checks and example ids added.

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Trains as `keras.Model.fit` does, and returns its `History`.

        Arrays are checked and numbered by position, and shuffled by the ensemble's seed. A `tf.data.Dataset` needs ids
        from `tfe.number_examples` when the ensemble has a bootstrap. Each member's losses are kept in `member_history`.
        """
        keras_private.refuse_sklearn_wrapper()
        keras_private.require_compiled(self, "fit")
        outputs_lib.check_class_weight(self.outputs_said(), class_weight)
        x, y = self._prepare(x, y, training=True)
        if isinstance(validation_data, tuple) and data.is_arrays(validation_data[0]):
            val_x, val_y = self._prepare(validation_data[0], validation_data[1], training=False)
            validation_data = (val_x, val_y, *validation_data[2:])
        self._make_update()
        monitor = callbacks_lib.MemberMonitor(self.steps_per_execution != 1)
        if not self._structure.is_one and sample_weight is not None:
            sample_weight = data.as_targets(sample_weight, True)
        given = dict(x=x, y=y, batch_size=batch_size, shuffle=shuffle, sample_weight=sample_weight)
        given.update(validation_split=validation_split, validation_data=validation_data)
        kwargs = {name: value for name, value in kwargs.items() if (name, value) != ("steps_per_epoch", None)}
        if y is not None and data.is_arrays(x) and "steps_per_epoch" not in kwargs:
            length = batches.num_trained_on(data.length_of(y), 0.0 if validation_data else validation_split)
            devices = self.distribute_strategy.num_replicas_in_sync
            trained = [*self._built_members().templates, *([self.trunk] if self.trains_trunk else [])]
            replicas.check_batches(trained, length, batch_size or 32, devices)
            given.update(seed=self.seed, first_step=monitor.first_step, steps_per_execution=self.steps_per_execution)
            given = batches.fit_on_arrays(**given)
        callbacks = callbacks_lib.with_ours(callbacks, monitor, self.metric_names())
        given.update(epochs=epochs, verbose=verbose, callbacks=callbacks, class_weight=class_weight, **kwargs)
        self._forget_noise()
        history = super().fit(**given)
        self._estimate_noise_of_fit(given)
        return history

    def _prepare(self, x: Any, y: Any, training: bool) -> tuple[Any, Any]:
        """Checks data; numbers arrays and adds what their priors say, computed once."""
        data.refuse_ragged(x)
        parts = data.split(x)
        if not data.is_arrays(parts.x):
            if self.members is None:
                x, example = data.peek(x)
                self._build_from(example)
            if self.bootstrap is not None and training:
                data.check_dataset_has_ids(x)
            return x, y
        strings = self.members is not None and "'string'" in str(self.input_specs())
        inputs = data.as_arrays(parts.x, strings)
        length = data.check_inputs(inputs)
        self._build_from(inputs)
        y = data.as_targets(y, not self._structure.is_one)
        own = self._built_members().has_own_losses
        for output, part in zip(self.outputs_said(), self._split_targets(y), strict=True):
            if output.loss is None and part is None and not self._structure.is_one:
                continue
            data.check_targets(part, length, output)
            if training and output.loss is not None:
                losses.check_bootstrap(output.loss, self.bootstrap, part, output.shape, output.num_targets, own)
        outputs_lib.check_members(self, inputs)
        ids = data.check_ids(parts.ids, length)
        if self.bootstrap is not None and training and parts.ids is None:
            self._numbered.see(inputs, length)
        return self._prepared(inputs, ids if training else None, length), y

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.evaluate` does; bootstrap weights play no part."""
        if not keras_private.is_validation_of_fit(kwargs):
            x, y = self._prepare(x, y, training=False)
        return super().evaluate(x, y, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns member outputs `[batch, members, ...]`: logits for a classifier, which `tfe.metrics` know.

        Several outputs come in the structure in which a member returns them.
        """
        data.refuse_ragged(x)
        self._build_from(x)
        said = structure.leaves(super().predict(data.strings_as_tensors(x), *args, **kwargs))
        pairs = zip(said, self.outputs_said(), strict=True)
        return self._structure.pack([tagged(part, output.kind) for part, output in pairs])

    # Saving.

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture of a member and of a prior, and the other arguments."""
        own = {key: value for key, value in super().get_config().items() if key in ("name", "dtype", "trainable")}
        argument = self._outputs_argument
        argument = dict(argument) if isinstance(argument, dict) else argument
        given = {"num_members": self.num_members, "l2": self.l2, "seed": self.seed, "outputs": argument}
        scale = priors_lib.written_scale(self.prior)
        written = arguments.write(self._built_members(), self.priors, scale, self.bootstrap, self._built_on)
        written.update(trunk_lib.write(self.trunk, self._prior_on))
        known = [output.head for output in self.outputs_said()]
        return {**own, **written, **given, **self._written_heads(known)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Ensemble:
        """Returns an ensemble of that architecture; its variables are filled from the file."""
        given, built_on = arguments.read(config, custom_objects)
        known = given.pop("head", None)
        model = cls(**given)
        if model.members is None:
            model._build_on(stack.zeros(built_on))
        model._read_heads(known)
        return model

    def get_compile_config(self) -> dict[str, Any]:
        """Returns what `compile` was given."""
        config = super().get_compile_config()
        if config:
            config["metrics"] = keras.saving.serialize_keras_object(self._all_metrics.value)
            config["jit_compile"] = "auto" if self._auto_jit else config["jit_compile"]
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved ensemble was."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.members is not None:
            self._make_update()
