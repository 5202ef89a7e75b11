"""Members taken out, added and chosen say what they said in their ensemble."""

import keras
import numpy as np
import pytest
from keras import layers

import tf_ensembles as tfe
from tests.tf_ensembles.ensemble.test_trunk import head, make_trunk

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 20)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build():
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, "relu"), layers.Dropout(0.3), layers.BatchNormalization(), layers.Dense(3)]
    )


def plain():
    return keras.Sequential([keras.Input((4,)), layers.Dense(5, "relu"), layers.Dense(3)])


@keras.saving.register_keras_serializable(package="collection")
class Subclassed(keras.Model):
    """Knows its inputs from data only."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.out = layers.Dense(5, "relu"), layers.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x))


def _options(kind):
    if kind == "trunk":
        prior = tfe.PriorFunction(head, 2.0, on="features")
        return head, dict(prior=prior, trunk=make_trunk()), RNG.normal(size=(20, 5, 5, 2)).astype(np.float32)
    if kind == "subclassed":
        return Subclassed, dict(prior=tfe.PriorFunction(Subclassed, 2.0)), X
    prior = {"auto": tfe.PriorFunction("auto", 1.5), "prior": tfe.PriorFunction(plain, 2.0)}.get(kind)
    return build, dict(prior=prior), X


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("plain", "prior", "auto", "subclassed")]


@pytest.mark.parametrize("kind", ["trunk", *SLOW])
def test_a_member_is_a_plain_keras_model(kind, tmp_path):
    make, options, x = _options(kind)
    ensemble = tfe.Ensemble(make, 3, outputs="logits", **options)
    expected = ensemble.predict(x, verbose=0)
    for index in (1, -1):
        member = ensemble.member(index)
        assert type(member).__module__.split(".")[0] != "tf_ensembles"
        np.testing.assert_allclose(np.asarray(member(x)), expected[:, index], rtol=1e-5, atol=1e-5)
    member.save(tmp_path / "member.keras")
    loaded = keras.saving.load_model(tmp_path / "member.keras")
    np.testing.assert_array_equal(np.asarray(loaded(x)), np.asarray(member(x)))
    # Training it trains neither the ensemble, nor its prior, nor a frozen trunk.
    member.compile("sgd", LOSS, run_eagerly=True)
    own = make()
    trained = sum(v.trainable for v in own.variables) if own.built else 4
    assert len(member.trainable_variables) == trained
    member.train_on_batch(x, Y)
    np.testing.assert_array_equal(ensemble.predict(x, verbose=0), expected)


def test_a_member_of_a_regression_has_its_prior_on_means_only():
    def two():
        return keras.Sequential([keras.Input((4,)), layers.Dense(4)])

    def one():
        return keras.Sequential([keras.Input((4,)), layers.Dense(2)])

    for prior in (one, two):  # One column per target, or as many as a member has.
        ensemble = tfe.Ensemble(two, 2, prior=tfe.PriorFunction(prior, 3.0))
        ensemble.compile("sgd", tfe.losses.GaussianNLL())
        np.testing.assert_allclose(
            np.asarray(ensemble.member(1)(X)), ensemble.predict(X, verbose=0)[:, 1], rtol=1e-5, atol=1e-5
        )


def test_models_of_one_or_several_architectures_keep_what_they_learned(tmp_path):
    same = [build() for _ in range(3)]
    for model in same:
        model.layers[0].bias.assign(RNG.normal(size=5))
    together = tfe.Ensemble.from_models(same, outputs="logits")
    assert together.execution.startswith("vectorized")
    expected = np.stack([np.asarray(model(X)) for model in same], axis=1)
    np.testing.assert_allclose(together.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6)
    others = [build(), plain(), Subclassed()]
    others[2](X)
    mixed = tfe.Ensemble.from_models(others, outputs="logits")
    with pytest.warns(UserWarning, match="own graph"):
        mixed.predict(X, verbose=0)
    mixed.save(tmp_path / "mixed.keras")
    expected = np.stack([np.asarray(model(X)) for model in others], axis=1)
    loaded = keras.saving.load_model(tmp_path / "mixed.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(loaded.member(1)(X)), expected[:, 1], rtol=1e-5, atol=1e-6)
    chosen = loaded.select([2, 0])
    np.testing.assert_allclose(chosen.predict(X, verbose=0), expected[:, [2, 0]], rtol=1e-5, atol=1e-6)


def _trained(count):
    prior = tfe.PriorFunction(plain, 2.0)
    ensemble = tfe.Ensemble(plain, count, prior=prior, bootstrap=tfe.Bernoulli(0.5), l2=1e-3, seed=5)
    ensemble.compile(keras.optimizers.Adam(0.05), LOSS, run_eagerly=True)
    ensemble.fit(X, Y, batch_size=10, verbose=0)
    return ensemble


def test_members_added_later_are_those_of_a_larger_ensemble():
    large, small = _trained(4), _trained(2)
    extended = small.extend(2)
    assert extended.frozen.tolist() == [True, True, False, False]
    extended.fit(X, Y, batch_size=10, verbose=0)
    np.testing.assert_allclose(extended(X), large(X), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_chosen_members_keep_their_bootstrap_weights(tmp_path):
    reference = _trained(4)
    chosen = reference.select([3, 1])
    chosen.compile(keras.optimizers.SGD(0.1), LOSS, run_eagerly=True)
    reference.compile(keras.optimizers.SGD(0.1), LOSS, run_eagerly=True)
    chosen.save(tmp_path / "chosen.keras")
    for model in (chosen, reference, loaded := keras.saving.load_model(tmp_path / "chosen.keras")):
        model.fit(X, Y, batch_size=10, epochs=1, verbose=0)
    np.testing.assert_allclose(chosen(X), np.asarray(reference(X))[:, [3, 1]], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loaded(X), chosen(X), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_extending_by_models_and_on_data():
    ensemble = tfe.Ensemble(plain, 2, outputs="logits")
    added = plain()
    larger = ensemble.extend([added])
    expected = np.concatenate([ensemble.predict(X, verbose=0), np.asarray(added(X))[:, None]], axis=1)
    np.testing.assert_allclose(larger.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6)
    waiting = tfe.Ensemble(plain, 2, prior=tfe.PriorFunction("auto", 1.0), outputs="logits")
    waiting.adapt(X)
    whole = tfe.Ensemble(plain, 3, prior=tfe.PriorFunction("auto", 1.0), outputs="logits")
    np.testing.assert_allclose(
        waiting.extend(1, x=X).predict(X, verbose=0), whole.predict(X, verbose=0), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ValueError, match=r"Expected x=.*the training inputs"):
        waiting.extend(1)


def test_the_greedy_choice_is_that_of_brute_force():
    ensemble = tfe.Ensemble(lambda: keras.Sequential([keras.Input((4,)), layers.Dense(3)]), 5, outputs="logits")
    logits = ensemble.predict(X, verbose=0)
    best: list[int] = []
    for _ in range(3):
        scores = {m: tfe.metrics.joint_nll(logits[:, [*best, m]], Y, tau=4) for m in range(5) if m not in best}
        best.append(min(scores, key=scores.get))
    found = ensemble.best_members(X, Y, num=3, tau=4)
    assert found.tolist() == best
    assert ensemble.select(found).num_members == 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda e: e.member(2), r"Expected indices of members in \[0, 2\)"),
        (lambda e: e.member(0.5), "Expected integer indices"),
        (lambda e: e.select([]), "Expected integer indices"),
        (lambda e: e.select([0, 0]), "Expected different members"),
        (lambda e: e.extend(0), "at least one member to add"),
        (
            lambda e: tfe.Ensemble(plain, 3, bootstrap=tfe.Poisson()).select([0, 2]).extend([plain()]),
            "Expected an ensemble that has all its members",
        ),
        (lambda e: e.best_members(X, Y, 3), "between 1 and 2 members"),
        (lambda e: tfe.Ensemble.from_models([plain(), plain()]).extend(1), "Expected build_member="),
        (
            lambda e: tfe.Ensemble(head, 2, trunk=make_trunk(frozen=False)).extend(1),
            "Expected a frozen trunk .* for extend",
        ),
        (
            lambda e: tfe.Ensemble(plain, 2, prior=tfe.PriorFunction(plain)).extend([plain()]),
            "since each has a prior",
        ),
        (lambda e: tfe.Ensemble(Subclassed, 2).member(0), "Expected an ensemble that has seen data"),
    ],
)
def test_what_cannot_be_asked_for(call, text):
    with pytest.raises(ValueError, match=text):
        call(tfe.Ensemble(plain, 2, outputs="logits"))
