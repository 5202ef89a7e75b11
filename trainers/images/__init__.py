"""Members of image ensembles: data, networks, training that resumes to the epoch, stored predictions."""
