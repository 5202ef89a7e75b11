"""`Ensemble`: M Keras models, their priors and bootstrap weights, as one Keras model.

The class is read in the order of use: building, the forward pass, compiling, training, prediction, saving. The work is
done in the modules beside it: `members` makes and runs members, `data` prepares examples, `steps` has what happens to
a batch, `losses` the losses of members, `outputs` mixtures and metrics, `serving` what is asked of a trained ensemble,
`updates` the optimizer's steps, `callbacks` frozen members and what happens between epochs.

Shapes: inputs `[batch, ...]`, outputs `[batch, members, outputs]`, losses `[members]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import arguments, data, keras_private, losses, outputs, replicas
from tf_ensembles.ensemble import callbacks as callbacks_lib
from tf_ensembles.ensemble import trunk as trunk_lib
from tf_ensembles.ensemble.collection import Collected
from tf_ensembles.ensemble.members import building, stack
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.ensemble.serving import Served
from tf_ensembles.ensemble.steps import Steps
from tf_ensembles.ensemble.trunk import Trunked
from tf_ensembles.metrics.kinds import Kind, tagged
from tf_ensembles.prior import PriorFunction
from tf_ensembles.regression import heads


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Ensemble(Trunked, Collected, Steps, Served):
    """An ensemble of any Keras model, with optional random prior functions and bootstrapping.

    Member m minimizes `mean(W[t, m] * loss(f_m(x_t), y_t)) + l2 * ||theta_m||^2` with
    `f_m(x) = g_m(x) + scale * p_m(x)`; only `g_m` is trained. Members share no gradient: the loss that is minimized is
    the sum of theirs, so training M together equals training M alone. Reported losses are means over members.

    Args:
        build_member: returns a new Keras model, inputs to `[batch, outputs]`, at each call.
        num_members: M.
        prior: a frozen random function added to each member's output; None for ensemble-n.
        bootstrap: the distribution of each example's weight in each member's loss; None for equal weights.
        l2: weight decay per member, in the mean form: the paper's `lambda / T`.
        seed: decides initial weights, priors and bootstrap weights.
        outputs: what a member returns: `"logits"`, `"binary_logits"`, `"multilabel_logits"`, `"probabilities"`,
            `"multilabel_probabilities"`, `"values"`, `"gaussian"` (means, then raw scales) or another `Kind`.
            `"auto"` reads it from the type of the loss at `compile`.
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
        outputs: str = "auto",
        check: Any = True,
        trunk: keras.Model | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_members, seed = arguments.check(build_member, num_members, prior, bootstrap, l2, seed)
        self._take_trunk(trunk, prior)
        self._settle(prior, bootstrap, l2, seed)
        self.num_members, self._outputs_argument = num_members, outputs
        self._member_loss: keras.losses.Loss | None = None
        self._num_outputs: Any = None
        self._known_head: Any = None
        Kind.parse(outputs)
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
        self._num_outputs = stack.num_outputs(self.members, self.priors, self._built_on)

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

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns member outputs `[batch, members, outputs]`."""
        parts = data.split(inputs)
        self._build_from(parts.x)
        return tf.transpose(self._forward(self._seen(parts, training), training)[0], [1, 0, 2])

    def _forward(self, parts: data.Inputs, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns outputs `[members, batch, outputs]` and regularization losses `[members]`."""
        members = self._built_members()
        result, penalty = members.run(parts.x if self.trunk is None else parts.features, training)
        result = self._without_diverged(tf.cast(result, tf.float32))
        if self.prior is not None and self.priors is not None:
            seen = trunk_lib.prior_inputs(self._prior_on, parts.x, parts.features)
            result = stack.add_prior(result, self.priors, self.prior.scale, seen, parts.prior, self.head)
        total = tf.zeros([self.num_members]) if penalty is None else tf.cast(penalty, tf.float32)
        total += self._trunk_penalty()
        if self.l2:
            total += self.l2 * members.squared_norm()
        return result, total

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
            loss: one loss: Keras's, or a function or class of yours, which gets each member's batch by itself. Members
                with a `compute_loss` of their own are asked instead; it finds this loss in `super().compute_loss`.
            loss_weights: None: there is one output.
            metrics: Keras metrics, which see the mixture's prediction `[batch, outputs]`, logits if `from_logits=True`;
                and metrics of `tfe.metrics`, which see the members.
            weighted_metrics: Keras metrics that take sample weights.
            jit_compile: as in Keras; `"auto"` uses XLA where all layers are vectorized.
            **kwargs: what else `keras.Model.compile` takes.
        """
        self._member_loss = losses.of_members(self._member_models(), loss, loss_weights)
        outputs.check_compiled(self._outputs_argument, self.kind, self._member_loss, self.prior, weighted_metrics)
        if self._num_outputs is not None:
            outputs.num_targets(self.head, self._num_outputs)  # Raises where columns do not fit the loss.
            stack.check_prior(self.head, self._num_outputs, self.priors, self._built_on)
        split = outputs.split_metrics(metrics, self.kind, self._member_loss)
        if self.compiled:
            keras_private.forget_metrics(self, [*self._member_metrics, *self._logit_metrics, self._member_mean])
        listed, self._member_metrics, self._logit_metrics, others = split
        self._auto_jit = jit_compile == "auto"
        kwargs.update(weighted_metrics=weighted_metrics, jit_compile=jit_compile)
        super().compile(optimizer=optimizer, loss=loss, metrics=others or None, **kwargs)
        self._all_metrics = Hidden(listed)
        self._member_mean = losses.MemberMean(self.num_members)
        self._update = None
        if self.members is not None:
            self.members.forget_traces()

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
        x, y = self._prepare(x, y, training=True)
        if isinstance(validation_data, tuple) and data.is_arrays(validation_data[0]):
            val_x, val_y = self._prepare(validation_data[0], validation_data[1], training=False)
            validation_data = (val_x, val_y, *validation_data[2:])
        self._make_update()
        monitor = callbacks_lib.MemberMonitor()
        given = dict(x=x, y=y, batch_size=batch_size, shuffle=shuffle, sample_weight=sample_weight)
        given.update(validation_split=validation_split, validation_data=validation_data)
        if y is not None and not kwargs.get("steps_per_epoch"):
            length = data.num_trained_on(len(y), 0.0 if validation_data else validation_split)
            devices = self.distribute_strategy.num_replicas_in_sync
            replicas.check_batches(self._built_members().templates, length, batch_size or 32, devices)
            given = data.fit_on_arrays(**given, seed=self.seed, first_step=monitor.first_step)
        callbacks = callbacks_lib.with_monitor(callbacks, monitor, self._member_metrics)
        given.update(epochs=epochs, verbose=verbose, callbacks=callbacks, class_weight=class_weight, **kwargs)
        self._forget_noise()
        history = super().fit(**given)
        self._estimate_noise_of_fit(given)
        return history

    def _prepare(self, x: Any, y: Any, training: bool) -> tuple[Any, Any]:
        """Checks data; numbers arrays and adds what their priors say, computed once."""
        parts = data.split(x)
        if not data.is_arrays(parts.x):
            if self.members is None:
                x, example = data.peek(x)
                self._build_from(example)
            if self.bootstrap is not None and training:
                data.check_dataset_has_ids(x)
            return x, y
        strings = self.members is not None and "'string'" in str(self.input_specs())
        inputs, y = data.as_arrays(parts.x, strings), None if y is None else np.asarray(y)
        length = data.check_inputs(inputs)
        self._build_from(inputs)
        data.check_targets(y, length, self._num_outputs, self._member_loss, self.kind, self.head)
        if training:
            own = self._built_members().has_own_losses
            sizes = self._num_outputs, outputs.num_targets(self.head, self._num_outputs)
            losses.check_bootstrap(self._member_loss, self.bootstrap, y, *sizes, own)
        outputs.check_members(self, inputs, self._member_loss, self._outputs_argument)
        ids = data.check_ids(parts.ids, length)
        if self.bootstrap is not None and training and parts.ids is None:
            self._numbered.see(inputs, length)
        return self._prepared(inputs, ids if training else None, length), y

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.evaluate` does; bootstrap weights play no part."""
        if not keras_private.is_validation_of_fit(kwargs):
            x, y = self._prepare(x, y, training=False)
        return super().evaluate(x, y, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Array:
        """Returns member outputs `[batch, members, outputs]`: logits for a classifier, which `tfe.metrics` know."""
        self._build_from(x)
        return tagged(super().predict(data.strings_as_tensors(x), *args, **kwargs), self.kind)

    # Saving.

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture of a member and of a prior, and the other arguments."""
        own = {key: value for key, value in super().get_config().items() if key in ("name", "dtype", "trainable")}
        given = {"num_members": self.num_members, "l2": self.l2, "seed": self.seed, "outputs": self._outputs_argument}
        scale = self.prior.scale if self.prior is not None else None
        written = arguments.write(self._built_members(), self.priors, scale, self.bootstrap, self._built_on)
        written.update(trunk_lib.write(self.trunk, self._prior_on))
        return {**own, **written, **given, **({"head": heads.write(self.head)} if self.head else {})}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Ensemble:
        """Returns an ensemble of that architecture; its variables are filled from the file."""
        given, built_on = arguments.read(config, custom_objects)
        head = heads.read(given.pop("head", None))
        model = cls(**given)
        model._known_head = head
        if model.members is None:
            model._build_on(stack.zeros(built_on))
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
