"""Settings for all tests."""

import os

import pytest

from tf_ensembles import extras

# Some tests bring TF-Agents. Where tf.keras has been used before, it must have been Keras 2 (see `legacy_keras`).
if extras.is_available("tf_agents"):
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


# Variants of tests that cost seconds; others of them, or the contract's tests of such models, run by default.
DEAR = frozenset(
    {
        "test_a_prior_with_units_spreads_where_there_are_no_data[1]",
        "test_a_saved_model_serves_the_same_numbers[gaussian_mixture]",
        "test_a_saved_model_serves_the_same_numbers[student_t]",
        "test_a_saved_policy_acts_alike_in_a_process_without_the_package[4]",
        "test_an_ensemble_is_its_members[bidirectional]",
        "test_an_ensemble_is_its_members[gru]",
        "test_an_ensemble_is_its_members[masking]",
        "test_an_ensemble_is_its_members[simple rnn]",
        "test_any_member_runs_trains_and_says_how[dict_inputs]",
        "test_any_member_runs_trains_and_says_how[masked]",
        "test_any_member_runs_trains_and_says_how[recurrent]",
        "test_auto_has_the_unit_of_the_output_and_survives_files[named]",
        "test_auto_has_the_unit_of_the_output_and_survives_files[series]",
        "test_auto_has_the_unit_of_the_output_and_survives_files[tokens]",
        "test_classifier[dict_inputs]",
        "test_equals_members_that_are_trained_alone_by_keras[2.0-bootstrap1-FromScratch]",
        "test_equals_members_that_are_trained_alone_by_keras[None-None-OnTop]",
        "test_fit_and_evaluate_report_what_the_functions_say[True]",
        "test_it_saves_loads_and_exports_as_an_ensemble_does[vector]",
        "test_optimizers_that_look_at_whole_variables_keep_members_apart[adafactor]",
        "test_optimizers_that_look_at_whole_variables_keep_members_apart[lamb]",
        "test_optimizers_that_look_at_whole_variables_keep_members_apart[muon]",
        "test_orders_that_work[core first]",
        "test_orders_that_work[keras first]",
        "test_orders_that_work[set by the user]",
        "test_orders_that_work[tensorflow first]",
        "test_saving_restores_the_bits_and_training_goes_on_as_if_never_interrupted[dense]",
        "test_tf_agents_own_agents_run_unchanged[LinearUCB]",
        "test_training_together_equals_training_alone[dense-adam]",
        "test_training_together_equals_training_alone[dense-sgd]",
        "test_training_together_equals_training_alone[recurrent-adam]",
    }
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the dear variants as slow."""
    for item in items:
        if item.name in DEAR:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _xla_only_where_asked(request, monkeypatch):
    """XLA takes seconds to compile each new ensemble: only tests marked `xla` let `jit_compile="auto"` choose it."""
    if "xla" not in request.keywords:
        import tf_ensembles as tfe

        for model in (tfe.Ensemble, tfe.Epinet):
            monkeypatch.setattr(model, "_resolve_auto_jit_compile", lambda self: False)
