"""Assessment: what a team would attach to a model, on one page: scores with intervals, pictures, slices."""
