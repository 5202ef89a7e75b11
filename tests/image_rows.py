"""Rows of figures on images without training: every run is planned, and scores are made up."""

from tf_ensembles.trainers.images import runs as functions


def make(figure, preset, score):
    """Returns rows of scored ensembles, with scores by their configurations, and the runs that train members."""
    rows, members = [], []
    for stage in figure.stages(figure.presets[preset], {}):
        for run in stage(rows):
            if run.kind == functions.TRAIN:
                members.append(run)
            else:
                rows.append({"id": run.id, "hash": run.hash, **run.config, **score(run.config)})
    return rows, members
