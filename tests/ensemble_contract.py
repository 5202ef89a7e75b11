"""What any member model can be put through, as `run_layer_test` of Keras does for layers.

`check(build, x)` builds an ensemble of the model and holds it against M separate Keras models: outputs alone, a few
steps of training, saving and loading, prediction; `export=True` adds the SavedModel.
"""

import warnings

import keras
import numpy as np
import tensorflow as tf

import tf_ensembles as tfe

MEMBERS, STEPS, BATCH = 2, 3, 4


def check(
    build,
    x,
    path,
    *,
    execution=None,
    export=False,
    optimizer=lambda: keras.optimizers.SGD(0.1),
    run_eagerly=True,
    tolerance=1e-5,
    trunk=None,
):
    """Raises unless an ensemble of `build()` is what its members are, and returns it.

    Args:
        build: returns a new model, with any outputs.
        x: inputs `[STEPS * BATCH, ...]`, or a structure of them.
        path: a folder for files.
        execution: how the ensemble's `execution` should begin.
        export: whether to export, too.
        optimizer: returns the optimizer.
        run_eagerly: whether to train without compiling, which costs more than it gains here.
        tolerance: of outputs, on the scale of their values.
        trunk: a frozen model that members are heads on; alone, they take its features.
    """
    rows = len(tf.nest.flatten(x)[0])
    assert rows == STEPS * BATCH
    built = []

    def remember():
        built.append(build())
        return built[-1]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Members run each with its own graph")
        ensemble = tfe.Ensemble(remember, MEMBERS, trunk=trunk)
        ensemble.predict(x, verbose=0, batch_size=rows)
    if execution is not None:
        assert ensemble.execution.startswith(execution), ensemble.execution
    given = x if trunk is None else np.asarray(trunk(x, training=False))
    # The members alone: models of their own, unless they run as such, and then copies of the ensemble's.
    alone = built[:MEMBERS]
    if ensemble.members.separate:
        alone = [keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model)) for model in alone]
        for copy, model in zip(alone, built, strict=False):
            for ours, layer in zip(copy.layers, model.layers, strict=True):
                vars(ours).update({key: value for key, value in vars(layer).items() if isinstance(value, np.ndarray)})
    for member, model in enumerate(alone):
        if not model.built:
            model(tf.nest.map_structure(lambda v: v[:1], given))
        for variable, value in zip(model.variables, ensemble.members.member_values(member), strict=True):
            variable.assign(value)
    close(ensemble(x), together(alone, given), tolerance, "before training")
    rng = np.random.default_rng(1)
    y = tf.nest.map_structure(lambda v: rng.normal(size=v.shape).astype(np.float32), alone[0](given))

    ensemble.compile(optimizer(), "mse", run_eagerly=run_eagerly)
    ensemble.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    for model in alone:
        model.compile(optimizer(), "mse", run_eagerly=run_eagerly)
        model.fit(given, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    after = arrays(ensemble(x))
    close(after, together(alone, given), tolerance, "after training")
    for member in range(MEMBERS):
        single = arrays(ensemble._call_member(x, tf.constant(member)))
        close(single, [part[:, [member]] for part in after], tolerance, f"member {member} by itself")
    close(ensemble.member(1)(x), [part[:, 1] for part in after], tolerance, "taken out")
    for member, model in enumerate(alone):
        for variable, value in zip(model.variables, ensemble.members.member_values(member), strict=True):
            close(value, np.asarray(variable), tolerance, f"variable {variable.path} after training")

    ensemble.save(path / "ensemble.keras")
    loaded = keras.saving.load_model(path / "ensemble.keras")
    for ours, kept in zip(arrays(loaded(x)), after, strict=True):
        np.testing.assert_array_equal(ours, kept)
    assert loaded.execution == ensemble.execution
    for ours, kept in zip(arrays(ensemble.predict(x, verbose=0, batch_size=rows)), after, strict=True):
        np.testing.assert_allclose(ours, kept, rtol=1e-4, atol=tolerance)
    if export:
        tfe.export_saved_model(ensemble, path / "exported")
        served = tf.saved_model.load(str(path / "exported")).signatures["members"]
        given = x if isinstance(x, dict) else {"inputs": x}
        given = {key: tf.cast(value, served.structured_input_signature[1][key].dtype) for key, value in given.items()}
        said = served(**given)
        names = [output.name for output in ensemble.outputs_said()]
        for name, part in zip(names, after, strict=True):
            found = said["logits" if len(names) == 1 else f"{name}_logits"]
            np.testing.assert_allclose(found, part, rtol=1e-4, atol=tolerance)
    return ensemble


def arrays(outputs):
    """All outputs of a model, as a list of arrays."""
    return [np.asarray(part) for part in tf.nest.flatten(outputs)]


def together(models, x):
    """What models say alone, each output `[batch, members, ...]`."""
    each = [arrays(model(x)) for model in models]
    return [np.stack(parts, axis=1) for parts in zip(*each, strict=True)]


def close(ours, alone, tolerance, what):
    """Compares all outputs, on the scale of their numbers."""
    for one, other in zip(arrays(ours), arrays(alone), strict=True):
        one, other = one.astype(np.float64), other.astype(np.float64)
        scale = max(np.abs(other).max(initial=0.0), 1e-3)
        np.testing.assert_allclose(one, other, rtol=0.0, atol=tolerance * scale, err_msg=what, equal_nan=False)
